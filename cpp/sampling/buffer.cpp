// Buffer: pieces of few sizes, so that one serves again; the big ones wait in lists up to a bound.
#include "sampling/buffer.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <map>
#include <mutex>
#include <new>
#include <vector>

namespace gids {
namespace {

constexpr size_t kRetainedBytes = size_t{256} << 20;
constexpr size_t kPage = 4096;
constexpr size_t kHugePage = size_t{2} << 20;

struct Recycler {
    std::mutex mutex;
    std::map<size_t, std::vector<void*>> free;  // guarded by mutex; by size
    size_t retained_bytes = 0;                  // guarded by mutex; the sum over `free`
    size_t held_bytes = 0;                      // guarded by mutex; pieces of all Buffers, small ones too
    size_t most_bytes = 0;                      // guarded by mutex; the most held since the last trim
    size_t peak_bytes = 0;                      // guarded by mutex; the most held since the last mark

    // Counts a piece, and frees waiting ones of other sizes that the process would be larger with than ever before.
    void hold(size_t bytes) {
        held_bytes += bytes;
        most_bytes = std::max(most_bytes, held_bytes);
        peak_bytes = std::max(peak_bytes, held_bytes);
        for (auto it = free.rbegin(); it != free.rend() && held_bytes + retained_bytes > most_bytes; ++it)
            while (!it->second.empty() && held_bytes + retained_bytes > most_bytes) {
                munmap(it->second.back(), it->first);
                it->second.pop_back();
                retained_bytes -= it->first;
            }
    }
};

thread_local Buffer::ThreadUsage of_thread{0, 0};

void count_for_thread(int64_t bytes) {
    of_thread.held_bytes += bytes;
    of_thread.peak_bytes = std::max(of_thread.peak_bytes, of_thread.held_bytes);
}

// Never destroyed: arrays handed to Python may outlive static destructors.
Recycler& recycler() {
    static Recycler* instance = new Recycler;
    return *instance;
}

// `bytes` must be whole pages.
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

size_t Buffer::piece_bytes(size_t bytes) {
    if (bytes == 0) return 0;
    if (bytes < kHugeBytes) return std::bit_ceil(std::max<size_t>(bytes, 64));
    const size_t step = std::bit_floor(bytes) / 8;  // samples wait with these: an eighth to spare, not all again
    return (bytes + step - 1) / step * step;
}

Buffer::Buffer(size_t bytes, Of of) : of_(of) {
    if (bytes == 0) return;
    const size_t piece = piece_bytes(bytes);
    Recycler& pool = recycler();
    {
        const std::lock_guard lock(pool.mutex);
        if (piece >= kHugeBytes) {
            auto& pieces = pool.free[piece];
            if (!pieces.empty()) {
                data_ = pieces.back();
                pieces.pop_back();
                pool.retained_bytes -= piece;
            }
        }
        pool.hold(piece);
    }
    bytes_ = piece;
    if (of_ == Of::kThread) count_for_thread(static_cast<int64_t>(piece));
    if (data_ != nullptr) return;
    try {
        zeroed_ = piece >= kHugeBytes;
        data_ = zeroed_ ? map_huge(piece) : std::aligned_alloc(64, piece);
        if (data_ == nullptr) throw std::bad_alloc();
    } catch (...) {
        const std::lock_guard lock(pool.mutex);
        pool.held_bytes -= piece;
        if (of_ == Of::kThread) count_for_thread(-static_cast<int64_t>(piece));
        throw;
    }
}

Buffer::~Buffer() {
    if (data_ == nullptr) return;
    Recycler& pool = recycler();
    if (of_ == Of::kThread) count_for_thread(-static_cast<int64_t>(bytes_));
    {
        const std::lock_guard lock(pool.mutex);
        pool.held_bytes -= bytes_;
        if (bytes_ >= kHugeBytes && bytes_ <= kRetainedBytes / 4 && pool.retained_bytes + bytes_ <= kRetainedBytes) {
            pool.free[bytes_].push_back(data_);
            pool.retained_bytes += bytes_;
            return;
        }
    }
    if (bytes_ < kHugeBytes) std::free(data_);
    else munmap(data_, bytes_);
}

Buffer::Usage Buffer::usage() {
    Recycler& pool = recycler();
    const std::lock_guard lock(pool.mutex);
    return {pool.held_bytes, pool.peak_bytes, pool.retained_bytes};
}

void Buffer::mark_peak() {
    Recycler& pool = recycler();
    const std::lock_guard lock(pool.mutex);
    pool.peak_bytes = pool.held_bytes;
}

Buffer::ThreadUsage Buffer::thread_usage() { return of_thread; }

void Buffer::mark_thread_peak() { of_thread.peak_bytes = of_thread.held_bytes; }

void Buffer::trim() {
    Recycler& pool = recycler();
    const std::lock_guard lock(pool.mutex);
    for (const auto& [bytes, pieces] : pool.free)
        for (void* piece : pieces) munmap(piece, bytes);
    pool.free.clear();
    pool.retained_bytes = 0;
    pool.most_bytes = pool.held_bytes;
}

HugeBytes::HugeBytes(size_t bytes) : bytes_((bytes + kPage - 1) & ~(kPage - 1)) {
    if (bytes_ > 0) data_ = map_huge(bytes_);
}

HugeBytes::~HugeBytes() {
    if (data_ != nullptr) munmap(data_, bytes_);
}

}  // namespace gids
