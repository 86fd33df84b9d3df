// From the rows of a group to commands of drives: where each row is, which reads are merged, where their bytes land.
//
// Rows are ascending. A row's bytes are one span of a drive, or several where a drive's part of the file ends, or a
// command would be too long. A span joins the last one of the row before where the gap is small and both begin in one
// window of the drive, so that no command is longer than the longest: whether it joins is known of two rows alone, and
// prefix sums number the commands and lay their data one behind the other. A row's bytes are then together in what was
// read, whatever it was cut into. Rounds are windows of that order, each as much as a part of the staging memory holds.
#pragma once

#include "file_map.cuh"
#include "nvme_spec.cuh"

namespace gids::nvme {

struct TableFile {
    FileView map;
    uint64_t data_offset;  // of the first row
};

struct Space {
    uint32_t nsid, block_bits;
};

// A table and how it is read; in device memory. Row r belongs to unit u = r / stripe_rows, which is in file u % files.
struct TablePlan {
    const TableFile* files;
    const Space* spaces;  // spaces_per_drive for each drive; nsid 0: none
    uint64_t num_files, spaces_per_drive, stripe_rows, row_stride, row_bytes;
    uint64_t block_bytes;   // of all namespaces; what is read begins and ends at multiples of it
    uint64_t gap_bytes;     // merged over
    uint64_t window_bytes;  // in which reads that are merged begin; 0: none is merged
    uint64_t max_bytes;     // of a command
    uint64_t part_bytes;    // of the staging memory, for one round
    uint64_t parts;         // of it, which rounds take in turn

    // A command that begins in a round's window ends in its part.
    GIDS_DEVICE uint64_t round_bytes() const { return part_bytes - max_bytes; }
};

// Bytes of a namespace that one command reads, before those of other rows join it.
struct Span {
    uint64_t at, bytes;
    uint32_t drive, nsid;

    GIDS_DEVICE uint64_t end() const { return at + bytes; }
};

// The spans of one row, in order.
struct RowSpans {
    Span first{}, last{};
    uint64_t count = 0, bytes = 0;
    uint64_t lead = 0;  // bytes of the first span before the row's own

    // emit(span, bytes of the row's spans before it); a row beyond its file's map has fewer bytes than it should.
    template <class Emit>
    GIDS_DEVICE RowSpans(const TablePlan& table, int64_t row, const Emit& emit) {
        const auto number = static_cast<uint64_t>(row);
        const uint64_t unit = number / table.stripe_rows;
        const TableFile& file = table.files[unit % table.num_files];
        const uint64_t local = unit / table.num_files * table.stripe_rows + number % table.stripe_rows;
        const uint64_t begin = file.data_offset + local * table.row_stride, block = table.block_bytes;
        const uint64_t from = begin / block * block, to = (begin + table.row_bytes + block - 1) / block * block;
        lead = begin - from;
        GIDS_ROLLED
        for (uint64_t at = from; at < to;) {
            const Place place = file.map.locate(at);
            if (place.run == 0) return;
            const uint64_t run = (place.run + block - 1) / block * block;  // the last block of a file is whole
            uint64_t length = to - at < run ? to - at : run;
            if (length > table.max_bytes) length = table.max_bytes;
            last = {place.drive_offset, length, place.drive, place.nsid};
            if (count == 0) first = last;
            emit(last, bytes);
            ++count;
            bytes += length;
            at += length;
        }
    }
    GIDS_DEVICE RowSpans(const TablePlan& table, int64_t row) : RowSpans(table, row, [](const Span&, uint64_t) {}) {}
};

// Whether `next` is read by the command that reads `span`, the last of the row before.
GIDS_DEVICE bool joins(const TablePlan& table, const Span& span, const Span& next) {
    return table.window_bytes != 0 && next.drive == span.drive && next.nsid == span.nsid && next.at >= span.at &&
           next.at <= span.end() + table.gap_bytes && next.at / table.window_bytes == span.at / table.window_bytes;
}

// What a row adds to the commands, and to the bytes that they read.
struct Share {
    uint64_t commands, bytes;
    bool joined;
    int64_t shift;  // where its first span begins, from the end of what the rows before read

    GIDS_DEVICE Share(const TablePlan& table, const int64_t* rows, int64_t i, const RowSpans& own)
        : commands(own.count), bytes(own.bytes), joined(false), shift(0) {
        if (i == 0 || own.count == 0) return;
        const RowSpans before(table, rows[i - 1]);
        if (before.count == 0 || !joins(table, before.last, own.first)) return;
        joined = true;
        --commands;
        shift = static_cast<int64_t>(own.first.at) - static_cast<int64_t>(before.last.end());
        bytes = static_cast<uint64_t>(static_cast<int64_t>(bytes) + shift);
    }
};

// Commands and bytes as one number, so that one prefix sum counts both.
inline constexpr int kBytesBits = 38;  // of what a group reads, in whole blocks of at least 512 bytes: 128 TiB
GIDS_DEVICE int64_t pack_share(const TablePlan& table, const Share& share) {
    return static_cast<int64_t>(share.commands << kBytesBits | share.bytes / table.block_bytes);
}
GIDS_DEVICE uint64_t packed_commands(int64_t packed) { return static_cast<uint64_t>(packed) >> kBytesBits; }
GIDS_DEVICE uint64_t packed_bytes(const TablePlan& table, int64_t packed) {
    return (static_cast<uint64_t>(packed) & ((uint64_t{1} << kBytesBits) - 1)) * table.block_bytes;
}

GIDS_DEVICE uint32_t block_bits_of(const TablePlan& table, uint32_t drive, uint32_t nsid) {
    const Space* spaces = table.spaces + drive * table.spaces_per_drive;
    for (uint64_t i = 0; i < table.spaces_per_drive; ++i)
        if (spaces[i].nsid == nsid) return spaces[i].block_bits;
    return 9;  // not reached: maps name namespaces that exist
}

// The first of `count` ascending numbers that is at least `value`.
GIDS_DEVICE int64_t lower_bound(const int64_t* numbers, int64_t count, int64_t value) {
    int64_t first = 0;
    for (int64_t last = count; first < last;) {
        const int64_t middle = first + (last - first) / 2;
        if (numbers[middle] < value) first = middle + 1;
        else last = middle;
    }
    return first;
}

}  // namespace gids::nvme
