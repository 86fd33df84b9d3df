// A drive in use: its controller, the queue pairs that threads own, and the watchdog that ends what does not end
// itself.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "nvme/controller.hpp"
#include "nvme/queue_memory.hpp"

namespace gids::nvme {

struct DriveOptions {
    uint32_t depth = 256;  // entries of a queue pair; rounded down to a power of two and to what the drive allows
    uint32_t pairs = 4;    // I/O queue pairs to ask for; one per I/O thread and reader
    uint32_t max_io_bytes = 128 << 10;
    std::chrono::milliseconds timeout{10'000};       // from a request's first submission to its answer
    std::chrono::milliseconds admin_timeout{2'000};  // for each step of setting up and of recovery

    void check() const;
};

struct DriveStats {
    uint64_t timeouts = 0;  // commands that were not answered in time
    uint64_t aborted = 0;   // of those, commands that the drive says it gave up
    uint64_t resets = 0;    // controller resets that succeeded
    uint64_t spurious = 0, late = 0;
};

uint64_t now_ns();

// One queue pair. Its owner takes `mutex` for every use; while the watchdog recovers the drive it holds all of them.
struct QueuePair {
    explicit QueuePair(const QueueShape& shape) : state(shape) {}

    struct Failure {  // a command that the watchdog ended
        uint64_t user;
        int error_number;
        std::string reason;
    };

    std::timed_mutex mutex;
    QueueState state;  // everything below is guarded by mutex
    QueueRef ref{};
    uint32_t id = 0;
    std::unique_ptr<DmaMemory> rings, data;
    uint64_t bytes_per_id = 0;      // 0: data goes to the owner's memory, which `data` maps
    std::vector<Failure> failures;  // for the owner to take
    std::string closed_reason;      // not empty: the pair is of no use any more
    int closed_error = 0;
    // Kernels that may be using the pair; the watchdog waits for them to leave before it touches the state. Not
    // guarded.
    std::atomic<int> kernels{0};
    // A GPU drives it: what only submitters touch is in the GPU's memory, and a copy of state.own() only until the
    // first use. Its clock is not ours: a command's age counts from when the watchdog first saw it.
    bool on_device = false;
    uint64_t restarts = 0;                                  // times that the state began anew
    std::vector<std::pair<uint32_t, uint64_t>> first_seen;  // per id: slot word, and our time
    std::atomic<bool> released{false};                      // its owner is gone; not guarded
};

class Drive {
public:
    Drive(std::shared_ptr<Device> device, const DriveOptions& options);
    ~Drive();
    Drive(const Drive&) = delete;
    Drive& operator=(const Drive&) = delete;

    std::string name() const { return device_->name(); }
    const ControllerInfo& info() const { return controller_->info(); }
    const NamespaceInfo& find_namespace(uint32_t nsid) const;
    const DriveOptions& options() const { return options_; }
    Device& device() { return *device_; }
    Controller& controller() { return *controller_; }
    uint32_t depth() const { return depth_; }

    // A pair of at most `ids` commands in flight. With `target` the data goes there if the device can map it, else to
    // buffers of the pair. Throws ConfigError when every I/O queue is taken, StorageError when the drive is closed.
    std::shared_ptr<QueuePair> open_pair(uint32_t ids, std::span<std::byte> target);
    // Gives a pair back. What is still in flight after a moment is left to the watchdog, which deletes the queue when
    // the last command has ended or was ended.
    void release_pair(const std::shared_ptr<QueuePair>& pair);

    // One blocking read, for superblocks and tests. `bytes` a multiple of the block.
    std::vector<std::byte> read(uint32_t nsid, uint64_t lba, uint64_t bytes);

    // What the drive had to do without, e.g. huge pages; empty when nothing.
    std::string notes();
    // Empty while the drive can be used.
    std::string closed_reason();
    DriveStats stats();
    // Ends everything in flight, deletes the queues, shuts the drive down. Idempotent.
    void close();

private:
    void watch();
    void recover(const std::string& reason, int error_number);
    void close_locked(const std::string& reason, int error_number);
    void create(QueuePair& pair);
    // Moves what is in flight to `failures`; poisons what is past its deadline. Caller holds pair.mutex.
    void fail_in_flight(QueuePair& pair, const std::string& reason, int error_number);
    bool expired(QueuePair& pair);
    // Whether the command of an id, whose slot reads `word`, is in flight for longer than the time-out.
    bool is_late(QueuePair& pair, uint32_t id, uint32_t word) const;
    bool kernels_left() const;
    // Deletes a released pair once nothing is in flight. Caller holds mutex_.
    bool retire(const std::shared_ptr<QueuePair>& pair);

    const std::shared_ptr<Device> device_;
    const DriveOptions options_;
    std::unique_ptr<Controller> controller_;
    uint32_t depth_ = 0;
    std::mutex mutex_;                               // before any pair's mutex
    std::vector<std::shared_ptr<QueuePair>> pairs_;  // guarded by mutex_; index + 1 is the queue id; null where free
    std::string closed_reason_;                      // guarded by mutex_
    DriveStats stats_;                               // guarded by mutex_
    bool stopping_ = false;                          // guarded by mutex_
    std::condition_variable wake_;
    std::thread watchdog_;
};

}  // namespace gids::nvme
