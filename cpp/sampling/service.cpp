// SampleService: clients take turns, the longest queue yields when there is no room.
#include "sampling/service.hpp"

#include <pthread.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>

#include "errors.hpp"

namespace gids {
namespace {

constexpr size_t kLatencies = 8192;
constexpr auto kServiceSlice = std::chrono::milliseconds(100);

float microseconds(std::chrono::steady_clock::duration time) {
    return std::chrono::duration<float, std::micro>(time).count();
}

}  // namespace

bool Ticket::wait_for(std::chrono::milliseconds limit) {
    if (ended()) return true;
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, limit, [this] { return ended(); });
}

void Ticket::end(State state, std::exception_ptr error) {
    const std::lock_guard lock(mutex_);
    ended_at_ = Clock::now();
    error_ = std::move(error);
    work_ = nullptr;
    state_.store(state, std::memory_order_release);  // release: result and error are complete
    changed_.notify_all();
}

Sampled Ticket::take() {
    const std::lock_guard lock(mutex_);
    switch (state()) {
        case State::kDone:
            if (std::exchange(taken_, true)) throw ConfigError("the sample was taken before");
            return std::move(result_);
        case State::kFailed:
            std::rethrow_exception(error_);
        case State::kDisplaced:
            throw OverloadError("the request had to make room for a client with fewer requests");
        case State::kCancelled:
            throw CancelledError("the request was cancelled");
        default:
            throw ConfigError("the request has not ended");
    }
}

SampleService::SampleService(int workers, int64_t most_waiting)
    : slots_(workers), most_waiting_(most_waiting), event_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
    if (event_ < 0) throw std::system_error(errno, std::generic_category(), "eventfd");
    if (workers < 1 || most_waiting < 1) {
        ::close(event_);
        throw ConfigError("workers and max_waiting must be positive (got " + std::to_string(workers) + " and " +
                          std::to_string(most_waiting) + ")");
    }
    // Signals belong to the caller's threads.
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    try {
        for (int i = 0; i < workers; ++i) {
            workers_.emplace_back([this] { work(); });
            pthread_setname_np(workers_.back().native_handle(), ("gids-sample-" + std::to_string(i)).c_str());
        }
    } catch (const std::system_error&) {
        // RLIMIT_NPROC or pids.max: those that there are take from one list of work.
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    if (workers_.empty()) {
        ::close(event_);
        throw ConfigError("workers need a thread, the system refuses: raise RLIMIT_NPROC (ulimit -u) or pids.max");
    }
}

SampleService::~SampleService() {
    close();
    ::close(event_);
}

std::shared_ptr<Ticket> SampleService::next() {
    if (turns_.empty()) return nullptr;
    const uint64_t client = turns_.front();
    turns_.pop_front();
    auto& queue = queues_[client];
    auto ticket = std::move(queue.front());
    queue.pop_front();
    if (queue.empty()) queues_.erase(client);
    else turns_.push_back(client);
    --waiting_;
    return ticket;
}

// Throws OverloadError where the client has as many requests as anyone; else the longest queue loses its latest.
void SampleService::make_room(uint64_t client) {
    const auto longest = std::max_element(
        queues_.begin(), queues_.end(), [](const auto& a, const auto& b) { return a.second.size() < b.second.size(); });
    const auto own = queues_.find(client);
    if (longest->second.size() <= (own == queues_.end() ? 0 : own->second.size()) + 1) {
        ++refused_;
        throw OverloadError("requests that wait must number at most max_waiting = " + std::to_string(most_waiting_) +
                            ": this one is refused");
    }
    const auto victim = std::move(longest->second.back());
    longest->second.pop_back();
    if (longest->second.empty()) {
        std::erase(turns_, longest->first);
        queues_.erase(longest);
    }
    --waiting_;
    ++displaced_;
    finish(victim, Ticket::State::kDisplaced, nullptr);
}

std::shared_ptr<Ticket> SampleService::submit(uint64_t client, std::function<Sampled()> work) {
    auto ticket = std::make_shared<Ticket>();
    ticket->client_ = client;
    ticket->work_ = std::move(work);
    ticket->asked_at_ = Clock::now();
    {
        const std::lock_guard lock(mutex_);
        if (stopping_) throw CancelledError("the service is closed");
        if (waiting_ >= most_waiting_) make_room(client);
        auto& queue = queues_[client];
        if (queue.empty()) turns_.push_back(client);
        queue.push_back(ticket);
        most_waited_ = std::max(most_waited_, ++waiting_);
    }
    wake_.notify_one();
    return ticket;
}

