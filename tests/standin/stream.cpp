// Streams and events. Each stream runs its queue on a thread of its own, held back at random by GIDS_STANDIN_SEED:
// only what streams and events promise is kept, and host code that forgets to wait gets wrong bytes.
#include <atomic>
#include <chrono>
#include <map>

#include "state.hpp"

using Clock = std::chrono::steady_clock;

struct Stream {
    struct Work {
        std::function<void()> run;
        std::string kernel;  // empty, if it cannot spin
    };

    Context* context = nullptr;
    unsigned flags = 0;
    int priority = 0;
    int number = 0;
    std::mutex mutex;
    std::condition_variable wake, progress;
    std::deque<Work> queue;             // guarded by mutex
    uint64_t pushed = 0, done = 0;      // guarded by mutex
    bool stopping = false;              // guarded by mutex
    std::string running;                // guarded by mutex; the kernel that runs now
    Clock::time_point running_since{};  // guarded by mutex

    uint64_t push(Work work) {
        const std::lock_guard<std::mutex> lock(mutex);
        queue.push_back(std::move(work));
        wake.notify_one();
        return ++pushed;
    }
    bool is_idle() {
        const std::lock_guard<std::mutex> lock(mutex);
        return done == pushed;
    }
    void run() {
        // How slow this stream is, by seed and number: never, now and then, often.
        uint64_t noise = (standin::setting("GIDS_STANDIN_SEED", 0) + 1) * 0x9E3779B97F4A7C15ull +
                         static_cast<uint64_t>(number + 1) * 0xBF58476D1CE4E5B9ull;
        noise |= 1;
        const uint64_t often = (noise >> 32) % 3;
        std::unique_lock<std::mutex> lock(mutex);
        for (;;) {
            wake.wait(lock, [this] { return stopping || !queue.empty(); });
            if (queue.empty()) return;  // a destroyed stream first finishes what it was given
            Work work = std::move(queue.front());
            queue.pop_front();
            running = work.kernel;
            running_since = Clock::now();
            lock.unlock();
            noise ^= noise << 13, noise ^= noise >> 7, noise ^= noise << 17;
            if (often != 0 && noise % 8 < often) std::this_thread::sleep_for(std::chrono::microseconds(noise % 200));
            {
                const standin::OnDevice device;
                work.run();
            }
            lock.lock();
            running.clear();
            ++done;
            progress.notify_all();
        }
    }
};

struct EventState {
    std::mutex mutex;
    std::condition_variable changed;
    uint64_t recorded = 0, reached = 0;  // guarded by mutex; how often cuEventRecord was called, and came to pass
    std::shared_ptr<Stream> stream;      // guarded by mutex; of the last record
    Clock::time_point time;
    int number = 0;
};
struct Event {  // queued work may outlive the handle, as it may with the real driver
    Context* context = nullptr;
    bool timing = true;
    std::shared_ptr<EventState> state = std::make_shared<EventState>();
};

