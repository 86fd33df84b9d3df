// What was asked of the driver, in order, for virtual time (gids/bench/cuda_time.py): one line per call, with the host
// thread, the stream, and what kernels did. Off until gids_standin_trace(1).
#include <atomic>
#include <string>
#include <utility>

#include "state.hpp"

namespace {

std::atomic<bool> on{false};
std::mutex trace_mutex;
std::vector<std::string> lines;             // guarded by trace_mutex
std::map<uint64_t, std::string> work_done;  // guarded by trace_mutex; record -> counts, once the work has run
std::atomic<int> threads{0};
thread_local bool quiet = false;
thread_local uint64_t items = 0;

int thread_number() {
    thread_local const int number = threads.fetch_add(1);
    return number;
}

}  // namespace

namespace standin {

bool tracing() { return on.load(std::memory_order_relaxed) && !quiet; }

// kind|thread|stream|name|bytes|more
uint64_t trace(const char* kind, CUstream stream, const std::string& name, uint64_t bytes, const std::string& more) {
    if (!tracing()) return 0;
    const bool has_stream = stream != nullptr || context(nullptr) != nullptr;
    std::string line = std::string(kind) + "|" + std::to_string(thread_number()) + "|" +
                       (has_stream ? std::to_string(number_of(stream)) : "-1") + "|" + name + "|" +
                       std::to_string(bytes) + "|" + more;
    const std::lock_guard<std::mutex> lock(trace_mutex);
    lines.push_back(std::move(line));
    return lines.size();
}
uint64_t take_items() { return std::exchange(items, 0); }
void trace_work(uint64_t record, const std::string& counts) {
    if (record == 0) return;
    const std::lock_guard<std::mutex> lock(trace_mutex);
    work_done[record] = counts;
}

}  // namespace standin

// Begins a new trace (1) or ends it (0).
STANDIN_API void gids_standin_trace(int yes) {
    const std::lock_guard<std::mutex> lock(trace_mutex);
    if (yes != 0) {
        lines.clear();
        work_done.clear();
    }
    on = yes != 0;
}
// How many items the calling thread's next launch is for: nodes, rows, values.
STANDIN_API void gids_standin_items(uint64_t count) { items = count; }
// What the calling thread asks from here on is not part of it (1), or is again (0): for test code among the tested.
STANDIN_API void gids_standin_quiet(int yes) { quiet = yes != 0; }
// Puts a mark of the caller's between the calls: the hand-over of a batch, say.
STANDIN_API void gids_standin_mark(const char* text) { standin::trace("mark", nullptr, text, 0); }
// Says what the calling thread's later calls are for: a batch, say, or the batches of a group. Empty: nothing in
// particular.
STANDIN_API void gids_standin_part(const char* text) { standin::trace("part", nullptr, text, 0); }
// The trace; kernels have their counts behind their line. Copies up to `capacity` bytes and returns how many there are.
STANDIN_API std::size_t gids_standin_trace_text(char* out, std::size_t capacity) {
    const std::lock_guard<std::mutex> lock(trace_mutex);
    std::string all;
    for (std::size_t i = 0; i < lines.size(); ++i) {
        all += lines[i];
        const auto work = work_done.find(i + 1);
        if (work != work_done.end()) all += "|" + work->second;
        all += "\n";
    }
    if (out != nullptr && capacity != 0) all.copy(out, capacity);
    return all.size();
}
