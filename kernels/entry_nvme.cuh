// Entry points of the NVMe queue pair: queue reads, and later wait for them. One warp takes 32 reads at a time.
#pragma once

#include "entry.cuh"
#include "nvme_read.cuh"

namespace gids::nvme {

// Reads [range[0], range[1]) of a set, or its first `count` where range is null.
GIDS_DEVICE ReadSet part_of(const Read* reads, uint32_t* results, const int64_t* range, uint32_t count) {
    if (range == nullptr) return {reads, results, count};
    return {reads + range[0], results + range[0], static_cast<uint32_t>(range[1] - range[0])};
}

}  // namespace gids::nvme

// results[i] becomes not 0 when read i is settled (see ReadSet); reads that a full queue delays are queued as ids
// return.
GIDS_WIDE_KERNEL nvme_submit(const gids::nvme::DriveRef* drives, const gids::nvme::Read* reads, gids::uint32_t* results,
                             const gids::int64_t* range, gids::uint32_t count, gids::uint64_t timeout_ns) {
    const gids::Group<32> warp;
    submit_reads(warp, drives, gids::nvme::part_of(reads, results, range, count),
                 static_cast<gids::uint32_t>(group_index(warp)), static_cast<gids::uint32_t>(group_count(warp)),
                 gids::nvme::DeviceClock{}, timeout_ns);
}
GIDS_REGISTER(nvme_submit)

// Takes a warp for each queue of the drives, and at least one more.
GIDS_WIDE_KERNEL nvme_poll(const gids::nvme::DriveRef* drives, gids::uint32_t num_drives, const gids::nvme::Read* reads,
                           gids::uint32_t* results, const gids::int64_t* range, gids::uint32_t count,
                           gids::uint64_t timeout_ns, gids::nvme::Outcome* outcome) {
    const gids::Group<32> warp;
    poll_reads(warp, drives, num_drives, gids::nvme::part_of(reads, results, range, count), *outcome,
               static_cast<gids::uint32_t>(group_index(warp)), static_cast<gids::uint32_t>(group_count(warp)),
               gids::nvme::DeviceClock{}, timeout_ns);
}
GIDS_REGISTER(nvme_poll)
