// plan_reads: sort, drop duplicates, merge neighbours, split at the limit, let stripes take turns.
#include "storage/plan.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <new>
#include <utility>

#include "errors.hpp"
#include "storage/sort.hpp"

namespace gids::storage {
namespace {

constexpr int64_t kGrain = int64_t{1} << 16;
constexpr size_t kPieceWords = size_t{1} << 17;
constexpr size_t kHugeBytes = size_t{4} << 20;

uint64_t align_down(uint64_t value, uint64_t block) { return value & ~(block - 1); }
uint64_t align_up(uint64_t value, uint64_t block) { return align_down(value + block - 1, block); }

}  // namespace

void PlanLimits::check() const {
    if (!std::has_single_bit(block_bytes) || block_bytes > (1u << 20))
        throw ConfigError("block_bytes must be a power of two up to 1 MiB (got " + std::to_string(block_bytes) + ")");
    if (max_io_bytes < 4 * block_bytes || max_io_bytes < 64 || max_io_bytes > (1u << 30) ||
        max_io_bytes % block_bytes != 0)
        throw ConfigError(
            "max_io_bytes must be a multiple of the block, at least 4 blocks and 64 bytes, at most 1 GiB "
            "(got " +
            std::to_string(max_io_bytes) + " with blocks of " + std::to_string(block_bytes) + ")");
}

WordArray::WordArray(size_t count) {
    const size_t bytes = count * sizeof(uint64_t);
    if (bytes < kHugeBytes) {
        data_ = new uint64_t[count];
        return;
    }
    void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) throw std::bad_alloc();
    madvise(memory, bytes, MADV_HUGEPAGE);
    data_ = static_cast<uint64_t*>(memory);
    mapped_bytes_ = bytes;
}

WordArray::WordArray(WordArray&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), mapped_bytes_(std::exchange(other.mapped_bytes_, 0)) {}

WordArray& WordArray::operator=(WordArray&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(mapped_bytes_, other.mapped_bytes_);
    return *this;
}

WordArray::~WordArray() {
    if (mapped_bytes_ > 0) munmap(data_, mapped_bytes_);
    else delete[] data_;
}

// Cuts the words by file and then into pieces for several threads. Pieces are of one size for any number of threads,
// so that the plan does not depend on it; equal rows stay together.
std::vector<ReadPlan::Piece> ReadPlan::pieces(const TableLayout& layout) const {
    std::vector<Piece> found;
    const uint64_t* words = words_.data();
    const auto count = static_cast<size_t>(num_rows_);
    size_t begin = 0;
    for (size_t file = 0; file < layout.files().size(); ++file) {
        const auto key_below = [&](uint64_t word, uint64_t bound) { return word >> position_bits_ < bound; };
        const auto file_end = static_cast<size_t>(
            std::lower_bound(words + begin, words + count, layout.first_key(file + 1), key_below) - words);
        while (begin < file_end) {
            size_t end = std::min(begin + kPieceWords, file_end);
            while (end < file_end && key(end) == key(end - 1)) ++end;
            found.push_back({.file = file, .begin = begin, .end = end, .unique = 0, .reads = {}});
            begin = end;
        }
    }
    return found;
}

void ReadPlan::add_long_row(const TableLayout& layout, const PlanLimits& limits, size_t begin, size_t end,
                            Piece& piece) const {
    const uint64_t start = layout.offset_of(key(begin), piece.file);
    for (uint64_t row_begin = 0; row_begin < layout.row_bytes();) {
        const uint64_t offset = align_down(start + row_begin, limits.block_bytes);
        uint64_t row_end = std::min(offset + limits.max_io_bytes - start, layout.row_bytes());
        // A value is never cut in two: conversion works on whole values of at most 8 bytes.
        if (row_end < layout.row_bytes()) row_end &= ~uint64_t{7};
        const uint64_t length = align_up(start + row_end, limits.block_bytes) - offset;
        piece.reads.push_back({offset, static_cast<uint32_t>(length), static_cast<uint32_t>(piece.file),
                               static_cast<uint32_t>(begin), static_cast<uint32_t>(end - begin),
                               static_cast<uint32_t>(row_begin), static_cast<uint32_t>(row_end)});
        row_begin = row_end;
    }
}

void ReadPlan::add_rows(const TableLayout& layout, const PlanLimits& limits, Piece& piece) const {
    const uint64_t block = limits.block_bytes, row_bytes = layout.row_bytes();
    const auto emit = [&](uint64_t from, uint64_t to, size_t first, size_t last) {
        piece.reads.push_back({from, static_cast<uint32_t>(to - from), static_cast<uint32_t>(piece.file),
                               static_cast<uint32_t>(first), static_cast<uint32_t>(last - first), 0,
                               static_cast<uint32_t>(row_bytes)});
    };
    uint64_t from = 0, to = 0;  // the read being built; empty while from == to
    size_t first = piece.begin;
    for (size_t i = piece.begin; i < piece.end;) {
        const uint64_t row_key = key(i);
        size_t next = i + 1;
        while (next < piece.end && key(next) == row_key) ++next;
        ++piece.unique;
        const uint64_t offset = layout.offset_of(row_key, piece.file);
        const uint64_t row_from = align_down(offset, block), row_to = align_up(offset + row_bytes, block);
        if (row_to - row_from > limits.max_io_bytes) {
            if (from != to) emit(from, to, first, i);
            add_long_row(layout, limits, i, next, piece);
            from = to = 0;
        } else if (from != to && row_from <= to + limits.merge_gap_bytes && row_to - from <= limits.max_io_bytes) {
            to = std::max(to, row_to);
        } else {
            if (from != to) emit(from, to, first, i);
            from = row_from, to = row_to, first = i;
        }
        i = next;
    }
    if (from != to) emit(from, to, first, piece.end);
}

