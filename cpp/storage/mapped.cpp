// Engines whose completions point into memory: `memory`, a null device that holds the whole table, so that what is
// measured is our own overhead; and `mmap`, the baseline that leaves everything to the kernel's page cache. A mapped
// file may be truncated at any time, so its pages are never touched from here: the reader lets the kernel copy them.
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <new>
#include <utility>

#include "errors.hpp"
#include "interrupted.hpp"
#include "storage/engine.hpp"
#include "storage/files.hpp"

namespace gids::storage {
namespace {

class Region {
public:
    Region(void* memory, uint64_t bytes) : base_(static_cast<std::byte*>(memory)), bytes_(bytes) {}
    Region(Region&& other) noexcept
        : base_(std::exchange(other.base_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
    Region& operator=(Region&&) = delete;
    ~Region() {
        if (base_) munmap(base_, bytes_);
    }
    std::byte* data() const { return base_; }
    uint64_t size() const { return bytes_; }

private:
    std::byte* base_;
    uint64_t bytes_;
};

Region load(int descriptor, uint64_t bytes, const std::string& path) {
    if (bytes == 0) return {nullptr, 0};
    void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) throw std::bad_alloc();
    Region region(memory, bytes);
    madvise(memory, bytes, MADV_HUGEPAGE);
    for (uint64_t done = 0; done < bytes;) {
        const ssize_t count = retry_on_eintr(
            [&] { return pread(descriptor, region.data() + done, bytes - done, static_cast<off_t>(done)); });
        if (count <= 0)
            throw StorageError("cannot load the table into memory", path, done, bytes - done, count < 0 ? errno : 0);
        done += static_cast<uint64_t>(count);
    }
    return region;
}

Region map(int descriptor, uint64_t bytes, const std::string& path) {
    if (bytes == 0) return {nullptr, 0};
    void* memory = mmap(nullptr, bytes, PROT_READ, MAP_SHARED, descriptor, 0);
    if (memory == MAP_FAILED) throw StorageError("cannot map the file", path, 0, bytes, errno);
    madvise(memory, bytes, MADV_RANDOM);  // readahead of megabytes for a row of a kilobyte is the worse default
    return {memory, bytes};
}

// The files as memory; `files` is null when they were copied and need no more attention.
struct Regions {
    std::vector<Region> regions;
    std::unique_ptr<Files> files;
};

class MappedQueue final : public Queue {
public:
    MappedQueue(std::shared_ptr<const Regions> mapped, unsigned depth) : mapped_(std::move(mapped)), depth_(depth) {}
    unsigned depth() const override { return depth_; }

    void submit(std::span<const IoRequest> requests) override {
        for (const IoRequest& request : requests) {
            const Region& region = mapped_->regions[request.file];
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
    const std::shared_ptr<const Regions> mapped_;
    const unsigned depth_;
    std::vector<IoCompletion> completed_;
};

class MappedEngine final : public Engine {
public:
    MappedEngine(std::string name, std::shared_ptr<const Regions> mapped)
        : name_(std::move(name)), mapped_(std::move(mapped)) {}
    std::string name() const override { return name_; }
    uint64_t block_bytes() const override { return 1; }
    bool needs_staging() const override { return false; }
    bool guarded() const override { return mapped_->files != nullptr; }
    uint64_t file_bytes(size_t file) const override {
        struct stat info;
        if (retry_on_eintr([&] { return fstat(mapped_->files->descriptors()[file], &info); }) != 0) return 0;
        return S_ISREG(info.st_mode) ? static_cast<uint64_t>(info.st_size) : mapped_->files->size_bytes(file);
    }
    std::unique_ptr<Queue> make_queue(std::span<std::byte>, unsigned depth) override {
        return std::make_unique<MappedQueue>(mapped_, depth);
    }

private:
    const std::string name_;
    const std::shared_ptr<const Regions> mapped_;
};

}  // namespace

std::unique_ptr<Engine> open_memory(const TableLayout& layout) {
    const Files files(layout, /*direct=*/false);
    auto mapped = std::make_shared<Regions>();
    for (size_t f = 0; f < layout.files().size(); ++f)
        mapped->regions.push_back(load(files.descriptors()[f], layout.end_of_rows(f), layout.files()[f].path));
    return std::make_unique<MappedEngine>("memory", std::move(mapped));
}

std::unique_ptr<Engine> open_mmap(const TableLayout& layout) {
    auto mapped = std::make_shared<Regions>();
    mapped->files = std::make_unique<Files>(layout, /*direct=*/false);
    for (size_t f = 0; f < layout.files().size(); ++f)
        mapped->regions.push_back(map(mapped->files->descriptors()[f], layout.end_of_rows(f), layout.files()[f].path));
    return std::make_unique<MappedEngine>("mmap", std::move(mapped));
}

}  // namespace gids::storage
