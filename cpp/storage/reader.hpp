// Reads groups of rows: plan, keep every queue full, copy out what arrives.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "storage/engine.hpp"
#include "storage/job.hpp"
#include "storage/plan.hpp"
#include "thread_pool.hpp"

namespace gids::storage {

struct ReaderOptions {
    EngineOptions engine;
    unsigned queue_depth = 128;  // over all threads
    unsigned threads = 1;        // I/O threads, each with a queue of its own
    uint64_t staging_bytes = 16 << 20;
    uint64_t merge_gap_bytes = 16 << 10;
    uint64_t max_io_bytes = 128 << 10;
    double timeout_s = 30;

    void check() const;
};

struct ReaderStats {
    uint64_t jobs = 0, rows = 0, unique_rows = 0;
    uint64_t reads = 0, bytes_read = 0;
    uint64_t placed = 0;    // reads that the device put where their rows belong
    uint64_t retries = 0;   // reads continued after a short result, or repeated after EAGAIN
    uint64_t errors = 0;    // reads that failed
    uint64_t timeouts = 0;  // reads that did not return in time
};

class IoThread;

// What readers and their I/O threads share.
struct ReaderCore {
    ReaderCore(TableLayout l, ReaderOptions o);

    TableLayout layout;
    ReaderOptions options;
    PlanLimits limits;
    std::unique_ptr<Engine> engine;
    ThreadPool* pool = nullptr;  // outlives the core
    std::mutex mutex;
    std::condition_variable work;
    struct Waiting {
        std::shared_ptr<Job> job;
        size_t next;  // first read that no thread has claimed
    };
    std::deque<Waiting> waiting;  // guarded by mutex
    bool stopping = false;        // guarded by mutex
    std::vector<bool> finished;   // guarded by mutex: I/O threads that have ended
    std::condition_variable gone;
    ReaderStats stats;             // guarded by mutex
    std::shared_ptr<Watch> watch;  // with the jobs, which may outlive the core

    bool count(ReaderStats& since);  // adds to stats and clears; false when it is time to stop
};

class Reader {
public:
    Reader(TableLayout layout, ReaderOptions options, ThreadPool* pool);
    ~Reader();
    Reader(const Reader&) = delete;
    Reader& operator=(const Reader&) = delete;

    // `out` must hold the rows and stay valid until the job has ended.
    // Row i is put at position places[i] of it, where places are given, else at position i.
    std::shared_ptr<Job> submit(std::span<const int64_t> rows, std::byte* out, std::span<const int32_t> places = {});

    // Cancels what runs and returns within about a second, even if requests are stuck. Idempotent. Returns the names of
    // the threads that are blocked in the kernel: they were left behind, and end by themselves when they come back.
    std::vector<std::string> close();

    const PlanLimits& limits() { return here().core->limits; }
    std::string engine_name() { return here().core->engine->name(); }
    std::string engine_notes() { return here().core->engine->notes(); }
    // close(), unless the threads are another process's.
    void end();
    ReaderStats stats();
    // Reads that were given up and may still write to where their rows belong: until they are back, memory of ended
    // jobs must not be read into again.
    int orphaned_reads() { return here().core->watch->orphaned_reads; }

private:
    // Everything that belongs to one process: threads, rings, locks.
    struct Open {
        std::unique_ptr<ThreadPool> own_pool;
        std::shared_ptr<ReaderCore> core;
        std::vector<std::shared_ptr<IoThread>> queues;
        std::vector<std::thread> threads;
        std::vector<std::weak_ptr<Job>> jobs;  // guarded by core->mutex; those that close() must cancel
        bool closed = false;                   // guarded by core->mutex
    };
    static std::unique_ptr<Open> open(const TableLayout& layout, const ReaderOptions& options, ThreadPool* pool);

    // In a forked child the threads are gone and locks may be held by nobody: what the parent opened is left alone,
    // never freed, and the files are opened anew.
    Open& here();

    const TableLayout layout_;
    const ReaderOptions options_;
    ThreadPool* const pool_;
    std::unique_ptr<Open> open_;
    int pid_;
};

}  // namespace gids::storage