Sampled SampleService::run(uint64_t client, std::function<Sampled()> work,
                           const std::function<void()>& check_interrupt) {
    {
        std::unique_lock lock(mutex_);
        if (stopping_) throw CancelledError("the service is closed");
        if (waiting_ == 0 && running_ < slots_) {
            ++running_;
            lock.unlock();
            Ticket ticket;
            ticket.client_ = client;
            ticket.work_ = std::move(work);
            ticket.asked_at_ = Clock::now();
            perform(ticket);
            return ticket.take();
        }
    }
    const auto ticket = submit(client, std::move(work));
    while (!ticket->wait_for(kServiceSlice)) {
        if (!check_interrupt) continue;
        try {
            check_interrupt();
        } catch (...) {
            cancel(ticket);
            throw;
        }
    }
    return ticket->take();
}

void SampleService::work() {
    std::unique_lock lock(mutex_);
    for (;;) {
        wake_.wait(lock, [this] { return stopping_ || (waiting_ > 0 && running_ < slots_); });
        if (stopping_) return;
        const auto ticket = next();
        ++running_;
        ticket->state_.store(Ticket::State::kRunning, std::memory_order_relaxed);  // relaxed: guarded by mutex_
        lock.unlock();
        perform(*ticket);
        lock.lock();
        if (ticket->watched_) {
            ended_.push_back(ticket);
            eventfd_write(event_, 1);
        }
    }
}

// Samples, counts, and ends the ticket; running_ was raised for it.
void SampleService::perform(Ticket& ticket) {
    ticket.began_at_ = Clock::now();
    std::exception_ptr error;
    try {
        ticket.result_ = ticket.work_();
    } catch (...) {
        error = std::current_exception();
    }
    ticket.end(error ? Ticket::State::kFailed : Ticket::State::kDone, error);
    bool more = false;
    {
        const std::lock_guard lock(mutex_);
        --running_;
        if (error) ++failed_;
        else ++served_;
        ++served_by_[ticket.client_];
        if (latencies_us_.size() < kLatencies) latencies_us_.push_back(0);
        latencies_us_[next_latency_++ % kLatencies] = microseconds(ticket.latency());
        more = waiting_ > 0 || stopping_;
    }
    if (more) wake_.notify_all();
}

void SampleService::finish(const std::shared_ptr<Ticket>& ticket, Ticket::State state, std::exception_ptr error) {
    ticket->began_at_ = Clock::now();
    ticket->end(state, std::move(error));
    if (!ticket->watched_) return;
    ended_.push_back(ticket);
    eventfd_write(event_, 1);
}

bool SampleService::cancel(const std::shared_ptr<Ticket>& ticket) {
    const std::lock_guard lock(mutex_);
    if (ticket->state() != Ticket::State::kWaiting) return false;
    const auto queue = queues_.find(ticket->client_);
    if (queue == queues_.end() || std::erase(queue->second, ticket) == 0) return false;
    if (queue->second.empty()) {
        std::erase(turns_, queue->first);
        queues_.erase(queue);
    }
    --waiting_;
    ++cancelled_;
    finish(ticket, Ticket::State::kCancelled, nullptr);
    return true;
}

bool SampleService::watch(Ticket& ticket) {
    const std::lock_guard lock(mutex_);
    if (ticket.ended()) return false;
    ticket.watched_ = true;
    return true;
}

std::vector<std::shared_ptr<Ticket>> SampleService::ended() {
    eventfd_t ignored = 0;
    eventfd_read(event_, &ignored);  // before the list: what ends from here on makes it readable again
    const std::lock_guard lock(mutex_);
    return std::exchange(ended_, {});
}

void SampleService::close() {
    std::vector<std::thread> workers;
    {
        std::unique_lock lock(mutex_);
        stopping_ = true;
        while (const auto ticket = next()) {
            ++cancelled_;
            finish(ticket, Ticket::State::kCancelled, nullptr);
        }
        workers.swap(workers_);
        wake_.notify_all();
        wake_.wait(lock, [this] { return running_ == 0; });
    }
    for (auto& worker : workers) worker.join();
}

SampleService::Stats SampleService::stats() const {
    std::vector<float> latencies;
    Stats stats;
    {
        const std::lock_guard lock(mutex_);
        stats = {served_,
                 failed_,
                 cancelled_,
                 refused_,
                 displaced_,
                 waiting_,
                 running_,
                 most_waited_,
                 0,
                 0,
                 std::chrono::duration<double>(Clock::now() - since_).count()};
        latencies = latencies_us_;
    }
    if (latencies.empty()) return stats;
    std::sort(latencies.begin(), latencies.end());
    stats.p50_us = static_cast<double>(latencies[latencies.size() / 2]);
    stats.p99_us = static_cast<double>(latencies[latencies.size() * 99 / 100]);
    return stats;
}

std::map<uint64_t, uint64_t> SampleService::served_by_client() const {
    const std::lock_guard lock(mutex_);
    return served_by_;
}

}  // namespace gids
