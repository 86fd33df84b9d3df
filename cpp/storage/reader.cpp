// Reader: opens the engine, plans on the caller's thread, and ends everything in order.
#include "storage/reader.hpp"

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <system_error>
#include <utility>

#include "errors.hpp"
#include "storage/io_thread.hpp"

namespace gids::storage {
namespace {

// For an I/O thread to end: it waits for its requests, then for the threads of its engine.
constexpr auto kPatience = std::chrono::milliseconds(2000);

}  // namespace

void ReaderOptions::check() const {
    if (queue_depth < 1 || queue_depth > 4096)
        throw ConfigError("queue_depth must be between 1 and 4096 (got " + std::to_string(queue_depth) + ")");
    if (threads < 1 || threads > queue_depth)
        throw ConfigError("threads must be between 1 and queue_depth = " + std::to_string(queue_depth) + " (got " +
                          std::to_string(threads) + ")");
    if (!(timeout_s > 0)) throw ConfigError("timeout_s must be positive (got " + std::to_string(timeout_s) + ")");
}

ReaderCore::ReaderCore(TableLayout l, ReaderOptions o) : layout(std::move(l)), options(std::move(o)) {
    std::vector<std::string> paths;
    for (const StripeFile& file : layout.files()) paths.push_back(file.path);
    const auto timeout = std::chrono::duration<double>(options.timeout_s);
    watch = std::make_shared<Watch>(options.threads, std::chrono::duration_cast<Watch::Clock::duration>(timeout),
                                    std::move(paths));
    finished.resize(options.threads);
}

bool ReaderCore::count(ReaderStats& since) {
    const std::lock_guard lock(mutex);
    stats.reads += since.reads;
    stats.bytes_read += since.bytes_read;
    stats.placed += since.placed;
    stats.retries += since.retries;
    stats.errors += since.errors;
    stats.timeouts += since.timeouts;
    since = {};
    return !stopping;
}

std::unique_ptr<Reader::Open> Reader::open(const TableLayout& layout, const ReaderOptions& options, ThreadPool* pool) {
    auto opened = std::make_unique<Open>();
    opened->core = std::make_shared<ReaderCore>(layout, options);
    ReaderCore& core = *opened->core;
    if (pool == nullptr) {
        const auto threads = static_cast<int>(std::clamp(std::thread::hardware_concurrency(), 1u, 8u));
        opened->own_pool = std::make_unique<ThreadPool>(threads, "gids-copy");
        pool = opened->own_pool.get();
    }
    core.pool = pool;
    core.engine = open_engine(core.layout, options.engine);
    const uint64_t block = core.engine->block_bytes();
    const uint64_t share = options.staging_bytes / options.threads;
    uint64_t max_io = options.max_io_bytes;
    if (core.engine->needs_staging()) {
        const uint64_t least = std::max(4 * block, Staging::kUnit);
        if (share < 2 * least)
            throw ConfigError("staging_bytes must be at least " + std::to_string(2 * least * options.threads) +
                              " for " + std::to_string(options.threads) + " threads (got " +
                              std::to_string(options.staging_bytes) + ")");
        // Two of the largest reads must fit, so that one is read while the other is copied.
        max_io = std::min(max_io, std::bit_floor(share / 2));
    }
    core.limits.block_bytes = block;
    core.limits.max_io_bytes = std::max(max_io / block * block, std::max<uint64_t>(4 * block, 64));
    core.limits.merge_gap_bytes = options.merge_gap_bytes;
    core.limits.check();
    for (unsigned i = 0; i < options.threads; ++i) {
        const unsigned depth = options.queue_depth / options.threads + (i < options.queue_depth % options.threads);
        opened->queues.push_back(std::make_shared<IoThread>(opened->core, i, share, depth));
    }
    // Signals belong to the caller's threads: a Ctrl-C that lands on an I/O thread would wake nobody who listens.
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    for (size_t i = 0; i < opened->queues.size(); ++i) {
        try {
            opened->threads.emplace_back([queue = opened->queues[i], kept = opened->core, i] {
                queue->run();
                const std::lock_guard lock(kept->mutex);
                kept->finished[i] = true;
                kept->gone.notify_all();
            });
        } catch (const std::system_error&) {
            break;  // they take from one list of work: fewer are slower
        }
        pthread_setname_np(opened->threads.back().native_handle(), Watch::name(i).c_str());
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    if (opened->threads.empty())
        throw StorageError(
            "cannot start an I/O thread: raise RLIMIT_NPROC (ulimit -u), or the limit of tasks of the container or "
            "cgroup "
            "(pids.max)",
            layout.files()[0].path, 0, 0, EAGAIN);
    return opened;
}

Reader::Reader(TableLayout layout, ReaderOptions options, ThreadPool* pool)
    : layout_(std::move(layout)), options_(std::move(options)), pool_(pool), pid_(getpid()) {
    options_.check();
    open_ = open(layout_, options_, pool_);
}

Reader::~Reader() {
    end();
    if (pid_ != getpid()) static_cast<void>(open_.release());
}

void Reader::end() {
    if (pid_ == getpid()) close();
}

Reader::Open& Reader::here() {
    if (pid_ != getpid()) {
        static_cast<void>(open_.release());
        open_ = open(layout_, options_, pool_);
        pid_ = getpid();
    }
    return *open_;
}

std::shared_ptr<Job> Reader::submit(std::span<const int64_t> rows, std::byte* out, std::span<const int32_t> places) {
    Open& state = here();
    ReaderCore& core = *state.core;
    auto job = std::make_shared<Job>(plan_reads(layout_, rows, core.limits, core.pool, places), out,
                                     layout_.row_bytes(), core.watch);
    const std::lock_guard lock(core.mutex);
    if (state.closed) throw StorageError("the reader is closed", layout_.files()[0].path, 0, 0, 0);
    ++core.stats.jobs;
    core.stats.rows += static_cast<uint64_t>(job->plan().num_rows());
    core.stats.unique_rows += static_cast<uint64_t>(job->plan().num_unique());
    if (job->ended()) return job;
    std::erase_if(state.jobs, [](const std::weak_ptr<Job>& old) {
        const auto alive = old.lock();
        return !alive || alive->ended();
    });
    state.jobs.push_back(job);
    core.waiting.push_back({job, 0});
    core.work.notify_all();
    return job;
}

std::vector<std::string> Reader::close() {
    Open& state = here();
    ReaderCore& core = *state.core;
    std::vector<std::weak_ptr<Job>> jobs;
    {
        const std::lock_guard lock(core.mutex);
        if (std::exchange(state.closed, true)) return {};
        core.stopping = true;
        core.waiting.clear();
        jobs.swap(state.jobs);
        core.work.notify_all();
    }
    for (const auto& weak : jobs)
        if (const auto job = weak.lock()) job->cancel();
    std::vector<std::string> left;
    for (size_t i = 0; i < state.threads.size(); ++i) {
        std::unique_lock lock(core.mutex);
        const auto done = [&] { return core.finished[i] || core.watch->is_blocked(i, kPatience); };
        while (!core.gone.wait_for(lock, Watch::kTurn, done)) continue;
        if (core.finished[i]) {
            lock.unlock();
            state.threads[i].join();
        } else {
            // It shares the core and its queue, and touches nothing else once it sees that it is time to stop.
            state.threads[i].detach();
            left.push_back(Watch::name(i));
        }
    }
    state.queues.clear();
    return left;
}

ReaderStats Reader::stats() {
    const Open& state = here();
    const std::lock_guard lock(state.core->mutex);
    return state.core->stats;
}

}  // namespace gids::storage