ReadPlan plan_reads(const TableLayout& layout, std::span<const int64_t> rows, const PlanLimits& limits,
                    ThreadPool* pool, std::span<const int32_t> places) {
    limits.check();
    ReadPlan plan;
    const auto count = static_cast<int64_t>(rows.size());
    plan.num_rows_ = count;
    if (count == 0) return plan;
    const int row_bits = layout.num_rows() > 1 ? std::bit_width(layout.num_rows() - 1) : 0;
    const bool placed = !places.empty();
    if (placed && places.size() != rows.size())
        throw ConfigError("places must be as many as rows = " + std::to_string(count) + " (got " +
                          std::to_string(places.size()) + ")");
    const auto [least, most] = placed ? std::ranges::minmax(places) : std::ranges::min_max_result<int32_t>{0, 0};
    if (least < 0) throw ConfigError("places must not be negative (got " + std::to_string(least) + ")");
    plan.position_bits_ = std::bit_width(placed ? static_cast<uint64_t>(most) : static_cast<uint64_t>(count - 1));
    if (plan.position_bits_ > 32 || plan.position_bits_ + row_bits > 64)
        throw ConfigError("rows must number at most " + std::to_string(uint64_t{1} << std::min(32, 64 - row_bits)) +
                          " in one call for this table (got " + std::to_string(count) + ")");
    plan.words_ = WordArray(static_cast<size_t>(count));
    uint64_t* words = plan.words_.data();

    // One pass packs the words, checks the range and finds out whether there is anything to sort.
    std::atomic<int64_t> bad{-1};
    std::atomic<bool> sorted{true};
    std::atomic<uint64_t> low{~uint64_t{0}}, high{0};
    for_pieces(pool, count, kGrain, [&](int64_t begin, int64_t end) {
        uint64_t piece_low = ~uint64_t{0}, piece_high = 0;
        bool ascending = true;
        uint64_t previous = begin == 0 ? 0 : static_cast<uint64_t>(rows[static_cast<size_t>(begin - 1)]);
        if (layout.striped() && previous < layout.num_rows()) previous = layout.key_of(previous);
        for (int64_t i = begin; i < end; ++i) {
            const auto row = static_cast<uint64_t>(rows[static_cast<size_t>(i)]);  // negative: far out of range
            if (row >= layout.num_rows()) {
                bad.store(i, std::memory_order_relaxed);  // relaxed: parallel_for orders it before the load below
                return;
            }
            const uint64_t row_key = layout.key_of(row);
            ascending &= row_key >= previous;
            previous = row_key;
            piece_low = std::min(piece_low, row_key);
            piece_high = std::max(piece_high, row_key);
            const auto position =
                placed ? static_cast<uint64_t>(places[static_cast<size_t>(i)]) : static_cast<uint64_t>(i);
            words[i] = row_key << plan.position_bits_ | position;
        }
        // relaxed, here and below: parallel_for orders these before the loads that follow it.
        if (!ascending) sorted.store(false, std::memory_order_relaxed);
        for (uint64_t seen = low.load(std::memory_order_relaxed);
             piece_low < seen && !low.compare_exchange_weak(seen, piece_low, std::memory_order_relaxed);) {
        }
        for (uint64_t seen = high.load(std::memory_order_relaxed);
             piece_high > seen && !high.compare_exchange_weak(seen, piece_high, std::memory_order_relaxed);) {
        }
    });
    if (bad >= 0)
        throw ConfigError("rows must be in [0, " + std::to_string(layout.num_rows()) + ") (got " +
                          std::to_string(rows[static_cast<size_t>(bad.load())]) + " at position " +
                          std::to_string(bad.load()) + ")");
    if (!sorted) {
        const WordArray spare(static_cast<size_t>(count));
        sort_words(words, spare.data(), count, plan.position_bits_, low, high, pool);
    }

    auto pieces = plan.pieces(layout);
    for_pieces(pool, static_cast<int64_t>(pieces.size()), 1, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) plan.add_rows(layout, limits, pieces[static_cast<size_t>(i)]);
    });
    size_t total = 0;
    for (const auto& piece : pieces) {
        plan.num_unique_ += piece.unique;
        total += piece.reads.size();
    }
    if (pieces.size() == 1) {
        plan.reads_ = std::move(pieces[0].reads);
    } else {
        plan.reads_.reserve(total);
        // Stripes take turns, so that every drive has work from the first read to the last.
        struct Cursor {
            size_t piece, end, read;
        };
        std::vector<Cursor> files;
        for (size_t i = 0; i < pieces.size(); ++i) {
            if (i == 0 || pieces[i].file != pieces[i - 1].file) files.push_back({i, i, 0});
            files.back().end = i + 1;
        }
        while (plan.reads_.size() < total)
            for (Cursor& at : files) {
                while (at.piece < at.end && at.read == pieces[at.piece].reads.size()) ++at.piece, at.read = 0;
                if (at.piece < at.end) plan.reads_.push_back(pieces[at.piece].reads[at.read++]);
            }
    }
    for (const Read& read : plan.reads_) plan.bytes_ += read.length;
    return plan;
}

}  // namespace gids::storage
