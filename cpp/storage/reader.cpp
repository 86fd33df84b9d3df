// Reader: opens the engine, plans on the caller's thread, and ends everything in order.
#include "storage/reader.hpp"

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <utility>

#include "errors.hpp"
#include "storage/io_thread.hpp"

namespace gids::storage {

void ReaderOptions::check() const {
    if (queue_depth < 1 || queue_depth > 4096)
        throw ConfigError("queue_depth must be between 1 and 4096 (got " + std::to_string(queue_depth) + ")");
    if (threads < 1 || threads > queue_depth)
        throw ConfigError("threads must be between 1 and queue_depth = " + std::to_string(queue_depth) + " (got " +
                          std::to_string(threads) + ")");
    if (!(timeout_s > 0)) throw ConfigError("timeout_s must be positive (got " + std::to_string(timeout_s) + ")");
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
        opened->queues.push_back(std::make_shared<IoThread>(opened->core, share, depth));
    }
    // Signals belong to the caller's threads: a Ctrl-C that lands on an I/O thread would wake nobody who listens.
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    for (size_t i = 0; i < opened->queues.size(); ++i) {
        opened->threads.emplace_back([queue = opened->queues[i]] { queue->run(); });
        pthread_setname_np(opened->threads.back().native_handle(), ("gids-io-" + std::to_string(i)).c_str());
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    return opened;
}

Reader::Reader(TableLayout layout, ReaderOptions options, ThreadPool* pool)
    : layout_(std::move(layout)), options_(std::move(options)), pool_(pool), pid_(getpid()) {
    options_.check();
    open_ = open(layout_, options_, pool_);
}

Reader::~Reader() {
    if (pid_ == getpid()) close();
    else static_cast<void>(open_.release());
}

Reader::Open& Reader::here() {
    if (pid_ != getpid()) {
        static_cast<void>(open_.release());
        open_ = open(layout_, options_, pool_);
        pid_ = getpid();
    }
    return *open_;
}

std::shared_ptr<Job> Reader::submit(std::span<const int64_t> rows, std::byte* out, Conversion conversion,
                                    std::span<const int32_t> places) {
    Open& state = here();
    ReaderCore& core = *state.core;
    auto job = std::make_shared<Job>(plan_reads(layout_, rows, core.limits, core.pool, places), out, conversion,
                                     layout_.row_bytes());
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

void Reader::close() {
    Open& state = here();
    std::vector<std::weak_ptr<Job>> jobs;
    {
        const std::lock_guard lock(state.core->mutex);
        if (std::exchange(state.closed, true)) return;
        state.core->stopping = true;
        state.core->waiting.clear();
        jobs.swap(state.jobs);
        state.core->work.notify_all();
    }
    for (const auto& weak : jobs)
        if (const auto job = weak.lock()) job->cancel();
    for (auto& thread : state.threads) thread.join();
    state.queues.clear();
}

ReaderStats Reader::stats() {
    const Open& state = here();
    const std::lock_guard lock(state.core->mutex);
    return state.core->stats;
}

}  // namespace gids::storage
