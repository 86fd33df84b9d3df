// Rows of one table for any number of threads: those that wait at the same time are served by one pass over the file,
// in which each byte is read once however many of them ask for it.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <span>

#include "sampling/buffer.hpp"
#include "storage/reader.hpp"

namespace gids {

class Sweeps {
public:
    struct Options {
        int64_t row_bytes;
        int64_t most_rows;  // of all passes that run; a single request may have more, alone
        int at_once;        // passes that run at the same time; who comes later waits, and shares the next one
    };

    // What a request got: its rows one after the other, in its order.
    class Rows {
    public:
        const std::byte* data() const { return frames_ ? frames_->data() + offset_ : nullptr; }

    private:
        friend class Sweeps;
        std::shared_ptr<Array<std::byte>> frames_;  // of the whole pass
        int64_t offset_ = 0;
    };

    // reader must outlive this.
    Sweeps(storage::Reader& reader, Options options) : reader_(reader), options_(options) {}

    // rows: of Buffer::Of::kProcess, for a pass may give them back on another's thread. Throws StorageError where a
    // read fails that these rows need. check_interrupt: called while waiting, about ten times a second; may throw, or
    // be empty.
    Rows read(Array<int64_t> rows, const std::function<void()>& check_interrupt);

    // Rows that a request should have at most, so that as many passes run at once as may.
    int64_t most_of_one() const { return options_.most_rows / options_.at_once; }
    uint64_t requests() const { return requests_.load(std::memory_order_relaxed); }  // relaxed: a count
    uint64_t passes() const { return passes_.load(std::memory_order_relaxed); }      // relaxed: a count

private:
    // One thread's rows. The pass that serves it may outlive the thread's interest, hence the shared ownership.
    struct Request {
        std::shared_ptr<Array<int64_t>> owner;
        std::span<const int64_t> rows;  // of owner
        Rows result;
        bool taken = false;  // by a pass
        bool done = false;
        bool failed = false;
        storage::Failure failure;
    };
    using Requests = std::span<const std::shared_ptr<Request>>;

    bool fits(const Request& request, int64_t beside) const;
    void lead(std::unique_lock<std::mutex>& lock, const std::shared_ptr<Request>& mine,
              const std::function<void()>& check_interrupt);
    void pass_or_fail(Requests requests, const std::function<void()>& check_interrupt);
    void pass(Requests requests, const std::function<void()>& check_interrupt);

    storage::Reader& reader_;
    const Options options_;
    std::mutex mutex_;
    std::condition_variable changed_;
    std::deque<std::shared_ptr<Request>> waiting_;  // guarded by mutex_
    int running_ = 0;                               // guarded by mutex_; passes
    int64_t under_way_ = 0;                         // guarded by mutex_; rows of these
    std::atomic<uint64_t> requests_{0}, passes_{0};
};

}  // namespace gids
