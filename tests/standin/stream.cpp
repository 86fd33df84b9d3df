// Streams and events. Each stream runs its queue on a thread of its own, with small random delays, so that host code
// which forgets to wait gets wrong bytes here too.
#include <chrono>
#include <set>

#include "state.hpp"

struct Stream {
    std::mutex mutex;
    std::condition_variable wake, idle;
    std::deque<std::function<void()>> queue;  // guarded by mutex
    bool busy = false, stopping = false;      // guarded by mutex
    unsigned flags = 0;
    int priority = 0;
    uint64_t noise = 88172645463325252ull;  // used by the worker only
    std::thread worker{[this] { run(); }};

    ~Stream() {
        {
            const std::lock_guard<std::mutex> lock(mutex);
            stopping = true;
        }
        wake.notify_all();
        worker.join();
    }
    void run() {
        std::unique_lock<std::mutex> lock(mutex);
        for (;;) {
            wake.wait(lock, [this] { return stopping || !queue.empty(); });
            if (queue.empty()) return;  // a destroyed stream first finishes what it was given
            auto work = std::move(queue.front());
            queue.pop_front();
            busy = true;
            lock.unlock();
            noise ^= noise << 13, noise ^= noise >> 7, noise ^= noise << 17;
            if (noise % 8 == 0) std::this_thread::sleep_for(std::chrono::microseconds(noise % 200));
            work();
            lock.lock();
            busy = false;
            if (queue.empty()) idle.notify_all();
        }
    }
    void push(std::function<void()> work) {
        const std::lock_guard<std::mutex> lock(mutex);
        queue.push_back(std::move(work));
        wake.notify_one();
    }
    void wait() {
        std::unique_lock<std::mutex> lock(mutex);
        idle.wait(lock, [this] { return queue.empty() && !busy; });
    }
    bool is_idle() {
        const std::lock_guard<std::mutex> lock(mutex);
        return queue.empty() && !busy;
    }
};

struct EventState {
    std::mutex mutex;
    std::condition_variable changed;
    uint64_t recorded = 0, reached = 0;  // guarded by mutex; how often cuEventRecord was called, and came to pass
    std::chrono::steady_clock::time_point time;
};
struct Event {  // queued work may outlive the handle, as it may with the real driver
    std::shared_ptr<EventState> state = std::make_shared<EventState>();
};

namespace {

std::mutex streams_mutex;
std::set<Stream*> streams;  // guarded by streams_mutex

// Handles 0, 1 and 2 mean the default stream of the context or of the thread; the stand-in has one for all.
Stream& default_stream() {
    static auto* const only = new Stream;  // never destroyed: its thread must not be joined at exit
    return *only;
}
bool is_default(CUstream stream) { return reinterpret_cast<uintptr_t>(stream) <= 2; }
Stream& resolve(CUstream stream) { return is_default(stream) ? default_stream() : *stream; }

bool is_live(CUstream stream) {
    if (is_default(stream)) return true;
    const std::lock_guard<std::mutex> lock(streams_mutex);
    return streams.count(stream) != 0;
}

struct Mark {
    std::shared_ptr<EventState> event;
    uint64_t number;
};
void wait_for(const Mark& mark) {
    std::unique_lock<std::mutex> lock(mark.event->mutex);
    mark.event->changed.wait(lock, [&] { return mark.event->reached >= mark.number; });
}
Mark latest(CUevent event) {
    const std::lock_guard<std::mutex> lock(event->state->mutex);
    return {event->state, event->state->recorded};
}

CUresult create(CUstream* out, unsigned flags, int priority) {
    auto* stream = new Stream;
    stream->flags = flags;
    stream->priority = priority;
    const std::lock_guard<std::mutex> lock(streams_mutex);
    streams.insert(stream);
    *out = stream;
    return CUDA_SUCCESS;
}

}  // namespace

namespace standin {

void enqueue(CUstream stream, std::function<void()> work) { resolve(stream).push(std::move(work)); }
CUresult synchronize(CUstream stream) {
    if (!is_live(stream)) return CUDA_ERROR_INVALID_HANDLE;
    resolve(stream).wait();
    return sticky();
}
void synchronize_all() {
    std::vector<Stream*> all{&default_stream()};
    {
        const std::lock_guard<std::mutex> lock(streams_mutex);
        all.insert(all.end(), streams.begin(), streams.end());
    }
    for (Stream* stream : all) stream->wait();
}

}  // namespace standin

