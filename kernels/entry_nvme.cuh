// Entry points of the NVMe queue pair: queue a plan's reads, and later wait for them. One warp takes 32 reads at a
// time.
#pragma once

#include "entry.cuh"
#include "nvme_read.cuh"

// results[i] becomes not 0 when read i is settled (see ReadSet); reads that a full queue delays are queued as ids
// return.
GIDS_WIDE_KERNEL nvme_submit(const gids::nvme::DriveRef* drives, const gids::nvme::Read* reads, gids::uint32_t* results,
                             gids::uint32_t count, gids::uint64_t timeout_ns) {
    const gids::Group<32> warp;
    submit_reads(warp, drives, {reads, results, count}, static_cast<gids::uint32_t>(group_index(warp)),
                 static_cast<gids::uint32_t>(group_count(warp)), gids::nvme::DeviceClock{}, timeout_ns);
}
GIDS_REGISTER(nvme_submit)

// Adds to *unsettled the number of warps that gave up: 0 means that every read of the set is settled.
GIDS_WIDE_KERNEL nvme_poll(const gids::nvme::DriveRef* drives, const gids::nvme::Read* reads, gids::uint32_t* results,
                           gids::uint32_t count, gids::uint64_t timeout_ns, gids::uint32_t* unsettled) {
    const gids::Group<32> warp;
    const bool settled =
        poll_reads(warp, drives, {reads, results, count}, static_cast<gids::uint32_t>(group_index(warp)),
                   static_cast<gids::uint32_t>(group_count(warp)), gids::nvme::DeviceClock{}, timeout_ns);
    // relaxed: read by the host after the kernel has ended.
    if (!settled && warp.lane() == 0)
        gids::atomic_ref<gids::uint32_t>(*unsettled).fetch_add(1u, gids::memory_order_relaxed);
}
GIDS_REGISTER(nvme_poll)
