// Timed: claiming, writing entries, PRPs, doorbell stores, reading completions, dispatch. Not timed: the drive's part.
#include "nvme/queue_bench.hpp"

#include <algorithm>
#include <atomic>
#include <barrier>
#include <bit>
#include <chrono>
#include <mutex>
#include <thread>

#include "nvme/stub_controller.hpp"

namespace gids::nvme {
namespace {

using Clock = std::chrono::steady_clock;

// One thread's batches; returns nanoseconds of queue code per command, from the median batch: what the scheduler takes
// away from a few batches is not the code's. `drained` counts over all threads that share the pair,
// since a thread may drain another's answers; `total` is what they submit together.
double work(StubController& stub, std::mutex& drive, uint64_t commands, uint32_t batch, std::atomic<uint64_t>& drained,
            uint64_t total) {
    const QueueRef q = stub.queue();
    std::vector<double> per_command;
    uint64_t sent = 0;
    while (sent < commands || drained.load() < total) {
        auto start = Clock::now();
        const auto wanted = static_cast<uint32_t>(std::min<uint64_t>(batch, commands - sent));
        uint32_t posted = 0;
        while (posted < wanted) {
            const Read read{(sent + posted) * 8, (sent + posted) % batch * 4096, 8, 4096, 1, 0};
            if (enqueue(kSerial, q, true, read, 1, 0) != Enqueue::kDone) break;
            ++posted;
        }
        ring(kSerial, q, posted);
        auto timed = Clock::now() - start;
        sent += posted;
        {
            const std::lock_guard lock(drive);
            stub.step();
        }
        start = Clock::now();
        const uint32_t seen = drain(kSerial, q, q.depth, [](uint32_t, uint64_t, uint32_t) { return true; });
        timed += Clock::now() - start;
        drained += seen;
        // Half of a command's work is to submit it, half to drain it; with a shared pair the halves may be of two
        // threads.
        if (posted + seen != 0)
            per_command.push_back(std::chrono::duration<double, std::nano>(timed).count() * 2 / (posted + seen));
    }
    std::nth_element(per_command.begin(), per_command.begin() + per_command.size() / 2, per_command.end());
    return per_command[per_command.size() / 2];
}

}  // namespace

QueueRate measure_queue(uint32_t threads, bool shared, uint64_t commands, uint32_t batch) {
    if (threads < 1 || threads > 64 || batch < 1 || batch > 4096 || commands < 1)
        throw ConfigError("threads must be 1 to 64, batch 1 to 4096, commands at least 1 (got " +
                          std::to_string(threads) + ", " + std::to_string(batch) + ", " + std::to_string(commands) +
                          ")");
    StubOptions options;
    const uint32_t depth = std::bit_ceil(2 * batch * (shared ? threads : 1));
    options.shape = {depth, depth - 1, 12};
    options.data_bytes = uint64_t{batch} * 4096;
    options.ack_batch = depth / 4;
    options.check = options.move_data = false;
    std::vector<std::unique_ptr<StubController>> stubs;
    std::vector<std::unique_ptr<std::mutex>> drives;
    for (uint32_t i = 0; i < (shared ? 1 : threads); ++i) {
        stubs.push_back(std::make_unique<StubController>(options));
        drives.push_back(std::make_unique<std::mutex>());
    }
    std::vector<std::atomic<uint64_t>> drained(stubs.size());
    std::vector<double> times(threads);  // ns per command
    std::barrier together(threads);
    std::vector<std::thread> running;
    for (uint32_t i = 0; i < threads; ++i)
        running.emplace_back([&, i] {
            const size_t mine = shared ? 0 : i;
            together.arrive_and_wait();
            times[i] = work(*stubs[mine], *drives[mine], commands, batch, drained[mine],
                            shared ? commands * threads : commands);
        });
    for (auto& thread : running) thread.join();
    double rate = 0;
    for (const double time : times) rate += 1e9 / time;
    return {rate, *std::max_element(times.begin(), times.end())};
}

}  // namespace gids::nvme
