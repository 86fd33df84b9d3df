// The pread engine: threads that block in pread(2), for containers and kernels where io_uring is forbidden.
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <system_error>
#include <thread>

#include "interrupted.hpp"
#include "storage/engine.hpp"
#include "storage/files.hpp"

namespace gids::storage {
namespace {

constexpr auto kThreadsEnd = std::chrono::seconds(1);

// Shared with the threads, so that one that is stuck in the kernel can outlive the queue.
struct Shared {
    explicit Shared(std::shared_ptr<Files> f) : files(std::move(f)) {}

    const std::shared_ptr<Files> files;
    std::mutex mutex;
    std::condition_variable work, done, gone;
    // All guarded by mutex; waiting + being read + completed == submitted - reaped.
    std::deque<IoRequest> waiting;
    std::deque<IoCompletion> completed;
    size_t unfinished = 0;  // waiting + being read
    size_t alive = 0;       // threads
    size_t wanted = 0;      // completions that the reaper sleeps for
    bool stopping = false;

    void run() {
        std::unique_lock lock(mutex);
        for (;;) {
            work.wait(lock, [this] { return stopping || !waiting.empty(); });
            if (stopping) break;
            const IoRequest request = waiting.front();
            waiting.pop_front();
            lock.unlock();
            const ssize_t result = retry_on_eintr([&] {
                return pread(files->descriptors()[request.file], request.buffer, request.length,
                             static_cast<off_t>(request.offset));
            });
            const int64_t outcome = result < 0 ? -errno : result;
            lock.lock();
            completed.push_back({request.tag, outcome, nullptr});
            --unfinished;
            if (wanted != 0 && completed.size() >= wanted) done.notify_one();
        }
        if (--alive == 0) gone.notify_all();
    }
};

class PreadQueue final : public Queue {
public:
    PreadQueue(std::shared_ptr<Files> files, unsigned depth)
        : shared_(std::make_shared<Shared>(std::move(files))), depth_(depth) {}

    ~PreadQueue() override {
        std::unique_lock lock(shared_->mutex);
        shared_->stopping = true;
        shared_->waiting.clear();
        shared_->work.notify_all();
        // A thread stuck in the kernel keeps its share of the state; whoever owns the staging sees requests missing.
        shared_->gone.wait_for(lock, kThreadsEnd, [this] { return shared_->alive == 0; });
    }

    unsigned depth() const override { return depth_; }

    void submit(std::span<const IoRequest> requests) override {
        const std::lock_guard lock(shared_->mutex);
        for (const IoRequest& request : requests) shared_->waiting.push_back(request);
        shared_->unfinished += requests.size();
        // Threads appear as they are needed: a table that is read one row at a time has one.
        while (shared_->alive < std::min<size_t>(depth_, shared_->unfinished)) {
            ++shared_->alive;
            try {
                std::thread thread([shared = shared_] { shared->run(); });
                pthread_setname_np(thread.native_handle(), "gids-pread");
                thread.detach();
            } catch (const std::system_error&) {
                if (--shared_->alive == 0) refuse();
                break;
            }
        }
        if (requests.size() > 1) shared_->work.notify_all();
        else shared_->work.notify_one();
    }

    size_t reap(std::span<IoCompletion> completions, size_t at_least, Microseconds timeout) override {
        std::unique_lock lock(shared_->mutex);
        shared_->wanted = at_least;
        shared_->done.wait_for(lock, timeout, [&] { return shared_->completed.size() >= at_least; });
        shared_->wanted = 0;
        size_t count = 0;
        while (count < completions.size() && !shared_->completed.empty()) {
            completions[count++] = shared_->completed.front();
            shared_->completed.pop_front();
        }
        return count;
    }

    void cancel() override {
        const std::lock_guard lock(shared_->mutex);
        end_waiting(-ECANCELED);
    }

    std::string explain(uint64_t) const override {
        return no_thread_
                   ? "cannot start a thread to read with: raise RLIMIT_NPROC (ulimit -u), or the limit of tasks of the "
                     "container or cgroup (pids.max)"
                   : "";
    }

private:
    // Both with the mutex held.
    void refuse() {
        no_thread_ = true;
        end_waiting(-ENOMEM);  // not EAGAIN, which is tried again at once
    }

    void end_waiting(int result) {
        for (const IoRequest& request : shared_->waiting) shared_->completed.push_back({request.tag, result, nullptr});
        shared_->unfinished -= shared_->waiting.size();
        shared_->waiting.clear();
    }

    bool no_thread_ = false;
    const std::shared_ptr<Shared> shared_;
    const unsigned depth_;
};

class PreadEngine final : public Engine {
public:
    explicit PreadEngine(const TableLayout& layout) : files_(std::make_shared<Files>(layout, /*direct=*/true)) {}
    std::string name() const override { return "pread"; }
    std::string notes() const override { return files_->notes(); }
    uint64_t block_bytes() const override { return files_->block_bytes(); }
    bool reads_anywhere() const override { return true; }
    std::unique_ptr<Queue> make_queue(std::span<std::byte>, unsigned depth) override {
        return std::make_unique<PreadQueue>(files_, depth);
    }

private:
    std::shared_ptr<Files> files_;
};

}  // namespace

std::unique_ptr<Engine> open_pread(const TableLayout& layout) { return std::make_unique<PreadEngine>(layout); }

}  // namespace gids::storage
