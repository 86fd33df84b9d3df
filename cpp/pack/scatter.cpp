// Scatters rows into buffers by region and writes whole pages past the page cache.
#include "pack/scatter.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <new>

#include "dataset/checksum.hpp"
#include "errors.hpp"
#include "interrupted.hpp"

namespace gids::pack {
namespace {

constexpr int64_t kPage = 4096;  // no drive asks for a larger alignment

int64_t page_of(int64_t offset) { return offset / kPage * kPage; }
int64_t pages_end(int64_t offset) { return (offset + kPage - 1) / kPage * kPage; }

int open_for_writing(const std::string& path) {
    int descriptor = retry_on_eintr([&] { return open(path.c_str(), O_RDWR | O_CLOEXEC | O_DIRECT); });
    if (descriptor < 0 && errno == EINVAL)  // a file system without direct access
        descriptor = retry_on_eintr([&] { return open(path.c_str(), O_RDWR | O_CLOEXEC); });
    if (descriptor < 0) throw StorageError("cannot open the file", path, 0, 0, errno);
    return descriptor;
}

}  // namespace

void PageBuffer::Free::operator()(uint8_t* memory) const { std::free(memory); }

PageBuffer::PageBuffer(int64_t offset, int64_t bytes)
    : base_(page_of(offset)), bytes_(pages_end(offset + bytes) - base_) {
    void* memory = nullptr;
    if (posix_memalign(&memory, kPage, static_cast<size_t>(std::max(bytes_, kPage))) != 0) throw std::bad_alloc();
    memory_.reset(static_cast<uint8_t*>(memory));
}

void PageBuffer::move_to(int64_t offset) { base_ = offset; }

// Invariant of an appended region: [unwritten, next) lies in the buffer, and all before it is in the file.
struct Scatter::Cursor {
    int64_t taken = 0;  // of the region's sources
    int64_t unwritten = 0, next = 0;
    PageBuffer buffer;
};

Scatter::Scatter(std::string path, int64_t row_bytes, std::vector<Region> regions, std::span<uint64_t> sums,
                 int64_t buffer_bytes, int64_t resume_row)
    : path_(std::move(path)),
      row_bytes_(row_bytes),
      buffer_bytes_(std::max(pages_end(buffer_bytes), kPage)),
      regions_(std::move(regions)),
      sums_(sums),
      cursors_(regions_.size()),
      descriptor_(open_for_writing(path_)) {
    try {
        for (size_t index = 0; index < regions_.size(); ++index) {
            const Region& region = regions_[index];
            Cursor& cursor = cursors_[index];
            const auto count = static_cast<int64_t>(region.sources.size());
            cursor.taken =
                std::lower_bound(region.sources.begin(), region.sources.end(), resume_row) - region.sources.begin();
            const int64_t begin = region.begin * row_bytes_;
            if (!region.places.empty()) {
                cursor.buffer = PageBuffer(begin, count * row_bytes_);
                if (cursor.taken > 0) read_pages(cursor.buffer);
                continue;
            }
            cursor.unwritten = cursor.next = begin + cursor.taken * row_bytes_;
            const int64_t left = (count - cursor.taken) * row_bytes_;
            cursor.buffer = PageBuffer(page_of(cursor.next), std::min(buffer_bytes_, left + kPage));
        }
    } catch (...) {
        close(descriptor_);
        throw;
    }
}

Scatter::~Scatter() { close(descriptor_); }

void Scatter::add(int64_t first_row, const uint8_t* rows, int64_t count, ThreadPool& pool) {
    // A row that many regions take is digested once; where most rows are taken by none, each when it is copied.
    digests_.resize(wanted_before(first_row + count) < count ? 0 : static_cast<size_t>(count));
    pool.parallel_for(static_cast<int64_t>(digests_.size()), 4096, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i)
            digests_[static_cast<size_t>(i)] = row_digest(rows + i * row_bytes_, row_bytes_);
    });
    pool.parallel_for(static_cast<int64_t>(regions_.size()), 1, [&](int64_t begin, int64_t end) {
        for (int64_t index = begin; index < end; ++index)
            take(static_cast<size_t>(index), first_row, rows, first_row + count);
    });
}

int64_t Scatter::wanted_before(int64_t end_row) const {
    int64_t wanted = 0;
    for (size_t index = 0; index < regions_.size(); ++index) {
        const std::span<const int64_t> sources = regions_[index].sources;
        const auto taken = sources.begin() + cursors_[index].taken;
        wanted += std::lower_bound(taken, sources.end(), end_row) - taken;
    }
    return wanted;
}

