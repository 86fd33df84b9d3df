// One I/O thread: its queue, its staging, and the loop that keeps the queue full.
#pragma once

#include <chrono>
#include <memory>
#include <mutex>
#include <vector>

#include "storage/reader.hpp"
#include "storage/staging.hpp"

namespace gids::storage {

class IoThread : public std::enable_shared_from_this<IoThread> {
public:
    IoThread(std::shared_ptr<ReaderCore> core, size_t number, uint64_t staging_bytes, unsigned depth);
    void run();

private:
    using Clock = std::chrono::steady_clock;

    struct Slot {  // one request; its index is the request's tag
        std::shared_ptr<Job> job;
        const Read* read = nullptr;
        std::byte* buffer = nullptr;
        uint32_t length = 0;  // of the read, which is gone with the job when a stuck request comes back
        uint32_t done = 0;    // bytes that arrived in earlier, short completions
        Clock::time_point since;
        bool busy = false;    // with the device
        bool placed = false;  // straight to its row: the buffer is no staging, and a bracket of the job is open
        bool stuck = false;   // out of time: the job has failed, and the buffer stays the device's
    };
    struct Arrived {  // a complete read whose rows are not yet copied
        std::shared_ptr<Job> job;
        const Read* read;
        const std::byte* data;  // null: the rows are in place
        std::byte* buffer;      // to be given back to the staging, if any
    };

    void refill();
    bool claim();
    void fail_waiting();
    void receive(const IoCompletion& completion);
    void fail(Slot& slot, const std::string& what, int error_number);
    void release(uint32_t index);
    void set_stuck(Slot& slot);
    void hand_out_copies();
    void copy(std::vector<Arrived>& arrived);
    void copy_guarded(Job& job, const Arrived& item);
    bool help_copying();
    void check_timeouts();
    bool idle_wait();
    void shut_down();
    size_t wanted() const;

    const std::shared_ptr<ReaderCore> core_;
    const size_t number_;
    std::unique_ptr<Staging> staging_;  // null where the engine needs none
    std::unique_ptr<Queue> queue_;
    const Clock::duration timeout_;
    const bool pooled_;
    const bool places_;   // the device may put rows in place
    const int home_cpu_;  // where a lone I/O thread begins its work; -1: anywhere

    // in_flight_ + free_.size() == slots_.size(); stuck_ <= in_flight_
    std::vector<Slot> slots_;
    std::vector<uint32_t> free_;
    size_t in_flight_ = 0, stuck_ = 0;
    uint64_t in_flight_bytes_ = 0;  // of the reads in those slots
    std::vector<IoRequest> requests_;
    std::vector<IoCompletion> completions_;
    std::vector<Arrived> arrived_;  // since the last reap
    Clock::time_point now_, next_check_;

    // The reads this thread has claimed and not yet submitted.
    std::shared_ptr<Job> claimed_;
    size_t claim_next_ = 0, claim_end_ = 0;

    ReaderStats counted_;  // since the last reap

    std::mutex copies_mutex_;
    std::condition_variable copies_changed_;
    std::vector<std::vector<Arrived>> copies_;  // guarded by copies_mutex_: batches that anyone may copy
    std::vector<std::byte*> returned_;          // guarded by copies_mutex_: buffers whose rows were copied
    size_t copiers_ = 0;                        // guarded by copies_mutex_: batches being copied by other threads
};

}  // namespace gids::storage
