// Entry points that make a group's commands of its rows, and take the rows out of what was read. Nothing of the plan
// leaves the device but how many commands and bytes there are.
#pragma once

#include "entry.cuh"
#include "entry_scan.cuh"
#include "gather.cuh"
#include "nvme_plan.cuh"

// Prefix sums of what each row adds: commands and bytes, packed. *bad is set by a row that its file's map has not.
GIDS_KERNEL nvme_count_reads(const gids::nvme::TablePlan* table, const gids::int64_t* rows, gids::int64_t count,
                             gids::int64_t* within, gids::int64_t* before, gids::int64_t* total, gids::uint32_t* bad,
                             gids::uint32_t* turnstile) {
    const auto share_of = [&](gids::int64_t i) {
        const gids::nvme::RowSpans spans(*table, rows[i]);
        // relaxed: any row that is not there sets it; the host reads it after the kernel.
        if (spans.bytes < spans.lead + table->row_bytes)
            gids::atomic_ref<gids::uint32_t>(*bad).store(1u, gids::memory_order_relaxed);
        return pack_share(*table, gids::nvme::Share(*table, rows, i, spans));
    };
    gids::scan_values(share_of, count, within, before, total, turnstile);
}
GIDS_REGISTER(nvme_count_reads)

// Of each command where it reads and, in `targets`, at which byte of what the group reads its data begins; of each row
// at which byte its own begin, in `at`.
GIDS_KERNEL nvme_place_reads(const gids::nvme::TablePlan* table, const gids::int64_t* rows, gids::int64_t count,
                             const gids::int64_t* within, const gids::int64_t* before, const gids::int64_t* total,
                             gids::nvme::Read* reads, gids::int64_t* targets, gids::int64_t* at) {
    const gids::Prefix sums{within, before, total, count};
    const gids::Group<1> lane;
    for (gids::int64_t i = group_index(lane); i < count; i += group_count(lane)) {
        const gids::nvme::RowSpans spans(*table, rows[i]);
        const gids::nvme::Share share(*table, rows, i, spans);
        const gids::int64_t packed = sums[i];
        const auto base = static_cast<gids::int64_t>(packed_bytes(*table, packed)) + share.shift;
        at[i] = base + static_cast<gids::int64_t>(spans.lead);
        auto command = static_cast<gids::int64_t>(gids::nvme::packed_commands(packed));
        bool skip = share.joined;
        const auto place = [&](const gids::nvme::Span& span, gids::uint64_t bytes) {
            if (skip) {
                skip = false;
                return;
            }
            targets[command] = base + static_cast<gids::int64_t>(bytes);
            gids::nvme::Read& read = reads[command++];
            read.lba = span.at >> block_bits_of(*table, span.drive, span.nsid);
            read.nsid = span.nsid;
            read.drive = span.drive;
        };
        const gids::nvme::RowSpans again(*table, rows[i], place);
    }
}
GIDS_REGISTER(nvme_place_reads)

// Lengths and places of the commands, which end where the next begins; ranges[r] is the first of round r. Rounds take
// the parts of the staging memory in turn, the group's first one part number `first_part`.
GIDS_KERNEL nvme_split_reads(const gids::nvme::TablePlan* table, gids::nvme::Read* reads, const gids::int64_t* targets,
                             gids::int64_t count, gids::int64_t bytes, gids::uint64_t first_part, gids::int64_t rounds,
                             gids::int64_t* ranges) {
    const auto round_bytes = static_cast<gids::int64_t>(table->round_bytes());
    const gids::Group<1> lane;
    for (gids::int64_t i = group_index(lane); i < count; i += group_count(lane)) {
        const gids::int64_t target = targets[i], round = target / round_bytes;
        const auto length = static_cast<gids::uint32_t>((i + 1 < count ? targets[i + 1] : bytes) - target);
        gids::nvme::Read& read = reads[i];
        const gids::uint64_t part = (first_part + static_cast<gids::uint64_t>(round)) % table->parts;
        read.offset = part * table->part_bytes + static_cast<gids::uint64_t>(target - round * round_bytes);
        read.bytes = length;
        read.blocks = length >> block_bits_of(*table, read.drive, read.nsid);
        for (gids::int64_t r = i == 0 ? 0 : targets[i - 1] / round_bytes + 1; r <= round; ++r) ranges[r] = i;
        if (i + 1 == count)
            for (gids::int64_t r = round + 1; r <= rounds; ++r) ranges[r] = count;
    }
}
GIDS_REGISTER(nvme_split_reads)

// Copies what round `round` brought of each row to its place: row i to out + i * row_bytes.
GIDS_KERNEL nvme_unpack_rows(const gids::nvme::TablePlan* table, const gids::uint8_t* staging,
                             const gids::int64_t* targets, gids::int64_t commands, gids::int64_t bytes,
                             gids::uint64_t first_part, gids::int64_t round, const gids::int64_t* ranges,
                             const gids::int64_t* at, gids::int64_t count, gids::uint8_t* out) {
    const auto row_bytes = static_cast<gids::int64_t>(table->row_bytes);
    if (ranges[round] >= ranges[round + 1]) return;
    const gids::int64_t begin = targets[ranges[round]];
    const gids::int64_t end = ranges[round + 1] < commands ? targets[ranges[round + 1]] : bytes;
    const gids::uint64_t part = (first_part + static_cast<gids::uint64_t>(round)) % table->parts;
    const gids::uint8_t* const from =
        staging + part * table->part_bytes - round * static_cast<gids::int64_t>(table->round_bytes());
    const gids::Group<32> warp;
    // The first row of which something was read: the one before may end in this round.
    const gids::int64_t first = gids::nvme::lower_bound(at, count, begin - row_bytes + 1);
    for (gids::int64_t i = first + group_index(warp); i < count && at[i] < end; i += group_count(warp)) {
        const gids::int64_t from_byte = at[i] < begin ? begin : at[i];
        const gids::int64_t to_byte = at[i] + row_bytes < end ? at[i] + row_bytes : end;
        gids::copy_row(warp, out + i * row_bytes + (from_byte - at[i]), from + from_byte, to_byte - from_byte);
    }
}
GIDS_REGISTER(nvme_unpack_rows)
