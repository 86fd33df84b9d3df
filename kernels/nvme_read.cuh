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

// Waits until the reads of this worker's chunks are settled, at most timeout_ns from now, and drains the queues of
// drives that still owe answers. Returns whether all are settled; if not, the host's watchdog decides what follows.
template <class Exec, class Clock>
GIDS_DEVICE bool poll_reads(const Exec& exec, const DriveRef* drives, const ReadSet& set, uint32_t worker,
                            uint32_t workers, const Clock& clock, uint64_t timeout_ns) {
    const uint64_t lanes = static_cast<uint64_t>(Exec::kLanes);
    const uint64_t started = exec.shuffle(clock.now_ns(), 0);
    for (uint64_t base = worker * lanes; base < set.count; base += workers * lanes) {
        const uint64_t i = base + static_cast<uint64_t>(exec.lane());
        for (;;) {
            // acquire: pairs with ResultSink, so the data of a settled read may be used.
            const bool pending = i < set.count && atomic_ref<uint32_t>(set.results[i]).load(memory_order_acquire) == 0;
            const uint32_t waiters = exec.ballot(pending);
            if (waiters == 0) break;
            const uint32_t mine = set.reads[i < set.count ? i : base].drive;
            const DriveRef& drive = drives[exec.shuffle(mine, static_cast<int>(trailing_zeros(waiters)))];
            uint32_t found = 0;
            bool closed = false;
            for (uint32_t n = 0; n < drive.num_queues; ++n) {
                const QueueRef& q = drive.queues[(worker + n) % drive.num_queues];
                found += drain(exec, q, q.depth, ResultSink{});
                // relaxed: only says that the watchdog wants the queues; it waits until this kernel has ended.
                closed = closed || system_ref<uint32_t>(q.control->closed).load(memory_order_relaxed) != 0;
            }
            if (exec.any(closed)) return false;
            const uint64_t now = exec.shuffle(clock.now_ns(), 0);
            if (found == 0 && now - started > timeout_ns) return false;
            if (found == 0) clock.pause();
        }
    }
    return true;
}

}  // namespace gids::nvme
