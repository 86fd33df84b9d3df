// The memory engine: a null device that holds the whole table, so that what is measured is our own overhead.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <new>
#include <utility>

#include "errors.hpp"
#include "storage/engine.hpp"
#include "storage/files.hpp"

namespace gids::storage {
namespace {

class Region {
public:
    explicit Region(uint64_t bytes) : bytes_(bytes) {
        if (bytes_ == 0) return;
        void* memory = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (memory == MAP_FAILED) throw std::bad_alloc();
        madvise(memory, bytes_, MADV_HUGEPAGE);
        base_ = static_cast<std::byte*>(memory);
    }
    Region(Region&& other) noexcept
        : base_(std::exchange(other.base_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
    Region& operator=(Region&&) = delete;
    ~Region() {
        if (base_) munmap(base_, bytes_);
    }
    std::byte* data() const { return base_; }
    uint64_t size() const { return bytes_; }

private:
    std::byte* base_ = nullptr;
    uint64_t bytes_ = 0;
};

Region load(int descriptor, uint64_t bytes, const std::string& path) {
    Region region(bytes);
    for (uint64_t done = 0; done < bytes;) {
        const ssize_t count = pread(descriptor, region.data() + done, bytes - done, static_cast<off_t>(done));
        if (count < 0 && errno == EINTR) continue;
        if (count <= 0)
            throw StorageError("cannot load the table into memory", path, done, bytes - done, count < 0 ? errno : 0);
        done += static_cast<uint64_t>(count);
    }
    return region;
}

class MemoryQueue final : public Queue {
public:
    MemoryQueue(std::shared_ptr<const std::vector<Region>> regions, unsigned depth)
        : regions_(std::move(regions)), depth_(depth) {}
    unsigned depth() const override { return depth_; }

    void submit(std::span<const IoRequest> requests) override {
        for (const IoRequest& request : requests) {
            const Region& region = (*regions_)[request.file];
            const uint64_t end = std::min(request.offset + request.length, region.size());
            const int64_t count = request.offset < end ? static_cast<int64_t>(end - request.offset) : 0;
            completed_.push_back({request.tag, count, region.data() + request.offset});
        }
    }

    size_t reap(std::span<IoCompletion> completions, size_t, Microseconds) override {
        const size_t count = std::min(completions.size(), completed_.size());
        std::copy_n(completed_.begin(), count, completions.begin());
        completed_.erase(completed_.begin(), completed_.begin() + static_cast<std::ptrdiff_t>(count));
        return count;
    }

private:
    const std::shared_ptr<const std::vector<Region>> regions_;
    const unsigned depth_;
    std::vector<IoCompletion> completed_;
};

class MemoryEngine final : public Engine {
public:
    explicit MemoryEngine(const TableLayout& layout) {
        const Files files(layout, /*direct=*/false);
        auto regions = std::make_shared<std::vector<Region>>();
        for (size_t f = 0; f < layout.files().size(); ++f)
            regions->push_back(load(files.descriptors()[f], layout.end_of_rows(f), layout.files()[f].path));
        regions_ = std::move(regions);
    }
    std::string name() const override { return "memory"; }
    uint64_t block_bytes() const override { return 1; }
    bool needs_staging() const override { return false; }
    std::unique_ptr<Queue> make_queue(std::span<std::byte>, unsigned depth) override {
        return std::make_unique<MemoryQueue>(regions_, depth);
    }

private:
    std::shared_ptr<const std::vector<Region>> regions_;
};

}  // namespace

std::unique_ptr<Engine> open_memory(const TableLayout& layout) { return std::make_unique<MemoryEngine>(layout); }

}  // namespace gids::storage
