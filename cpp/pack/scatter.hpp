// One sequential pass over a table that copies each row to every place of a packed table that wants it.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "thread_pool.hpp"

namespace gids::pack {

// Rows of the packed table that are consecutive there. Those of an appended region come in the order of the source, so
// a small buffer serves; those of a placed region come in any order and are held whole until the pass ends.
struct Region {
    int64_t begin;                     // first row in the packed table
    std::span<const int64_t> sources;  // ascending rows of the source, one for each row
    std::span<const int64_t> places;   // where in the region each goes; empty: one after the other
};

// Bytes of a file on the heap whose address has the alignment that direct writes at their offset need.
class PageBuffer {
public:
    PageBuffer() = default;
    PageBuffer(int64_t offset, int64_t bytes);
    uint8_t* at(int64_t offset) { return memory_.get() + (offset - base_); }
    int64_t base() const { return base_; }
    int64_t end() const { return base_ + bytes_; }
    void move_to(int64_t offset);  // of another part of the file; a multiple of the page

private:
    struct Free {
        void operator()(uint8_t* memory) const;
    };
    std::unique_ptr<uint8_t, Free> memory_;
    int64_t base_ = 0, bytes_ = 0;  // whole pages
};

// Regions that are filled in one pass. Not safe for several callers at once; the pool's threads share its work.
class Scatter {
public:
    // Continues a pass that had copied all rows before `resume_row` and made a checkpoint; 0 begins one. `sums` holds
    // two sums of row digests for every region (see dataset/checksum.hpp; rows are numbered within the region) and is
    // updated.
    Scatter(std::string path, int64_t row_bytes, std::vector<Region> regions, std::span<uint64_t> sums,
            int64_t buffer_bytes, int64_t resume_row);
    ~Scatter();
    Scatter(const Scatter&) = delete;
    Scatter& operator=(const Scatter&) = delete;

    // Takes the next rows of the source, which follow those taken before.
    void add(int64_t first_row, const uint8_t* rows, int64_t count, ThreadPool& pool);
    // Writes all that was taken, durably. The pass may go on, or end here.
    void checkpoint(ThreadPool& pool);

    int64_t bytes_written() const { return written_; }

private:
    struct Cursor;
    int64_t wanted_before(int64_t end_row) const;
    void take(size_t index, int64_t first_row, const uint8_t* rows, int64_t end_row);
    void append(size_t index, const uint8_t* row);
    void write_range(int64_t offset, const uint8_t* data, int64_t bytes);
    void write_part_of_page(int64_t offset, const uint8_t* data, int64_t bytes);
    void read_pages(PageBuffer& pages);
    void put(int64_t offset, const uint8_t* data, int64_t bytes);

    const std::string path_;
    const int64_t row_bytes_, buffer_bytes_;
    std::vector<Region> regions_;
    std::span<uint64_t> sums_;
    std::vector<Cursor> cursors_;
    std::vector<uint64_t> digests_;  // of the rows being taken, or empty
    int descriptor_ = -1;
    std::mutex shared_pages_;  // pages that two regions share are read, changed and written under it
    std::atomic<int64_t> written_{0};
};

}  // namespace gids::pack
