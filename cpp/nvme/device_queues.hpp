// Queue pairs for kernels: what the entry points nvme_submit and nvme_poll are given, the memory that a GPU must see,
// and what of it is in the GPU's own.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "nvme/drive.hpp"
#include "nvme_read.cuh"

namespace gids::nvme {

class DeviceQueues {
public:
    // `pairs` queue pairs on each drive, each with up to `ids` commands in flight, over one data region that every
    // drive can write to.
    DeviceQueues(std::vector<std::shared_ptr<Drive>> drives, uint32_t pairs, uint32_t ids, uint64_t data_bytes);
    ~DeviceQueues();
    DeviceQueues(const DeviceQueues&) = delete;
    DeviceQueues& operator=(const DeviceQueues&) = delete;

    // Device memory: the DriveRefs, which kernels are given, the QueueRefs, and what only kernels touch of each pair.
    uint64_t device_bytes() const { return device_bytes_; }
    // What is to be copied there, at `base`, before the next launch: (offset, bytes). The first time all of it, later
    // the pairs that a recovery of their drive began anew; to be called after begin(), which keeps the watchdog away.
    std::vector<std::pair<uint64_t, std::vector<std::byte>>> images(uint64_t base);

    std::span<std::byte> data() const { return data_->bytes(); }
    uint32_t max_bytes() const { return max_bytes_; }

    // Host memory that kernels touch, each region whole pages; `registers` is a drive's BAR, which needs another flag.
    struct Region {
        std::byte* address;
        uint64_t bytes;
        bool registers;
    };
    std::vector<Region> regions() const;

    // Kernels that use the queues, from before their launch until they have ended: the watchdog takes no queue away
    // meanwhile. The driver calls `ended` in the stream behind them; what it does not call, as after a failure of the
    // device, the host ends.
    class Run {
    public:
        explicit Run(DeviceQueues& queues) : queues_(queues) {}
        ~Run() { end(); }
        Run(const Run&) = delete;
        Run& operator=(const Run&) = delete;

        // For cuLaunchHostFunc: may be called on any thread, and calls nothing of the driver's.
        static void ended(void* run) { static_cast<Run*>(run)->end(); }
        std::uintptr_t function() const { return reinterpret_cast<std::uintptr_t>(&Run::ended); }
        std::uintptr_t address() const { return reinterpret_cast<std::uintptr_t>(this); }

        void end() {
            if (!ended_.exchange(true)) queues_.end();
        }
        bool has_ended() const { return ended_.load(); }

    private:
        DeviceQueues& queues_;
        std::atomic<bool> ended_{false};
    };
    // Throws StorageError when a drive is closed.
    std::unique_ptr<Run> begin();
    // Carries doorbells where a store alone does not reach the device.
    void pump();
    // What the watchdog ended since the last call: (user, errno, reason).
    std::vector<QueuePair::Failure> take_failures();

private:
    void release();
    void end();

    std::vector<std::shared_ptr<Drive>> drives_;
    std::unique_ptr<DmaMemory> data_;
    std::vector<std::vector<std::shared_ptr<QueuePair>>> pairs_;  // by drive
    std::vector<std::vector<uint64_t>> copied_;  // by pair: restarts + 1 when its state was copied; 0: never
    uint64_t table_bytes_ = 0, device_bytes_ = 0;
    uint32_t max_bytes_ = 0;
};

}  // namespace gids::nvme
