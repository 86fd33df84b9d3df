// Samples for any number of clients at once: a bounded queue, threads that serve clients in turn, and a ticket for each
// request. Nothing here knows of Python.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "sampling/sample.hpp"

namespace gids {

// Ends exactly once. waiting -> running -> done | failed; waiting -> cancelled | displaced.
class Ticket {
public:
    enum class State { kWaiting, kRunning, kDone, kFailed, kCancelled, kDisplaced };
    using Clock = std::chrono::steady_clock;

    uint64_t client() const { return client_; }
    State state() const { return state_.load(std::memory_order_acquire); }  // acquire: the result is complete
    bool ended() const { return state() != State::kWaiting && state() != State::kRunning; }
    // True when the request has ended within the limit.
    bool wait_for(std::chrono::milliseconds limit);
    // The result, once; throws what sampling threw, OverloadError or CancelledError.
    Sampled take();
    // From being asked for to its end, and to its beginning.
    Clock::duration latency() const { return ended_at_ - asked_at_; }
    Clock::duration waited() const { return began_at_ - asked_at_; }

private:
    friend class SampleService;
    void end(State state, std::exception_ptr error);

    uint64_t client_ = 0;
    std::function<Sampled()> work_;
    std::atomic<State> state_{State::kWaiting};
    bool watched_ = false;  // guarded by the service's mutex: its end goes to the list of ended tickets
    Clock::time_point asked_at_, began_at_, ended_at_;
    Sampled result_;
    std::exception_ptr error_;
    bool taken_ = false;
    std::mutex mutex_;
    std::condition_variable changed_;
};

class SampleService {
public:
    struct Stats {
        uint64_t served = 0, failed = 0, cancelled = 0, refused = 0, displaced = 0;
        int64_t waiting = 0, running = 0, most_waited = 0;
        double p50_us = 0, p99_us = 0;  // latency of the last requests that were served
        double seconds = 0;             // since the service began
    };

    // workers: requests that are sampled at once. most_waiting: beyond these, requests are refused or displaced.
    SampleService(int workers, int64_t most_waiting);
    ~SampleService();
    SampleService(const SampleService&) = delete;
    SampleService& operator=(const SampleService&) = delete;

    // Queues the work. Where the queue is full, a client that has fewer requests in it than another displaces that
    // one's latest; the client with the most is refused (OverloadError).
    std::shared_ptr<Ticket> submit(uint64_t client, std::function<Sampled()> work);
    // Does the work on the caller's thread where a worker would be free for it, else queues it and waits.
    // check_interrupt: called about ten times a second while waiting; may throw, or be empty.
    Sampled run(uint64_t client, std::function<Sampled()> work, const std::function<void()>& check_interrupt);
    // False where the request is running or has ended.
    bool cancel(const std::shared_ptr<Ticket>& ticket);

    // From now on the ticket's end is told by event_descriptor() and ended(). False where it has ended already.
    bool watch(Ticket& ticket);
    // A descriptor that can be read when watched tickets have ended, and those tickets.
    int event_descriptor() const { return event_; }
    std::vector<std::shared_ptr<Ticket>> ended();

    // Cancels what waits, and returns when what runs has ended. Idempotent.
    void close();
    Stats stats() const;
    // Requests served by client.
    std::map<uint64_t, uint64_t> served_by_client() const;

private:
    using Clock = Ticket::Clock;
    void work();
    void perform(Ticket& ticket);
    void finish(const std::shared_ptr<Ticket>& ticket, Ticket::State state, std::exception_ptr error);
    std::shared_ptr<Ticket> next();   // mutex_ is held
    void make_room(uint64_t client);  // mutex_ is held

    const int slots_;
    const int64_t most_waiting_;
    const Clock::time_point since_ = Clock::now();
    const int event_;
    mutable std::mutex mutex_;
    std::condition_variable wake_;
    // guarded by mutex_, all below. Clients with waiting requests take turns: the one at the front is served next and
    // goes to the end.
    std::map<uint64_t, std::deque<std::shared_ptr<Ticket>>> queues_;
    std::deque<uint64_t> turns_;                           // exactly the clients whose queue is not empty
    int64_t waiting_ = 0, running_ = 0, most_waited_ = 0;  // waiting_: over all queues
    uint64_t served_ = 0, failed_ = 0, cancelled_ = 0, refused_ = 0, displaced_ = 0;
    std::map<uint64_t, uint64_t> served_by_;
    std::vector<float> latencies_us_;  // of the last requests, in a ring
    size_t next_latency_ = 0;
    std::vector<std::shared_ptr<Ticket>> ended_;
    bool stopping_ = false;
    std::vector<std::thread> workers_;
};

}  // namespace gids