void Scatter::take(size_t index, int64_t first_row, const uint8_t* rows, int64_t end_row) {
    const Region& region = regions_[index];
    Cursor& cursor = cursors_[index];
    const auto count = static_cast<int64_t>(region.sources.size());
    uint64_t sum = 0, weighted = 0;
    for (; cursor.taken < count && region.sources[static_cast<size_t>(cursor.taken)] < end_row; ++cursor.taken) {
        const auto at = static_cast<size_t>(cursor.taken);
        const int64_t local = region.sources[at] - first_row;
        const uint8_t* row = rows + local * row_bytes_;
        const int64_t place = region.places.empty() ? cursor.taken : region.places[at];
        if (region.places.empty()) append(index, row);
        else std::memcpy(cursor.buffer.at((region.begin + place) * row_bytes_), row, static_cast<size_t>(row_bytes_));
        const uint64_t digest = digests_.empty() ? row_digest(row, row_bytes_) : digests_[static_cast<size_t>(local)];
        sum += digest;
        weighted += static_cast<uint64_t>(place + 1) * digest;
    }
    sums_[2 * index] += sum;
    sums_[2 * index + 1] += weighted;
}

void Scatter::append(size_t index, const uint8_t* row) {
    Cursor& cursor = cursors_[index];
    for (int64_t left = row_bytes_; left > 0;) {
        const int64_t part = std::min(left, cursor.buffer.end() - cursor.next);
        std::memcpy(cursor.buffer.at(cursor.next), row, static_cast<size_t>(part));
        cursor.next += part;
        row += part;
        left -= part;
        if (cursor.next == cursor.buffer.end()) {
            write_range(cursor.unwritten, cursor.buffer.at(cursor.unwritten), cursor.next - cursor.unwritten);
            cursor.unwritten = cursor.next;
            cursor.buffer.move_to(cursor.next);
        }
    }
}

void Scatter::checkpoint(ThreadPool& pool) {
    pool.parallel_for(static_cast<int64_t>(regions_.size()), 1, [&](int64_t begin, int64_t end) {
        for (auto index = static_cast<size_t>(begin); index < static_cast<size_t>(end); ++index) {
            Cursor& cursor = cursors_[index];
            const Region& region = regions_[index];
            if (!region.places.empty()) {
                const int64_t offset = region.begin * row_bytes_;
                write_range(offset, cursor.buffer.at(offset), static_cast<int64_t>(region.sources.size()) * row_bytes_);
            } else if (cursor.next > cursor.unwritten) {
                // The buffer stays: its last page is written again when it is full.
                write_range(cursor.unwritten, cursor.buffer.at(cursor.unwritten), cursor.next - cursor.unwritten);
            }
        }
    });
    if (retry_on_eintr([&] { return fdatasync(descriptor_); }) != 0)
        throw StorageError("cannot force rows to disk", path_, 0, 0, errno);
}

// Whole pages go as they are; the first and the last may belong to a neighbour too.
void Scatter::write_range(int64_t offset, const uint8_t* data, int64_t bytes) {
    const int64_t end = offset + bytes;
    const int64_t first = std::min(pages_end(offset), end), last = std::max(page_of(end), first);
    if (first > offset) write_part_of_page(offset, data, first - offset);
    if (last > first) put(first, data + (first - offset), last - first);
    if (end > last) write_part_of_page(last, data + (last - offset), end - last);
}

void Scatter::write_part_of_page(int64_t offset, const uint8_t* data, int64_t bytes) {
    const std::lock_guard lock(shared_pages_);
    PageBuffer page(page_of(offset), kPage);
    read_pages(page);
    std::memcpy(page.at(offset), data, static_cast<size_t>(bytes));
    put(page.base(), page.at(page.base()), kPage);
}

void Scatter::read_pages(PageBuffer& pages) {
    for (int64_t offset = pages.base(); offset < pages.end();) {
        const ssize_t got = retry_on_eintr([&] {
            return pread(descriptor_, pages.at(offset), static_cast<size_t>(pages.end() - offset),
                         static_cast<off_t>(offset));
        });
        if (got <= 0)
            throw StorageError("cannot read back what was packed", path_, static_cast<uint64_t>(offset),
                               static_cast<uint64_t>(pages.end() - offset), got < 0 ? errno : 0);
        offset += got;
    }
}

void Scatter::put(int64_t offset, const uint8_t* data, int64_t bytes) {
    written_ += bytes;
    while (bytes > 0) {
        const ssize_t done = retry_on_eintr(
            [&] { return pwrite(descriptor_, data, static_cast<size_t>(bytes), static_cast<off_t>(offset)); });
        if (done <= 0)
            throw StorageError("cannot write packed rows", path_, static_cast<uint64_t>(offset),
                               static_cast<uint64_t>(bytes), done < 0 ? errno : 0);
        offset += done;
        data += done;
        bytes -= done;
    }
}

}  // namespace gids::pack
