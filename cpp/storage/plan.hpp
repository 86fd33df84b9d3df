// From rows to reads: which byte ranges to fetch, in what order, and which rows each of them holds. Pure: no I/O.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "storage/layout.hpp"
#include "thread_pool.hpp"

namespace gids::storage {

struct PlanLimits {
    uint64_t block_bytes = 512;         // power of two: offsets and lengths of reads are multiples of it
    uint64_t merge_gap_bytes = 0;       // ranges at most this far apart become one read
    uint64_t max_io_bytes = 128 << 10;  // no read is longer; at least 4 blocks

    void check() const;
};

struct Read {
    uint64_t offset;              // multiple of the block
    uint32_t length;              // multiple of the block; may pass the end of the file by less than a block
    uint32_t file;                // index into TableLayout::files()
    uint32_t first, count;        // words [first, first + count) of the plan are the rows it serves
    uint32_t row_begin, row_end;  // which bytes of each such row it serves: all, but for rows longer than max_io_bytes
};
static_assert(sizeof(Read) == 32);

// Words on huge pages where there are many: a plan of ten million rows would otherwise spend its time in page faults.
class WordArray {
public:
    WordArray() = default;
    explicit WordArray(size_t count);
    WordArray(WordArray&& other) noexcept;
    WordArray& operator=(WordArray&& other) noexcept;
    ~WordArray();
    uint64_t* data() const { return data_; }
    uint64_t operator[](size_t i) const { return data_[i]; }

private:
    uint64_t* data_ = nullptr;
    size_t mapped_bytes_ = 0;  // 0: from the heap
};

class ReadPlan {
public:
    const std::vector<Read>& reads() const { return reads_; }
    int64_t num_rows() const { return num_rows_; }
    int64_t num_unique() const { return num_unique_; }
    uint64_t bytes() const { return bytes_; }

    // The i-th row in (file, offset) order: its key, and its position in the caller's list or memory.
    uint64_t key(size_t i) const { return words_[i] >> position_bits_; }
    uint64_t position(size_t i) const { return words_[i] & ((uint64_t{1} << position_bits_) - 1); }

private:
    friend ReadPlan plan_reads(const TableLayout&, std::span<const int64_t>, const PlanLimits&, ThreadPool*,
                               std::span<const int32_t>);
    struct Piece {  // the reads of consecutive words of one file
        size_t file, begin, end;
        int64_t unique = 0;
        std::vector<Read> reads;
    };
    std::vector<Piece> pieces(const TableLayout& layout) const;
    void add_rows(const TableLayout& layout, const PlanLimits& limits, Piece& piece) const;
    void add_long_row(const TableLayout& layout, const PlanLimits& limits, size_t begin, size_t end,
                      Piece& piece) const;

    WordArray words_;  // key << position_bits_ | position, ascending
    int position_bits_ = 0;
    int64_t num_rows_ = 0, num_unique_ = 0;
    uint64_t bytes_ = 0;
    std::vector<Read> reads_;  // stripes take turns, offsets ascend within each stripe
};

// Rows may come in any order and more than once. Throws ConfigError for a row outside the table. `pool` may be null.
// Row i goes to position places[i], where places are given, else to position i.
ReadPlan plan_reads(const TableLayout& layout, std::span<const int64_t> rows, const PlanLimits& limits,
                    ThreadPool* pool, std::span<const int32_t> places = {});

}  // namespace gids::storage
