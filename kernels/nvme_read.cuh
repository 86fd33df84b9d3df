// Reads of a whole plan over several drives: submit_reads and poll_reads are separate steps, so that a kernel can queue
// every read and other work runs before anyone looks for the answers.
#pragma once

#ifdef GIDS_SIMT
#include <chrono>
#include <thread>
#endif

#include "nvme_queue.cuh"

namespace gids::nvme {

struct DriveRef {
    const QueueRef* queues;
    uint32_t num_queues;
};

// A read's result word: 0 while pending, else kSettled with the drive's status (low 15 bits) or a local reason.
inline constexpr uint32_t kSettled = 1u << 31;
inline constexpr uint32_t kLocalInvalid = 1u << 16;   // breaks a rule of the queue; never sent
inline constexpr uint32_t kLocalClosed = 2u << 16;    // the watchdog took the queue away; never sent
inline constexpr uint32_t kLocalDeadline = 3u << 16;  // no free command id before the deadline; never sent

// What a poll came to; in device memory, zeroed by the caller.
struct Outcome {
    uint32_t unsettled;  // warps that gave up: 0 means that every read of the set is settled
    uint32_t failed;     // reads that were settled with a status, or never sent
    uint32_t finished;   // warps that wait no more; those that look at the queues then leave too
    uint32_t closed;     // not 0: the watchdog took a queue away
};

// Pending words need no host: `results` lives where the kernel runs and outlives every command of the set.
struct ReadSet {
    const Read* reads;
    uint32_t* results;  // zeroed by the caller
    uint32_t count;
};

// Completions carry the address of their result word. release: the data is visible before the word says so.
struct ResultSink {
    GIDS_DEVICE bool operator()(uint32_t, uint64_t user, uint32_t status) const {
        uint32_t* result = reinterpret_cast<uint32_t*>(user);
        atomic_ref<uint32_t>(*result).store(kSettled | status, memory_order_release);
        return true;
    }
};

#if defined(__CUDACC__) || defined(__CUDACC_RTC__)
// Nanoseconds of the GPU's global timer. pause() is what a group does when it found nothing to do.
struct DeviceClock {
    GIDS_DEVICE uint64_t now_ns() const {
        uint64_t now;
        asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
        return now;
    }
    GIDS_DEVICE void pause() const { __nanosleep(200); }
};
#elif defined(GIDS_SIMT)
struct DeviceClock {
    uint64_t now_ns() const {
        return static_cast<uint64_t>(
            std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
                .count());
    }
    void pause() const { std::this_thread::yield(); }
};
#endif

// Queues the reads of chunks worker, worker + workers, ... (a chunk is one read per lane). When a queue has no free id
// the group drains it and tries again, each chunk for at most timeout_ns. Every read is afterwards in flight or
// settled.
template <class Exec, class Clock>
GIDS_DEVICE void submit_reads(const Exec& exec, const DriveRef* drives, const ReadSet& set, uint32_t worker,
                              uint32_t workers, const Clock& clock, uint64_t timeout_ns) {
    const uint64_t lanes = static_cast<uint64_t>(Exec::kLanes);
    for (uint64_t base = worker * lanes; base < set.count; base += workers * lanes) {
        const uint64_t i = base + static_cast<uint64_t>(exec.lane());
        bool waiting = i < set.count;
        const Read& read = set.reads[waiting ? i : base];  // not a copy: registers are scarcer than loads here
        const uint32_t target = read.drive;
        const uint64_t started = exec.shuffle(clock.now_ns(), 0);
        for (uint32_t waiters = exec.ballot(waiting); waiters != 0; waiters = exec.ballot(waiting)) {
            // One queue at a time: the first lane that still waits decides which.
            const uint32_t drive = exec.shuffle(target, static_cast<int>(trailing_zeros(waiters)));
            const QueueRef& q = drives[drive].queues[worker % drives[drive].num_queues];
            const uint64_t now = exec.shuffle(clock.now_ns(), 0);
            const Enqueue outcome =
                enqueue(exec, q, waiting && target == drive, read, reinterpret_cast<uint64_t>(set.results + i), now);
            const uint32_t posted = count_bits(exec.ballot(outcome == Enqueue::kDone));
            ring(exec, q, posted);
            uint32_t refused = outcome == Enqueue::kInvalid  ? kLocalInvalid
                               : outcome == Enqueue::kClosed ? kLocalClosed
                                                             : 0u;
            if (exec.any(outcome == Enqueue::kFull)) {
                const uint32_t freed = drain(exec, q, q.depth, ResultSink{});
                const bool expired = posted == 0 && freed == 0 && now - started > timeout_ns;
                if (expired && outcome == Enqueue::kFull) refused = kLocalDeadline;
                if (posted == 0 && freed == 0) clock.pause();
            }
            // release: as ResultSink; a reader of the word needs no other order here.
            if (refused != 0) atomic_ref<uint32_t>(set.results[i]).store(kSettled | refused, memory_order_release);
            if (refused != 0 || outcome == Enqueue::kDone) waiting = false;
        }
    }
}

// Looks at one queue until the `waiters` wait no more: nobody else does, so that its ring is read once.
template <class Exec, class Clock>
GIDS_DEVICE void poll_queue(const Exec& exec, const QueueRef& q, Outcome& outcome, uint32_t waiters,
                            const Clock& clock) {
    for (;;) {
        const uint32_t found = drain(exec, q, q.depth, ResultSink{});
        // relaxed: only says that the watchdog wants the queues; it waits until this kernel has ended.
        if (exec.any(system_ref<uint32_t>(q.shared->closed).load(memory_order_relaxed) != 0)) {
            if (exec.lane() == 0) atomic_ref<uint32_t>(outcome.closed).store(1u, memory_order_relaxed);
            return;
        }
        // relaxed: whoever leaves by it reads nothing that the waiters wrote.
        if (exec.shuffle(atomic_ref<uint32_t>(outcome.finished).load(memory_order_relaxed), 0) == waiters) return;
        if (found == 0) clock.pause();
    }
}

// Waits in device memory until the reads of this worker's chunks are settled, at most timeout_ns from now, and adds
// what came of them to the outcome. Returns whether all are settled; if not, the host's watchdog decides what follows.
template <class Exec, class Clock>
GIDS_DEVICE bool wait_for_reads(const Exec& exec, const ReadSet& set, Outcome& outcome, uint32_t worker,
                                uint32_t workers, const Clock& clock, uint64_t timeout_ns) {
    const uint64_t lanes = static_cast<uint64_t>(Exec::kLanes);
    const uint64_t started = exec.shuffle(clock.now_ns(), 0);
    bool settled = true;
    uint32_t failed = 0;
    for (uint64_t base = worker * lanes; base < set.count && settled; base += workers * lanes) {
        const uint64_t i = base + static_cast<uint64_t>(exec.lane());
        for (;;) {
            // acquire: pairs with ResultSink, so the data of a settled read may be used.
            const uint32_t result =
                i < set.count ? atomic_ref<uint32_t>(set.results[i]).load(memory_order_acquire) : kSettled;
            if (exec.ballot(result == 0) == 0) {
                failed += count_bits(exec.ballot(result != kSettled));
                break;
            }
            const uint64_t now = exec.shuffle(clock.now_ns(), 0);
            // relaxed: as in poll_queue().
            settled = !exec.any(atomic_ref<uint32_t>(outcome.closed).load(memory_order_relaxed) != 0) &&
                      now - started <= timeout_ns;
            if (!settled) break;
            clock.pause();
        }
    }
    if (exec.lane() == 0) {
        // relaxed: read by the host after the kernel has ended.
        if (failed != 0) atomic_ref<uint32_t>(outcome.failed).fetch_add(failed, memory_order_relaxed);
        if (!settled) atomic_ref<uint32_t>(outcome.unsettled).fetch_add(1u, memory_order_relaxed);
        atomic_ref<uint32_t>(outcome.finished).fetch_add(1u, memory_order_relaxed);
    }
    return settled;
}

// One worker for each queue looks at it; the others, of which there is at least one, wait for the reads.
template <class Exec, class Clock>
GIDS_DEVICE bool poll_reads(const Exec& exec, const DriveRef* drives, uint32_t num_drives, const ReadSet& set,
                            Outcome& outcome, uint32_t worker, uint32_t workers, const Clock& clock,
                            uint64_t timeout_ns) {
    uint32_t queues = 0;
    for (uint32_t d = 0; d < num_drives; ++d) queues += drives[d].num_queues;
    if (worker >= queues)
        return wait_for_reads(exec, set, outcome, worker - queues, workers - queues, clock, timeout_ns);
    uint32_t drive = 0;
    for (; worker >= drives[drive].num_queues; ++drive) worker -= drives[drive].num_queues;
    poll_queue(exec, drives[drive].queues[worker], outcome, workers - queues, clock);
    return true;
}

}  // namespace gids::nvme
