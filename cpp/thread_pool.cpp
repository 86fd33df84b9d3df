// ThreadPool: loops are cut into pieces that workers claim with one atomic add.
#include "thread_pool.hpp"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <stdexcept>
#include <system_error>
#include <utility>

namespace gids {

struct ThreadPool::Loop {
    Loop(int64_t n, int64_t g, const std::function<void(int64_t, int64_t)>& f) : count(n), grain(g), body(f) {}

    const int64_t count;
    const int64_t grain;
    const std::function<void(int64_t, int64_t)>& body;  // outlives the loop: parallel_for waits for helpers == 0
    std::atomic<int64_t> next{0};
    std::mutex mutex;
    std::condition_variable done;
    int helpers = 0;           // guarded by mutex: workers inside run()
    bool closed = false;       // guarded by mutex: no helper may enter any more
    std::exception_ptr error;  // guarded by mutex: the first one

    void run() {
        for (;;) {
            // relaxed: pieces are independent; results are published by the mutex when the loop ends.
            const int64_t begin = next.fetch_add(grain, std::memory_order_relaxed);
            if (begin >= count) return;
            try {
                body(begin, std::min(begin + grain, count));
            } catch (...) {
                const std::lock_guard lock(mutex);
                if (!error) error = std::current_exception();
                next.store(count, std::memory_order_relaxed);
            }
        }
    }

    void help() {
        {
            const std::lock_guard lock(mutex);
            if (closed) return;
            ++helpers;
        }
        run();
        const std::lock_guard lock(mutex);
        if (--helpers == 0) done.notify_all();
    }
};

ThreadPool::ThreadPool(int threads, std::string name) : threads_(threads), name_(std::move(name)) {
    if (threads < 1 || threads > 1024)
        throw std::invalid_argument("threads must be between 1 and 1024 (got " + std::to_string(threads) + ")");
}

ThreadPool::~ThreadPool() {
    {
        const std::lock_guard lock(mutex_);
        stopping_ = true;
    }
    wake_.notify_all();
    // A forked child inherits the objects but not the threads; joining them would never return.
    for (auto& worker : workers_) owner_pid_ == getpid() ? worker.join() : worker.detach();
}

void ThreadPool::ensure_started() {
    const int pid = static_cast<int>(getpid());
    if (owner_pid_ == pid) return;
    for (auto& gone : workers_) gone.detach();
    workers_.clear();
    tasks_.clear();
    owner_pid_ = pid;
    for (int i = 1; i < threads_; ++i) {
        try {
            workers_.emplace_back([this] { work(); });
        } catch (const std::system_error&) {
            break;  // RLIMIT_NPROC or pids.max: those that there are, and the caller, share the work
        }
        const std::string label = (name_ + "-" + std::to_string(i)).substr(0, 15);
        pthread_setname_np(workers_.back().native_handle(), label.c_str());
    }
}

void ThreadPool::work() {
    std::unique_lock lock(mutex_);
    for (;;) {
        wake_.wait(lock, [this] { return stopping_ || !tasks_.empty(); });
        if (tasks_.empty()) return;  // stopping, and everything posted has run
        auto task = std::move(tasks_.front());
        tasks_.pop_front();
        lock.unlock();
        task();
        task = nullptr;
        lock.lock();
    }
}

void ThreadPool::post(std::function<void()> task) {
    if (threads_ == 1) {
        task();
        return;
    }
    {
        const std::lock_guard lock(mutex_);
        ensure_started();
        if (!workers_.empty()) tasks_.push_back(std::exchange(task, nullptr));
    }
    if (task) task();
    else wake_.notify_one();
}

void ThreadPool::parallel_for(int64_t count, int64_t grain, const std::function<void(int64_t, int64_t)>& body) {
    if (count <= 0) return;
    grain = std::max<int64_t>(grain, 1);
    const auto loop = std::make_shared<Loop>(count, grain, body);
    const int64_t pieces = (count + grain - 1) / grain;
    const int64_t helpers = std::min<int64_t>(pieces - 1, threads_ - 1);
    for (int64_t i = 0; i < helpers; ++i) post([loop] { loop->help(); });
    loop->run();
    std::unique_lock lock(loop->mutex);
    loop->closed = true;
    loop->done.wait(lock, [&] { return loop->helpers == 0; });
    // Taken out: a worker may drop the loop last, and ThreadSanitizer cannot see that exceptions are counted
    // atomically.
    if (const auto error = std::exchange(loop->error, nullptr)) std::rethrow_exception(error);
}

}  // namespace gids
