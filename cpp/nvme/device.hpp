// What the controller code needs from the outside: registers, doorbells, and memory that the drive can reach.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "nvme_spec.cuh"

namespace gids::nvme {

// Memory with bus addresses: `view().iova(offset)` is where the drive finds bytes()[offset]. Page aligned, zeroed.
class DmaMemory {
public:
    virtual ~DmaMemory() = default;
    virtual std::span<std::byte> bytes() const = 0;
    virtual DmaView view() const = 0;
    // What it had to do without and why, e.g. "4 KiB pages: no huge pages reserved"; empty when nothing.
    virtual std::string notes() const = 0;
    // The drive may still write here: never hand the memory to anyone else, not even when this object goes.
    virtual void abandon() = 0;
};

// One NVMe function: BAR 0 and DMA. Every call is safe from several threads.
class Device {
public:
    virtual ~Device() = default;
    virtual std::string name() const = 0;
    // All ones from a register mean that the function has left the bus.
    virtual uint32_t read32(uint32_t offset) = 0;
    virtual uint64_t read64(uint32_t offset) = 0;
    virtual void write32(uint32_t offset, uint32_t value) = 0;
    virtual void write64(uint32_t offset, uint64_t value) = 0;
    // Where a thread (or a GPU, if the BAR is mapped for it) stores to ring the doorbell at this BAR offset. Asked for
    // again after a reset and before its queue is created anew: the register is then at 0.
    virtual uint32_t* doorbell(uint32_t offset) = 0;
    // Carries doorbell stores to the device where a store alone does not. Called in every polling loop.
    virtual void pump() {}
    // Contiguous on the bus, because queues must be.
    virtual std::unique_ptr<DmaMemory> allocate(uint64_t bytes) = 0;
    // Makes memory of the caller reachable for the drive, for as long as the result lives; null where that cannot be.
    virtual std::unique_ptr<DmaMemory> map(std::span<std::byte>) { return nullptr; }
};

}  // namespace gids::nvme
