// Buffer: power-of-two pieces, the big ones kept in free lists up to a bound.
#include "sampling/buffer.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstdlib>
#include <mutex>
#include <new>
#include <vector>

namespace gids {
namespace {

constexpr size_t kRetainedBytes = size_t{256} << 20;
constexpr size_t kHugePage = size_t{2} << 20;

struct Recycler {
    std::mutex mutex;
    std::array<std::vector<void*>, 64> free;  // guarded by mutex; index = log2 of the size
    size_t retained_bytes = 0;                // guarded by mutex; the sum over `free`
};

// Never destroyed: arrays handed to Python may outlive static destructors.
Recycler& recycler() {
    static Recycler* instance = new Recycler;
    return *instance;
}

void* map_huge(size_t bytes) {
    // Mapped with room to spare and trimmed to a 2 MiB boundary, without which no huge page fits.
    const size_t span = bytes + kHugePage;
    void* raw = mmap(nullptr, span, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (raw == MAP_FAILED) throw std::bad_alloc();
    const auto begin = reinterpret_cast<uintptr_t>(raw);
    const uintptr_t aligned = (begin + kHugePage - 1) & ~(kHugePage - 1);
    if (aligned > begin) munmap(raw, aligned - begin);
    if (begin + span > aligned + bytes)
        munmap(reinterpret_cast<void*>(aligned + bytes), begin + span - aligned - bytes);
    void* data = reinterpret_cast<void*>(aligned);
    madvise(data, bytes, MADV_HUGEPAGE);  // advice: without huge pages everything still works
    return data;
}

}  // namespace

Buffer::Buffer(size_t bytes) {
    if (bytes == 0) return;
    bytes_ = std::bit_ceil(std::max<size_t>(bytes, 64));
    if (bytes_ < kHugeBytes) {
        data_ = std::aligned_alloc(64, bytes_);
        if (data_ == nullptr) throw std::bad_alloc();
        return;
    }
    Recycler& pool = recycler();
    {
        const std::lock_guard lock(pool.mutex);
        auto& pieces = pool.free[static_cast<size_t>(std::countr_zero(bytes_))];
        if (!pieces.empty()) {
            data_ = pieces.back();
            pieces.pop_back();
            pool.retained_bytes -= bytes_;
            return;
        }
    }
    data_ = map_huge(bytes_);
    zeroed_ = true;
}

Buffer::~Buffer() {
    if (data_ == nullptr) return;
    if (bytes_ < kHugeBytes) {
        std::free(data_);
        return;
    }
    Recycler& pool = recycler();
    {
        const std::lock_guard lock(pool.mutex);
        if (bytes_ <= kRetainedBytes / 4 && pool.retained_bytes + bytes_ <= kRetainedBytes) {
            pool.free[static_cast<size_t>(std::countr_zero(bytes_))].push_back(data_);
            pool.retained_bytes += bytes_;
            return;
        }
    }
    munmap(data_, bytes_);
}

void Buffer::trim() {
    Recycler& pool = recycler();
    const std::lock_guard lock(pool.mutex);
    for (size_t log2 = 0; log2 < pool.free.size(); ++log2) {
        for (void* piece : pool.free[log2]) munmap(piece, size_t{1} << log2);
        pool.free[log2].clear();
    }
    pool.retained_bytes = 0;
}

}  // namespace gids