namespace {

using Shared = std::shared_ptr<Stream>;

std::mutex streams_mutex;
std::map<Stream*, Shared> streams;  // guarded by streams_mutex; those that were created and not destroyed
std::map<Context*, Shared> legacy;  // guarded by streams_mutex; the legacy default stream of each context

std::mutex working_mutex;
// Guarded by working_mutex; default streams of threads too, and destroyed ones that still have work to do.
std::vector<std::weak_ptr<Stream>> working;
std::atomic<int> numbers{0}, event_numbers{0};

Shared make(Context* context, unsigned flags, int priority) {
    auto stream = std::make_shared<Stream>();
    stream->context = context;
    stream->flags = flags;
    stream->priority = priority;
    stream->number = numbers.fetch_add(1);
    std::thread([stream] { stream->run(); }).detach();  // keeps itself alive until its work is done
    const std::lock_guard<std::mutex> lock(working_mutex);
    std::erase_if(working, [](const auto& one) { return one.expired(); });
    working.push_back(stream);
    return stream;
}

// Handles 0 and 1 mean the legacy default stream of the current context, 2 the calling thread's own.
Shared resolve(CUstream handle) {
    const auto value = reinterpret_cast<uintptr_t>(handle);
    if (value > 2) {
        const std::lock_guard<std::mutex> lock(streams_mutex);
        const auto found = streams.find(handle);
        return found == streams.end() ? nullptr : found->second;
    }
    Context* context = standin::context(nullptr);
    if (context == nullptr) return nullptr;
    if (value == 2) {
        thread_local std::map<Context*, Shared> own;
        auto& stream = own[context];
        if (stream == nullptr) stream = make(context, 0, 0);
        return stream;
    }
    const std::lock_guard<std::mutex> lock(streams_mutex);
    auto& stream = legacy[context];
    if (stream == nullptr) stream = make(context, 0, 0);
    return stream;
}

// Returns when `stream` has done `count` pieces of work. For streams that wait for streams.
void wait_until(const Shared& stream, uint64_t count) {
    std::unique_lock<std::mutex> lock(stream->mutex);
    stream->progress.wait(lock, [&] { return stream->done >= count; });
}

// What the legacy default stream means for streams that were not made non-blocking: it waits for them, and they for it.
void order_with_legacy(const Shared& stream) {
    std::vector<std::pair<Shared, uint64_t>> before;
    {
        const std::lock_guard<std::mutex> lock(streams_mutex);
        const auto found = legacy.find(stream->context);
        if (found == legacy.end()) return;
        if (found->second == stream) {
            for (const auto& [handle, other] : streams)
                if (other->context == stream->context && (other->flags & kStreamNonBlocking) == 0)
                    before.emplace_back(other, 0);
        } else if ((stream->flags & kStreamNonBlocking) == 0) {
            before.emplace_back(found->second, 0);
        }
    }
    for (auto& [other, count] : before) {
        {
            const std::lock_guard<std::mutex> lock(other->mutex);
            if (other->done == other->pushed) continue;
            count = other->pushed;
        }
        stream->push({[other = other, count = count] { wait_until(other, count); }, ""});
    }
}

uint64_t push(const Shared& stream, std::function<void()> work, const std::string& kernel = {}) {
    order_with_legacy(stream);
    return stream->push({std::move(work), kernel});
}

// The host waits. A kernel that spins while the host waits for its stream may spin for the host.
CUresult host_wait(const Shared& stream, uint64_t count, const char* call) {
    const auto patience = std::chrono::milliseconds(standin::setting("GIDS_STANDIN_PATIENCE_MS", 90000));
    std::unique_lock<std::mutex> lock(stream->mutex);
    while (stream->done < count) {
        stream->progress.wait_for(lock, std::chrono::milliseconds(20));
        if (stream->done >= count || stream->running.empty() || Clock::now() - stream->running_since < patience)
            continue;
        standin::complain(std::string(call) + " waits on the host for a stream on which kernel " + stream->running +
                          " has been running for more than " + std::to_string(patience.count()) +
                          " ms: if it spins for what the host is to do, neither goes on");
        standin::set_sticky(CUDA_ERROR_LAUNCH_TIMEOUT);
        lock.unlock();
        standin::stop_kernel();
        lock.lock();
        stream->progress.wait(lock, [&] { return stream->done >= count; });
    }
    return standin::sticky();
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
std::string text_of(const Mark& mark) { return std::to_string(mark.event->number) + ":" + std::to_string(mark.number); }
CUresult host_wait_event(const Mark& mark, const char* call) {
    const auto patience = std::chrono::milliseconds(standin::setting("GIDS_STANDIN_PATIENCE_MS", 90000));
    std::unique_lock<std::mutex> lock(mark.event->mutex);
    auto since = Clock::now();
    while (mark.event->reached < mark.number) {
        mark.event->changed.wait_for(lock, std::chrono::milliseconds(20));
        if (mark.event->reached >= mark.number || Clock::now() - since < patience) continue;
        const Shared stream = mark.event->stream;
        lock.unlock();
        const CUresult result = host_wait(stream, 1, call);  // says what runs there, and for how long
        if (result != CUDA_SUCCESS) return result;
        since = Clock::now();
        lock.lock();
    }
    return standin::sticky();
}

CUresult create(CUstream* out, unsigned flags, int priority) {
    const Shared stream = make(standin::context(nullptr), flags, priority);
    const std::lock_guard<std::mutex> lock(streams_mutex);
    streams[stream.get()] = stream;
    *out = stream.get();
    return CUDA_SUCCESS;
}

std::mutex events_mutex;
std::map<Event*, int> events;  // guarded by events_mutex; those that live
bool is_event(CUevent event) {
    const std::lock_guard<std::mutex> lock(events_mutex);
    return events.count(event) != 0;
}

}  // namespace

namespace standin {

bool is_default(CUstream stream) { return reinterpret_cast<uintptr_t>(stream) <= 2; }
bool is_live(CUstream stream) { return resolve(stream) != nullptr; }
CUdevice device_of(CUstream stream) { return resolve(stream)->context->device; }
int number_of(CUstream stream) {
    const Shared found = resolve(stream);
    return found == nullptr ? -1 : found->number;
}
void enqueue(CUstream stream, std::function<void()> work, const std::string& kernel) {
    push(resolve(stream), std::move(work), kernel);
}
CUresult synchronize(CUstream handle, const char* call) {
    const Shared stream = resolve(handle);
    if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    if (is_default(handle)) push(stream, [] {});  // waits for blocking streams too
    uint64_t count = 0;
    {
        const std::lock_guard<std::mutex> lock(stream->mutex);
        count = stream->pushed;
    }
    return host_wait(stream, count, call);
}
bool frees_wait() { return setting("GIDS_STANDIN_SEED", 0) % 2 == 0; }
CUresult synchronize_all(const char* call, const Context* context) {
    std::vector<Shared> all;
    {
        const std::lock_guard<std::mutex> lock(working_mutex);
        for (const auto& one : working)
            if (Shared stream = one.lock(); stream != nullptr && (context == nullptr || stream->context == context))
                all.push_back(std::move(stream));
    }
    for (const Shared& stream : all) {
        uint64_t count = 0;
        {
            const std::lock_guard<std::mutex> lock(stream->mutex);
            count = stream->pushed;
        }
        host_wait(stream, count, call);
    }
    return sticky();
}

}  // namespace standin

STANDIN_API CUresult cuStreamCreate(CUstream* out, unsigned flags) {
    ENTER_IN_CONTEXT(cuStreamCreate);
    return create(out, flags, 0);
}
STANDIN_API CUresult cuStreamCreateWithPriority(CUstream* out, unsigned flags, int priority) {
    ENTER_IN_CONTEXT(cuStreamCreate);
    return create(out, flags, priority);
}
// Streams and events know their context: that they are destroyed on any thread is what cuda.core relies on.
STANDIN_API CUresult cuStreamDestroy_v2(CUstream stream) {
    ENTER(cuStreamDestroy);
    const Shared found = resolve(stream);
    if (standin::is_default(stream) || found == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    {
        const std::lock_guard<std::mutex> lock(streams_mutex);
        streams.erase(stream);
    }
    const std::lock_guard<std::mutex> lock(found->mutex);
    found->stopping = true;
    found->wake.notify_one();
    return CUDA_SUCCESS;
}
STANDIN_API CUresult cuStreamSynchronize(CUstream stream) {
    ENTER_TO_END(cuStreamSynchronize);
    standin::trace("sync stream", stream, "cuStreamSynchronize", 0);
    return standin::synchronize(stream, "cuStreamSynchronize");
}
STANDIN_API CUresult cuStreamQuery(CUstream stream) {
    ENTER_TO_END(cuStreamQuery);
    const Shared found = resolve(stream);
    if (found == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    return found->is_idle() ? standin::sticky() : CUDA_ERROR_NOT_READY;
}
STANDIN_API CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned) {
    ENTER_IN_CONTEXT(cuStreamWaitEvent);
    if (!standin::is_live(stream) || !is_event(event)) return CUDA_ERROR_INVALID_HANDLE;
    const Mark mark = latest(event);
    standin::trace("wait event", stream, "cuStreamWaitEvent", 0, text_of(mark));
    standin::enqueue(stream, [mark] { wait_for(mark); });
    return CUDA_SUCCESS;
}
STANDIN_API CUresult cuStreamGetCtx(CUstream stream, CUcontext* context) {
    ENTER_TO_END(cuStreamGetCtx);
    const Shared found = resolve(stream);
    if (found == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    *context = found->context;
    return CUDA_SUCCESS;
}
STANDIN_API CUresult cuStreamGetDevice(CUstream stream, CUdevice* device) {
    ENTER_TO_END(cuStreamGetDevice);
    const Shared found = resolve(stream);
    if (found == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    *device = found->context->device;
    return CUDA_SUCCESS;
}
STANDIN_API CUresult cuStreamGetFlags(CUstream stream, unsigned* flags) {
    ENTER_TO_END(cuStreamGetFlags);
    const Shared found = resolve(stream);
    if (found == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    *flags = found->flags;
    return CUDA_SUCCESS;
}
STANDIN_API CUresult cuStreamGetPriority(CUstream stream, int* priority) {
    ENTER_TO_END(cuStreamGetPriority);
    const Shared found = resolve(stream);
    if (found == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    *priority = found->priority;
    return CUDA_SUCCESS;
}
STANDIN_API CUresult cuStreamIsCapturing(CUstream, int* status) {
    *status = 0;
    return CUDA_SUCCESS;
}
STANDIN_API CUresult cuLaunchHostFunc(CUstream stream, CUhostFn function, void* data) {
    ENTER_IN_CONTEXT(cuLaunchHostFunc);
    if (!standin::is_live(stream)) return CUDA_ERROR_INVALID_HANDLE;
    standin::trace("host function", stream, "cuLaunchHostFunc", 0);
    standin::enqueue(stream, [=] {
        if (standin::sticky() != CUDA_SUCCESS) return;  // "will not be called in the event of an error in the context"
        const standin::InHostFunction inside;
        function(data);
    });
    return CUDA_SUCCESS;
}
// For virtual time: the calling thread goes on because a function behind this event told it to.
STANDIN_API void gids_standin_told(CUevent event) {
    if (is_event(event)) standin::trace("told", nullptr, "cuLaunchHostFunc", 0, text_of(latest(event)));
}

STANDIN_API CUresult cuEventCreate(CUevent* out, unsigned flags) {
    ENTER_IN_CONTEXT(cuEventCreate);
    if (flags > kEventFlags || ((flags & kEventInterprocess) != 0 && (flags & kEventDisableTiming) == 0))
        return CUDA_ERROR_INVALID_VALUE;
    auto* event = new Event;
    event->timing = (flags & kEventDisableTiming) == 0;
    event->context = standin::context(nullptr);
    event->state->number = event_numbers.fetch_add(1);
    const std::lock_guard<std::mutex> lock(events_mutex);
    events[event] = event->state->number;
    *out = event;
    return CUDA_SUCCESS;
}
STANDIN_API CUresult cuEventDestroy_v2(CUevent event) {
    ENTER(cuEventDestroy);
    {
        const std::lock_guard<std::mutex> lock(events_mutex);
        if (events.erase(event) == 0) return CUDA_ERROR_INVALID_HANDLE;
    }
    delete event;
    return CUDA_SUCCESS;
}
STANDIN_API CUresult cuEventRecord(CUevent event, CUstream handle) {
    ENTER_IN_CONTEXT(cuEventRecord);
    const Shared stream = resolve(handle);
    if (stream == nullptr || !is_event(event)) return CUDA_ERROR_INVALID_HANDLE;
    if (stream->context != event->context) {
        standin::complain("cuEventRecord: the event is of device " + std::to_string(event->context->device) +
                          ", the stream of device " + std::to_string(stream->context->device));
        return CUDA_ERROR_INVALID_HANDLE;
    }
    Mark mark{event->state, 0};
    {
        const std::lock_guard<std::mutex> lock(mark.event->mutex);
        mark.number = ++mark.event->recorded;
        mark.event->stream = stream;
    }
    standin::trace("record event", handle, "cuEventRecord", 0, text_of(mark));
    push(stream, [mark] {
        const std::lock_guard<std::mutex> lock(mark.event->mutex);
        mark.event->reached = mark.number;
        mark.event->time = Clock::now();
        mark.event->changed.notify_all();
    });
    return CUDA_SUCCESS;
}
STANDIN_API CUresult cuEventSynchronize(CUevent event) {
    ENTER_TO_END(cuEventSynchronize);
    if (!is_event(event)) return CUDA_ERROR_INVALID_HANDLE;
    const Mark mark = latest(event);
    standin::trace("sync event", nullptr, "cuEventSynchronize", 0, text_of(mark));
    return host_wait_event(mark, "cuEventSynchronize");
}
STANDIN_API CUresult cuEventQuery(CUevent event) {
    ENTER(cuEventQuery);
    if (!is_event(event)) return CUDA_ERROR_INVALID_HANDLE;
    const std::lock_guard<std::mutex> lock(event->state->mutex);
    return event->state->reached >= event->state->recorded ? standin::sticky() : CUDA_ERROR_NOT_READY;
}
STANDIN_API CUresult cuEventElapsedTime_v2(float* milliseconds, CUevent from, CUevent to) {
    ENTER_TO_END(cuEventElapsedTime);
    if (!is_event(from) || !is_event(to)) return CUDA_ERROR_INVALID_HANDLE;
    if (!from->timing || !to->timing) return CUDA_ERROR_INVALID_HANDLE;
    if (from->context != to->context) {
        standin::complain("cuEventElapsedTime: the events are of two devices");
        return CUDA_ERROR_INVALID_HANDLE;
    }
    for (const CUevent event : {from, to}) {
        const std::lock_guard<std::mutex> lock(event->state->mutex);
        if (event->state->recorded == 0) return CUDA_ERROR_INVALID_HANDLE;
        if (event->state->reached < event->state->recorded) return CUDA_ERROR_NOT_READY;
    }
    *milliseconds = std::chrono::duration<float, std::milli>(to->state->time - from->state->time).count();
    return CUDA_SUCCESS;
}
