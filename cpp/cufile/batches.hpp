// Byte ranges of files read into device memory in bulk: one call queues a plan's reads, and a thread keeps cuFile's
// batches full.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "cufile/library.hpp"

namespace gids::cufile {

// `length` bytes at `offset` of file number `file` go to `base` + `to`.
struct Range {
    uint32_t file;
    uint64_t offset, length, to;
};

// Ranges that were queued together. Ends once: done, failed or cancelled, when nothing of it is in flight any more;
// or abandoned, where cuFile did not say so in time.
class Job {
public:
    // True when it has ended; throws StorageError for the first range that failed, or when it was cancelled.
    bool wait_for(std::chrono::milliseconds limit);
    // Queues nothing more of it.
    void cancel();
    bool ended();
    // Whether memory may still be written to: then it must not be used for anything else.
    bool abandoned();

private:
    friend class Batches;
    struct Failure {
        std::string what, path;
        uint64_t offset, length;
        int error_number;
    };
    void settle(uint64_t ranges);                                // caller holds mutex_
    void fail(Failure failure);                                  // caller holds mutex_; the first counts
    bool over() const { return remaining_ == 0 || abandoned_; }  // caller holds mutex_

    std::byte* base_ = nullptr;
    std::vector<Range> ranges_;
    std::mutex mutex_;
    std::condition_variable changed_;
    size_t next_ = 0;  // of the batch thread alone: the first range that is not queued
    uint64_t remaining_ = 0;
    bool cancelled_ = false, failed_ = false, abandoned_ = false;
    Failure failure_;
};

struct BatchOptions {
    unsigned batches = 2;    // in flight at once: cuFile takes a new one only when all of the last has ended
    unsigned entries = 128;  // of each; at most Properties::max_batch_io_size
    std::chrono::milliseconds timeout{30'000};  // without any answer

    void check() const;
};

class Batches {
public:
    // Opens and registers the files. `context` is the CUDA context whose memory is read into.
    Batches(const Library& library, std::vector<std::string> paths, void* context, const BatchOptions& options);
    ~Batches();
    Batches(const Batches&) = delete;
    Batches& operator=(const Batches&) = delete;

    // Queues ranges of the files for memory at `base` (as it was registered with cuFile, if it was). They must lie
    // inside the files.
    std::shared_ptr<Job> submit(std::byte* base, std::vector<Range> ranges);
    // Why nothing more can be read; empty while all is well.
    std::string broken();
    // Batches that were handed to cuFile, and ranges in them.
    uint64_t submitted_batches() const { return submitted_batches_.load(std::memory_order_relaxed); }
    uint64_t submitted_ranges() const { return submitted_ranges_.load(std::memory_order_relaxed); }

private:
    struct Entry {
        std::shared_ptr<Job> job;
        const Range* range = nullptr;  // null: no longer in flight
    };
    struct Lane {
        void* batch = nullptr;
        std::vector<Entry> entries;
        std::vector<Request> requests;
        unsigned in_flight = 0;
        std::chrono::steady_clock::time_point progress;
    };
    void run();
    bool fill(Lane& lane);
    void send(Lane& lane);
    // Takes answers; waits for the first of them up to `patience`. Returns how many there were.
    unsigned take(Lane& lane, std::chrono::microseconds patience);
    void answer(Entry& entry, const Event& event);
    void refuse(Lane& lane, const std::string& why, int error_number);
    void give_up(Lane& lane);
    void stop(const std::string& why);  // abandons all that is queued
    Job::Failure failure(const Range& range, const std::string& why, int error_number) const;

    const Library library_;
    const std::vector<std::string> paths_;
    const BatchOptions options_;
    void* const context_;
    std::vector<int> descriptors_;
    std::vector<void*> files_;
    std::vector<Lane> lanes_;    // of the thread alone
    std::vector<Event> events_;  // likewise
    std::mutex mutex_;
    std::condition_variable wake_;
    std::deque<std::shared_ptr<Job>> waiting_;  // guarded by mutex_; jobs with ranges that are not queued
    std::string broken_;                        // guarded by mutex_
    bool stopping_ = false;                     // guarded by mutex_
    std::atomic<uint64_t> submitted_batches_{0}, submitted_ranges_{0};
    std::thread thread_;
};

}  // namespace gids::cufile
