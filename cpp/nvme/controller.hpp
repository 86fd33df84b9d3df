// An NVMe controller brought up in userspace: reset, admin queue, identify, I/O queues, abort, shutdown. No step waits
// longer than the time it was given.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "nvme/device.hpp"
#include "nvme_spec.cuh"

namespace gids::nvme {

struct NamespaceInfo {
    uint32_t nsid;
    uint64_t blocks;
    uint32_t block_bits;
    uint32_t metadata_bytes;  // per block; gids reads only namespaces that have none
};

struct ControllerInfo {
    std::string serial, model, firmware;
    uint64_t max_transfer_bytes;  // MDTS; the largest uint64 where the controller sets no limit
    uint32_t max_queue_entries;   // CAP.MQES + 1
    uint32_t doorbell_stride;     // CAP.DSTRD
    uint32_t page_bits;           // CC.MPS as set
    uint32_t io_queues;           // pairs that the controller granted
    std::vector<NamespaceInfo> namespaces;
};

// What the controller's status register says about its health.
enum class Health { kReady, kNotReady, kFatal, kGone };

class Controller {
public:
    using Milliseconds = std::chrono::milliseconds;

    // Resets and enables the controller and identifies it. `queues`: I/O queue pairs to ask for.
    Controller(std::shared_ptr<Device> device, uint32_t queues, Milliseconds admin_timeout);
    ~Controller();
    Controller(const Controller&) = delete;
    Controller& operator=(const Controller&) = delete;

    const ControllerInfo& info() const { return info_; }
    Device& device() { return *device_; }
    Health health();

    // Disables the controller and enables it again. After it returns no command of before is known to the drive:
    // CSTS.RDY was seen at 0, and a controller does not touch host memory in that state. Throws StorageError otherwise.
    void reset();
    // Creates completion and submission queue `queue` at these bus addresses, `depth` entries each.
    void create_pair(uint32_t queue, uint32_t depth, uint64_t sq_iova, uint64_t cq_iova);
    void delete_pair(uint32_t queue);
    // Asks the drive to give up a command. True if it says that it did.
    bool abort(uint32_t queue, uint32_t id);
    // Tells the drive that power may go; false when it did not confirm in time.
    bool shutdown() noexcept;
    // Stops the controller for good. True when it has confirmed, and so writes to memory no more. Idempotent.
    bool disable() noexcept;

private:
    struct Answer {
        uint32_t status, result;
    };
    Answer admin(Command command);  // throws StorageError when no answer comes in time
    Answer checked(const char* what, const Command& command);
    void enable();
    bool wait_ready(bool ready, Milliseconds limit);
    void identify(uint32_t queues);
    [[noreturn]] void fail(const std::string& what, int error_number) const;

    std::shared_ptr<Device> device_;
    std::mutex admin_mutex_;
    Milliseconds admin_timeout_;
    Milliseconds ready_timeout_{0};
    std::unique_ptr<DmaMemory> memory_;  // admin rings and one data page
    Command* sq_ = nullptr;
    Completion* cq_ = nullptr;
    std::byte* data_ = nullptr;
    uint64_t data_iova_ = 0;
    uint32_t tail_ = 0, head_ = 0, next_id_ = 0;
    bool disabled_ = false;
    uint32_t* sq_doorbell_ = nullptr;
    uint32_t* cq_doorbell_ = nullptr;
    ControllerInfo info_{};
};

}  // namespace gids::nvme
