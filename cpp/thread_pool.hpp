// A fixed set of threads that share loops: the caller of parallel_for is one of its workers.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace gids {

class ThreadPool {
public:
    // threads >= 1 counts the caller: ThreadPool(1) starts no thread at all.
    explicit ThreadPool(int threads, std::string name = "gids-pool");
    ~ThreadPool();
    ThreadPool(const ThreadPool&) = delete;
    ThreadPool& operator=(const ThreadPool&) = delete;

    int threads() const { return threads_; }

    // Calls body(begin, end) for consecutive pieces of [0, count), each at most `grain` long, and returns when all
    // are done. Several threads may call it at once, and body may call it again. The first exception thrown by a
    // body is rethrown here, after every started piece has ended; pieces not yet started are skipped.
    void parallel_for(int64_t count, int64_t grain, const std::function<void(int64_t, int64_t)>& body);

    // Runs task on a pool thread (on the caller when the pool has none). The task must not throw.
    void post(std::function<void()> task);

private:
    struct Loop;
    void work();
    void ensure_started();

    const int threads_;
    const std::string name_;
    std::mutex mutex_;
    std::condition_variable wake_;
    std::deque<std::function<void()>> tasks_;  // guarded by mutex_
    bool stopping_ = false;                    // guarded by mutex_
    std::vector<std::thread> workers_;         // guarded by mutex_
    int owner_pid_ = 0;                        // guarded by mutex_; a forked child starts threads of its own
};

// parallel_for where there is a pool and more than one piece; otherwise one call of body on this thread.
template <class Body>
void for_pieces(ThreadPool* pool, int64_t count, int64_t grain, const Body& body) {
    if (count <= 0) return;
    if (pool == nullptr || count <= grain) body(int64_t{0}, count);
    else pool->parallel_for(count, grain, body);
}

}  // namespace gids
