// Batches: one thread, a few batches in flight, so that the drives have work while the answers of one are taken.
#include "cufile/batches.hpp"

#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "errors.hpp"
#include "interrupted.hpp"

namespace gids::cufile {
namespace {

using Clock = std::chrono::steady_clock;
constexpr auto kPatience = std::chrono::microseconds(200);  // in one batch's status while others may have answers
constexpr auto kCancelGrace = std::chrono::milliseconds(500);
constexpr int kSubmitTries = 20;
constexpr auto kSubmitPause = std::chrono::milliseconds(1);
constexpr long kLargestErrno = 4095;

bool worth_retrying(const Error& error) { return error.code == kSubmitInternal || error.code == kNoMemory; }

}  // namespace

bool Job::wait_for(std::chrono::milliseconds limit) {
    std::unique_lock lock(mutex_);
    if (!changed_.wait_for(lock, limit, [this] { return over(); })) return false;
    if (failed_)
        throw StorageError(failure_.what, failure_.path, failure_.offset, failure_.length, failure_.error_number);
    if (cancelled_) throw StorageError("the read was cancelled", "", 0, 0, ECANCELED);
    return true;
}

void Job::cancel() {
    const std::lock_guard lock(mutex_);
    cancelled_ = true;
}

bool Job::ended() {
    const std::lock_guard lock(mutex_);
    return over();
}

bool Job::abandoned() {
    const std::lock_guard lock(mutex_);
    return abandoned_;
}

void Job::settle(uint64_t ranges) {
    remaining_ -= ranges;
    if (remaining_ == 0) changed_.notify_all();
}

void Job::fail(Failure failure) {
    if (failed_) return;
    failed_ = true;
    failure_ = std::move(failure);
}

void BatchOptions::check() const {
    if (batches < 1 || batches > 64)
        throw ConfigError("batches of cuFile in flight must be from 1 to 64 (got " + std::to_string(batches) + ")");
    if (entries < 1 || entries > 65536)
        throw ConfigError("entries of a cuFile batch must be from 1 to 65536 (got " + std::to_string(entries) + ")");
    if (timeout.count() < 1)
        throw ConfigError("time-out of cuFile must be at least 1 ms (got " + std::to_string(timeout.count()) + ")");
}

Batches::Batches(const Library& library, std::vector<std::string> paths, void* context, const BatchOptions& options)
    : library_(library), paths_(std::move(paths)), options_(options), context_(context), events_(options.entries) {
    options.check();
    const auto undo = [this] {
        for (const Lane& lane : lanes_)
            if (lane.batch != nullptr) library_.destroy(lane.batch);
        for (void* file : files_) library_.handle_deregister(file);
        for (const int descriptor : descriptors_) close(descriptor);
    };
    try {
        for (const std::string& path : paths_) {
            const int descriptor =
                retry_on_eintr([&path] { return open(path.c_str(), O_RDONLY | O_DIRECT | O_CLOEXEC); });
            if (descriptor < 0)
                throw StorageError("cuFile needs the file opened with O_DIRECT: " + std::string(std::strerror(errno)),
                                   path, 0, 0, errno);
            descriptors_.push_back(descriptor);
            Descriptor asked;
            asked.handle = nullptr;
            asked.fd = descriptor;
            void* handle = nullptr;
            if (const Error error = library_.handle_register(&handle, &asked); error.code != 0)
                throw StorageError("cuFile does not take the file (" + describe(error) + ")", path, 0, 0, 0);
            files_.push_back(handle);
        }
        lanes_.resize(options_.batches);
        for (Lane& lane : lanes_)
            if (const Error error = library_.set_up(&lane.batch, options_.entries); error.code != 0)
                throw StorageError(
                    "cuFile sets no batch of " + std::to_string(options_.entries) + " up (" + describe(error) + ")",
                    paths_.empty() ? "" : paths_.front(), 0, 0, 0);
        thread_ = std::thread([this] { run(); });
    } catch (...) {
        undo();
        throw;
    }
    pthread_setname_np(thread_.native_handle(), "gids-cufile");
}

Batches::~Batches() {
    {
        const std::lock_guard lock(mutex_);
        stopping_ = true;
        for (const auto& job : waiting_) job->cancel();
    }
    wake_.notify_all();
    thread_.join();
    for (const Lane& lane : lanes_)
        if (lane.batch != nullptr) library_.destroy(lane.batch);
    for (void* file : files_) library_.handle_deregister(file);
    for (const int descriptor : descriptors_) close(descriptor);
}

std::shared_ptr<Job> Batches::submit(std::byte* base, std::vector<Range> ranges) {
    for (const Range& range : ranges)
        if (range.file >= files_.size() || range.length == 0)
            throw ConfigError("a range must have bytes of file 0 to " + std::to_string(files_.size()) + " (got " +
                              std::to_string(range.length) + " of file " + std::to_string(range.file) + ")");
    auto job = std::make_shared<Job>();
    job->base_ = base;
    job->remaining_ = ranges.size();
    job->ranges_ = std::move(ranges);
    if (job->ranges_.empty()) return job;
    {
        const std::lock_guard lock(mutex_);
        if (!broken_.empty()) throw StorageError(broken_, paths_.front(), 0, 0, ETIMEDOUT);
        waiting_.push_back(job);
    }
    wake_.notify_all();
    return job;
}

std::string Batches::broken() {
    const std::lock_guard lock(mutex_);
    return broken_;
}

void Batches::run() {
    if (const int status = library_.set_context(context_); status != 0) {
        stop("the CUDA context of cuFile's thread cannot be made current (error " + std::to_string(status) + ")");
        return;
    }
    for (;;) {
        bool busy = false, moved = false;
        for (Lane& lane : lanes_) {
            if (lane.in_flight == 0 && fill(lane)) send(lane);
            busy = busy || lane.in_flight != 0;
        }
        if (!busy) {
            std::unique_lock lock(mutex_);
            if (stopping_ && waiting_.empty()) return;
            wake_.wait(lock, [this] { return stopping_ || !waiting_.empty(); });
            continue;
        }
        for (Lane& lane : lanes_)
            moved = (lane.in_flight != 0 && take(lane, std::chrono::microseconds(0)) != 0) || moved;
        if (moved) continue;
        // The batch that was sent first is the likeliest to answer.
        Lane* oldest = nullptr;
        for (Lane& lane : lanes_)
            if (lane.in_flight != 0 && (oldest == nullptr || lane.progress < oldest->progress)) oldest = &lane;
        if (take(*oldest, kPatience) != 0) continue;
        if (Clock::now() - oldest->progress > options_.timeout) give_up(*oldest);
        const std::lock_guard lock(mutex_);
        if (!broken_.empty()) return;
    }
}

bool Batches::fill(Lane& lane) {
    lane.entries.clear();
    lane.requests.clear();
    const std::lock_guard lock(mutex_);
    while (!waiting_.empty() && lane.entries.size() < options_.entries) {
        const std::shared_ptr<Job> job = waiting_.front();
        const std::lock_guard job_lock(job->mutex_);
        if (job->cancelled_ || job->failed_) {  // nobody wants the rest
            job->settle(job->ranges_.size() - job->next_);
            job->next_ = job->ranges_.size();
        }
        while (job->next_ < job->ranges_.size() && lane.entries.size() < options_.entries) {
            const Range& range = job->ranges_[job->next_++];
            Request request;
            request.base = job->base_;
            request.base_offset = static_cast<off_t>(range.to);
            request.file_offset = static_cast<off_t>(range.offset);
            request.size = range.length;
            request.file = files_[range.file];
            request.cookie = reinterpret_cast<void*>(lane.entries.size() + 1);
            lane.requests.push_back(request);
            lane.entries.push_back({job, &range});
        }
        if (job->next_ == job->ranges_.size()) waiting_.pop_front();
    }
    return !lane.entries.empty();
}

void Batches::send(Lane& lane) {
    const auto count = static_cast<unsigned>(lane.requests.size());
    Error error;
    for (int tries = 0; tries < kSubmitTries; ++tries) {
        error = library_.submit(lane.batch, count, lane.requests.data(), 0);
        if (!worth_retrying(error)) break;
        std::this_thread::sleep_for(kSubmitPause);
    }
    lane.in_flight = count;
    lane.progress = Clock::now();
    if (error.code == 0) {
        submitted_batches_.fetch_add(1, std::memory_order_relaxed);
        submitted_ranges_.fetch_add(count, std::memory_order_relaxed);
        return;
    }
    // cuFile does not say whether it took some of them: a new batch knows of none.
    library_.cancel(lane.batch);
    library_.destroy(lane.batch);
    lane.batch = nullptr;
    refuse(lane, "cuFile takes no batch of " + std::to_string(count) + " (" + describe(error) + ")", EIO);
    if (const Error again = library_.set_up(&lane.batch, options_.entries); again.code != 0) {
        lane.batch = nullptr;
        stop("cuFile sets no batch up any more (" + describe(again) + ")");
    }
}

unsigned Batches::take(Lane& lane, std::chrono::microseconds patience) {
    auto count = static_cast<unsigned>(lane.entries.size());
    timespec limit{0, static_cast<long>(patience.count() * 1000)};
    const Error error = library_.get_status(lane.batch, patience.count() != 0 ? 1 : 0, &count, events_.data(), &limit);
    if (error.code != 0) return 0;  // "retry later"; the time-out bounds it
    unsigned answered = 0;
    for (unsigned i = 0; i < std::min<size_t>(count, events_.size()); ++i) {
        const Event& event = events_[i];
        const size_t number = reinterpret_cast<size_t>(event.cookie);
        if (number < 1 || number > lane.entries.size() || (event.status & (kWaiting | kPending)) != 0) continue;
        Entry& entry = lane.entries[number - 1];
        if (entry.range == nullptr) continue;
        answer(entry, event);
        --lane.in_flight;
        ++answered;
    }
    if (answered != 0) lane.progress = Clock::now();
    return answered;
}

void Batches::answer(Entry& entry, const Event& event) {
    const auto result = static_cast<int64_t>(event.result);
    const Range& range = *entry.range;
    const std::lock_guard lock(entry.job->mutex_);
    if (event.status != kComplete || result < 0) {
        const bool has_errno = result < 0 && result >= -kLargestErrno;
        const char* kind = event.status == kTimeout    ? "timed out"
                           : event.status == kCanceled ? "was cancelled"
                           : event.status == kInvalid  ? "breaks a rule of cuFile"
                                                       : "failed";
        std::string why = std::string("gds read ") + kind;
        if (has_errno) why += std::string(" (") + std::strerror(static_cast<int>(-result)) + ")";
        else if (result < 0) why += " (cuFile error " + std::to_string(-result) + ")";
        const int error_number = has_errno ? static_cast<int>(-result) : event.status == kTimeout ? ETIMEDOUT : EIO;
        entry.job->fail(failure(range, why, error_number));
    } else if (event.result != range.length) {
        const std::string why = "gds read " + std::to_string(result) + " of " + std::to_string(range.length) + " bytes";
        entry.job->fail(failure(range, why, 0));
    }
    entry.range = nullptr;
    entry.job->settle(1);
}

Job::Failure Batches::failure(const Range& range, const std::string& why, int error_number) const {
    return {why, paths_[range.file], range.offset, range.length, error_number};
}

void Batches::refuse(Lane& lane, const std::string& why, int error_number) {
    for (Entry& entry : lane.entries) {
        if (entry.range == nullptr) continue;
        const std::lock_guard lock(entry.job->mutex_);
        entry.job->fail(failure(*entry.range, why, error_number));
        entry.range = nullptr;
        entry.job->settle(1);
    }
    lane.in_flight = 0;
}

void Batches::give_up(Lane& lane) {
    library_.cancel(lane.batch);
    const auto deadline = Clock::now() + kCancelGrace;
    while (lane.in_flight != 0 && Clock::now() < deadline) take(lane, kPatience);
    if (lane.in_flight == 0) return;  // cuFile has ended them, with a status that says so
    stop("cuFile gave no answer within " + std::to_string(options_.timeout.count()) +
         " ms, and does not let go of the reads");
}

void Batches::stop(const std::string& why) {
    const std::lock_guard lock(mutex_);
    broken_ = why;
    const auto abandon = [&](Job& job, const Range* range) {
        const std::lock_guard job_lock(job.mutex_);
        job.fail(failure(range != nullptr ? *range : job.ranges_.front(), why, ETIMEDOUT));
        job.abandoned_ = true;
        job.changed_.notify_all();
    };
    for (Lane& lane : lanes_)
        for (Entry& entry : lane.entries)
            if (entry.range != nullptr) abandon(*entry.job, entry.range);
    for (const auto& job : waiting_) abandon(*job, nullptr);
    waiting_.clear();
}

}  // namespace gids::cufile
