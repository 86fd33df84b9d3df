// One group of rows being read: its plan, where the rows go, and how it ends.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <memory>
#include <mutex>
#include <span>
#include <string>

#include "storage/plan.hpp"
#include "storage/watch.hpp"

namespace gids::storage {

// Why a job failed: a StorageError in parts. An exception object shared by two threads would be counted inside
// libstdc++, where ThreadSanitizer cannot see that the counting is atomic.
struct Failure {
    std::string what, path;
    uint64_t offset = 0, length = 0;
    int error_number = 0;
};

// Ends exactly once: done, failed or cancelled. After wait() or cancel() returned, nothing writes to `out` any more,
// unless the job was abandoned: then its memory must never be used for anything else.
class Job {
public:
    static constexpr uint64_t kPage = 4096;

    Job(ReadPlan plan, std::byte* out, uint64_t row_bytes, std::shared_ptr<Watch> watch);

    const ReadPlan& plan() const { return plan_; }
    void begin() { begun_.store(true, std::memory_order_relaxed); }  // relaxed: a hint for deadlines
    bool running() const { return state_.load(std::memory_order_relaxed) == State::kRunning; }  // relaxed: a hint

    // Where the device itself may put the bytes of `read`: they are a page of one row, and fill a page of `out`. Null
    // where they have to be copied. Shorter reads are: pinning memory for one costs what the copy does; longer ones
    // too: they are up to a third faster by way of staging, which is in the caches when a virtual disk writes to it. A
    // page that is shared with other rows must not be read into: before Linux 6.3, a fork and a write to it lose the
    // data.
    std::byte* place_of(const TableLayout& layout, const Read& read) const;
    // Copies the rows that `read` serves from `data` (the byte at read.offset) to where they belong.
    void copy_out(const TableLayout& layout, const Read& read, const std::byte* data) const;
    // The same through the kernel, for memory that may be gone. False when some of it is.
    bool copy_out_guarded(const TableLayout& layout, const Read& read, const std::byte* data) const;

    // Brings the first row of a read that is copied soon closer to the processor.
    void prefetch_first(const TableLayout& layout, const Read& read, const std::byte* data) const;

    // Brackets around copy_out, and around reads to place_of(): false when the job has ended, and then `out` must not
    // be touched.
    bool begin_copy();
    void end_copy(uint64_t reads);
    // In place of end_copy(): a read to place_of() did not come back, so `out` may still change, at any time.
    void abandon();
    bool abandoned() const { return abandoned_.load(); }

    void fail(Failure failure);
    void cancel();
    // True when the job has ended; throws StorageError if it failed or was cancelled. Who waits keeps the deadline
    // where the I/O thread cannot, because it is blocked in the kernel.
    bool wait_for(std::chrono::milliseconds limit);
    // seq_cst: pairs with begin_copy, so that an ended job without copiers stays untouched.
    bool ended() const { return state_.load() != State::kRunning && (copying_.load() == 0 || let_go_.load()); }

private:
    enum class State { kRunning, kDone, kFailed, kCancelled };
    void finish(State state, Failure failure);
    void give_up_if_blocked();
    void let_go();
    static uint64_t origin(const TableLayout& layout, const Read& read);

    const ReadPlan plan_;
    std::byte* const out_;
    const std::shared_ptr<Watch> watch_;
    bool streams_ = false;  // rows are written past the caches
    std::atomic<State> state_{State::kRunning};
    std::atomic<uint64_t> remaining_;  // reads whose rows are not yet in place
    std::atomic<int> copying_{0};      // brackets that are open
    std::atomic<bool> abandoned_{false};
    std::atomic<bool> let_go_{false};  // brackets nobody waits for are open; one orphaned read until they close
    std::atomic<bool> begun_{false};   // a thread has claimed reads of it
    std::atomic<int64_t> progress_;    // when rows arrived last, in ticks of Watch::Clock
    std::mutex mutex_;
    std::condition_variable changed_;
    Failure failure_;  // guarded by mutex_
};

}  // namespace gids::storage
