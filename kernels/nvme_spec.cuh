// The parts of the NVMe base specification (1.4) that gids speaks: command and completion layout, status words, PRPs.
#pragma once

#include "exec.cuh"

namespace gids::nvme {

// A submission queue entry. Reads are the only I/O command that gids ever builds: the I/O path cannot write a drive.
struct alignas(64) Command {
    uint32_t dw[16];
};
static_assert(sizeof(Command) == 64, "submission queue entries are 64 bytes");

// dw[2] = head of the submission queue | queue id << 16; dw[3] = command id | phase << 16 | status << 17.
struct alignas(16) Completion {
    uint32_t dw[4];
};
static_assert(sizeof(Completion) == 16, "completion queue entries are 16 bytes");

inline constexpr uint32_t kOpcodeRead = 0x02;
inline constexpr uint32_t kMaxBlocksPerCommand = 65536;  // the field is 16 bits wide and counts from zero

GIDS_DEVICE uint32_t completion_id(uint32_t dw3) { return dw3 & 0xffffu; }
GIDS_DEVICE uint32_t completion_phase(uint32_t dw3) { return (dw3 >> 16) & 1u; }

// The 15 status bits of a completion as hosts print them: code, type << 8, more << 13, do-not-retry << 14.
GIDS_DEVICE uint32_t completion_status(uint32_t dw3) { return dw3 >> 17; }
GIDS_DEVICE uint32_t status_code(uint32_t status) { return status & 0xffu; }
GIDS_DEVICE uint32_t status_type(uint32_t status) { return (status >> 8) & 7u; }
GIDS_DEVICE bool status_do_not_retry(uint32_t status) { return (status >> 14) & 1u; }

// Byte offset of a doorbell in BAR 0. CAP.DSTRD gives the distance between doorbells as 4 << stride bytes.
GIDS_DEVICE uint32_t submission_doorbell(uint32_t queue, uint32_t stride) {
    return 0x1000u + 2u * queue * (4u << stride);
}
GIDS_DEVICE uint32_t completion_doorbell(uint32_t queue, uint32_t stride) {
    return 0x1000u + (2u * queue + 1u) * (4u << stride);
}

// Bus addresses of one region of memory: contiguous (IOMMU), or page by page where the mapping gives no other choice.
struct DmaView {
    uint64_t base;          // address of offset 0 when `pages` is null
    const uint64_t* pages;  // address of every page of 1 << page_bits bytes, or null
    uint32_t page_bits;

    GIDS_DEVICE uint64_t iova(uint64_t offset) const {
        if (pages == nullptr) return base + offset;
        return pages[offset >> page_bits] + (offset & ((1ull << page_bits) - 1));
    }
};

// One read: `blocks` logical blocks from `lba` of namespace `nsid` into `offset` of the queue's data region.
struct Read {
    uint64_t lba;
    uint64_t offset;  // a multiple of 4: PRP entries address double words
    uint32_t blocks;
    uint32_t bytes;  // blocks << the namespace's block bits
    uint32_t nsid;
    uint32_t drive;  // which drive of several, for the functions that hold more than one
};

struct Prp {
    uint64_t first, second;
};

// Describes `bytes` bytes at `offset` of `data` in controller pages. `list` is the command's own preallocated page,
// known to the drive as `list_iova`; it is written only when the transfer touches more than two pages. Its entries
// number at most page/8, which the caller guarantees by clamping bytes to kMaxListPages pages.
GIDS_DEVICE Prp make_prp(const DmaView& data, uint64_t offset, uint32_t bytes, uint32_t page_bits, uint64_t* list,
                         uint64_t list_iova) {
    const uint64_t page = 1ull << page_bits;
    const uint64_t start = data.iova(offset);
    const uint64_t in_first = page - (start & (page - 1));
    if (bytes <= in_first) return {start, 0};
    const uint64_t rest = bytes - in_first;
    const uint64_t next = offset + in_first;
    if (rest <= page) return {start, data.iova(next)};
    uint32_t entries = 0;
    for (uint64_t done = 0; done < rest; done += page) list[entries++] = data.iova(next + done);
    return {start, list_iova};
}

// The largest transfer that one list page describes whatever the buffer's offset in its first page.
GIDS_DEVICE uint32_t max_listed_bytes(uint32_t page_bits) {
    return page_bits > 16 ? 1u << 31 : (1u << page_bits) / 8u * (1u << page_bits);
}

}  // namespace gids::nvme