STANDIN_API CUresult cuStreamCreate(CUstream* out, unsigned flags) {
    ENTER(cuStreamCreate);
    return create(out, flags, 0);
}
STANDIN_API CUresult cuStreamCreateWithPriority(CUstream* out, unsigned flags, int priority) {
    ENTER(cuStreamCreate);
    return create(out, flags, priority);
}
STANDIN_API CUresult cuStreamDestroy_v2(CUstream stream) {
    ENTER(cuStreamDestroy);
    if (is_default(stream) || !is_live(stream)) return CUDA_ERROR_INVALID_HANDLE;
    {
        const std::lock_guard<std::mutex> lock(streams_mutex);
        streams.erase(stream);
    }
    delete stream;
    return CUDA_SUCCESS;
}
STANDIN_API CUresult cuStreamSynchronize(CUstream stream) {
    ENTER(cuStreamSynchronize);
    return standin::synchronize(stream);
}
STANDIN_API CUresult cuStreamQuery(CUstream stream) {
    ENTER(cuStreamQuery);
    return resolve(stream).is_idle() ? standin::sticky() : CUDA_ERROR_NOT_READY;
}
STANDIN_API CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned) {
    ENTER(cuStreamWaitEvent);
    if (!is_live(stream)) return CUDA_ERROR_INVALID_HANDLE;
    standin::enqueue(stream, [mark = latest(event)] { wait_for(mark); });
    return CUDA_SUCCESS;
}
STANDIN_API CUresult cuStreamGetCtx(CUstream, CUcontext* context) {
    *context = primary_context();
    return CUDA_SUCCESS;
}
STANDIN_API CUresult cuStreamGetDevice(CUstream, CUdevice* device) {
    *device = 0;
    return CUDA_SUCCESS;
}
STANDIN_API CUresult cuStreamGetFlags(CUstream stream, unsigned* flags) {
    *flags = is_default(stream) ? 0 : stream->flags;
    return CUDA_SUCCESS;
}
STANDIN_API CUresult cuStreamGetPriority(CUstream stream, int* priority) {
    *priority = is_default(stream) ? 0 : stream->priority;
    return CUDA_SUCCESS;
}
STANDIN_API CUresult cuStreamIsCapturing(CUstream, int* status) {
    *status = 0;
    return CUDA_SUCCESS;
}
STANDIN_API CUresult cuLaunchHostFunc(CUstream stream, CUhostFn function, void* data) {
    ENTER(cuLaunchHostFunc);
    standin::enqueue(stream, [=] { function(data); });
    return CUDA_SUCCESS;
}

STANDIN_API CUresult cuEventCreate(CUevent* out, unsigned) {
    ENTER(cuEventCreate);
    *out = new Event;
    return CUDA_SUCCESS;
}
STANDIN_API CUresult cuEventDestroy_v2(CUevent event) {
    ENTER(cuEventDestroy);
    delete event;
    return CUDA_SUCCESS;
}
STANDIN_API CUresult cuEventRecord(CUevent event, CUstream stream) {
    ENTER(cuEventRecord);
    if (!is_live(stream)) return CUDA_ERROR_INVALID_HANDLE;
    Mark mark{event->state, 0};
    {
        const std::lock_guard<std::mutex> lock(mark.event->mutex);
        mark.number = ++mark.event->recorded;
    }
    standin::enqueue(stream, [mark] {
        const std::lock_guard<std::mutex> lock(mark.event->mutex);
        mark.event->reached = mark.number;
        mark.event->time = std::chrono::steady_clock::now();
        mark.event->changed.notify_all();
    });
    return CUDA_SUCCESS;
}
STANDIN_API CUresult cuEventSynchronize(CUevent event) {
    ENTER(cuEventSynchronize);
    wait_for(latest(event));
    return standin::sticky();
}
STANDIN_API CUresult cuEventQuery(CUevent event) {
    ENTER(cuEventQuery);
    const std::lock_guard<std::mutex> lock(event->state->mutex);
    return event->state->reached >= event->state->recorded ? standin::sticky() : CUDA_ERROR_NOT_READY;
}
STANDIN_API CUresult cuEventElapsedTime_v2(float* milliseconds, CUevent from, CUevent to) {
    ENTER(cuEventElapsedTime);
    wait_for(latest(from));
    wait_for(latest(to));
    *milliseconds = std::chrono::duration<float, std::milli>(to->state->time - from->state->time).count();
    return CUDA_SUCCESS;
}
