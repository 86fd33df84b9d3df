// Reader: opens the engine, plans on the caller's thread, and ends everything in order.
#include "storage/reader.hpp"

#include <pthread.h>

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
    stats.retries += since.retries;
    stats.errors += since.errors;
    stats.timeouts += since.timeouts;
    since = {};
    return !stopping;
}

Reader::Reader(TableLayout layout, ReaderOptions options, ThreadPool* pool)
    : core_(std::make_shared<ReaderCore>(std::move(layout), options)) {
    options.check();
    if (pool == nullptr) {
        own_pool_ = std::make_unique<ThreadPool>(
            static_cast<int>(std::clamp(std::thread::hardware_concurrency(), 1u, 8u)), "gids-copy");
        pool = own_pool_.get();
    }
    core_->pool = pool;
    core_->engine = open_engine(core_->layout, options.engine);
    core_->limits.block_bytes = core_->engine->block_bytes();
    const uint64_t block = core_->limits.block_bytes;
    const uint64_t share = options.staging_bytes / options.threads;
    uint64_t max_io = options.max_io_bytes;
    if (core_->engine->needs_staging()) {
        const uint64_t least = std::max(4 * block, Staging::kUnit);
        if (share < 2 * least)
            throw ConfigError("staging_bytes must be at least " + std::to_string(2 * least * options.threads) +
                              " for " + std::to_string(options.threads) + " threads (got " +
                              std::to_string(options.staging_bytes) + ")");
        // Two of the largest reads must fit, so that one is read while the other is copied.
        max_io = std::min(max_io, std::bit_floor(share / 2));
    }
    core_->limits.max_io_bytes = std::max(max_io / block * block, 4 * block);
    core_->limits.merge_gap_bytes = core_->engine->needs_staging() ? options.merge_gap_bytes : 0;
    core_->limits.check();
    for (unsigned i = 0; i < options.threads; ++i) {
        const unsigned depth = options.queue_depth / options.threads + (i < options.queue_depth % options.threads);
        queues_.push_back(std::make_shared<IoThread>(core_, share, depth));
        depth_ += depth;
    }
    for (size_t i = 0; i < queues_.size(); ++i) {
        threads_.emplace_back([queue = queues_[i]] { queue->run(); });
        pthread_setname_np(threads_.back().native_handle(), ("gids-io-" + std::to_string(i)).c_str());
    }
}

Reader::~Reader() { close(); }

std::shared_ptr<Job> Reader::submit(std::span<const int64_t> rows, std::byte* out, Conversion conversion) {
    if (closed_) throw StorageError("the reader is closed", core_->layout.files()[0].path, 0, 0, 0);
    ReadPlan plan = plan_reads(core_->layout, rows, core_->limits, core_->pool);
    const auto job = std::make_shared<Job>(std::move(plan), out, conversion);
    const std::lock_guard lock(core_->mutex);
    ++core_->stats.jobs;
    core_->stats.rows += static_cast<uint64_t>(job->plan().num_rows());
    core_->stats.unique_rows += static_cast<uint64_t>(job->plan().num_unique());
    if (job->ended()) return job;
    std::erase_if(jobs_, [](const std::weak_ptr<Job>& old) {
        const auto alive = old.lock();
        return !alive || alive->ended();
    });
    jobs_.push_back(job);
    core_->waiting.push_back({job, 0});
    core_->work.notify_all();
    return job;
}

void Reader::close() {
    std::vector<std::weak_ptr<Job>> jobs;
    {
        const std::lock_guard lock(core_->mutex);
        if (std::exchange(closed_, true)) return;
        core_->stopping = true;
        core_->waiting.clear();
        jobs.swap(jobs_);
        core_->work.notify_all();
    }
    for (const auto& weak : jobs)
        if (const auto job = weak.lock()) job->cancel();
    for (auto& thread : threads_) thread.join();
    queues_.clear();
}

ReaderStats Reader::stats() {
    const std::lock_guard lock(core_->mutex);
    return core_->stats;
}

}  // namespace gids::storage
