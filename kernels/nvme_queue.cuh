// One NVMe I/O queue pair driven by many threads or warps at once, on CUDA and on the CPU from this one source.
//
// Life of a command: claim an id -> take a ticket (= place in the submission ring) -> write the entry -> mark the place
// ready -> somebody moves the tail over all ready places and rings the doorbell -> the drive answers -> somebody drains
// the completion ring and dispatches by command id -> the id is free again. No step waits for another thread:
// every function returns after a bounded amount of work, and says so when there was nothing it could do.
//
// Why the rings cannot overrun. There are at most depth - 1 ids. Take ticket t and the depth tickets (t - depth, t]:
// by the pigeonhole two of them share an id, so the earlier one, v > t - depth, has completed; the drive fetches in
// order, so it has fetched ticket t - depth, whose place t now takes. The chain "completion of v -> id released ->
// id claimed -> ticket" is made of release/acquire pairs, so it is an order, not only a count. The completion ring
// holds depth entries for at most depth - 1 commands, and a drive never posts past the head doorbell.
#pragma once

#include "nvme_spec.cuh"

namespace gids::nvme {

// Everything that the drive or the host may look at while a kernel runs uses system scope; the rest device scope.
#if defined(__CUDACC__) || defined(__CUDACC_RTC__)
template <class T>
using system_ref = cuda::atomic_ref<T, cuda::thread_scope_system>;
#else
template <class T>
using system_ref = atomic_ref<T>;
#endif

GIDS_DEVICE uint32_t count_bits(uint32_t word) {
#if defined(__CUDA_ARCH__)
    return static_cast<uint32_t>(__popc(word));
#else
    return static_cast<uint32_t>(__builtin_popcount(word));
#endif
}

GIDS_DEVICE uint32_t trailing_zeros(uint32_t word) {  // 32 for zero
#if defined(__CUDA_ARCH__)
    return word == 0 ? 32u : static_cast<uint32_t>(__ffs(static_cast<int>(word)) - 1);
#else
    return word == 0 ? 32u : static_cast<uint32_t>(__builtin_ctz(word));
#endif
}

// Writes a doorbell register. release: the entries (tail) or the last look at them (head) come before the drive is
// told.
GIDS_DEVICE void write_doorbell(uint32_t* doorbell, uint32_t value) {
#if defined(__CUDA_ARCH__)
    __threadfence_system();  // cumulative: also orders entries that other warps wrote and this one saw as ready
    asm volatile("st.mmio.relaxed.sys.global.u32 [%0], %1;" ::"l"(doorbell), "r"(value) : "memory");
#else
#if defined(__aarch64__)
    asm volatile("dmb oshst" ::: "memory");  // store-release orders for other cores only, not for devices
#endif
    system_ref<uint32_t>(*doorbell).store(value, memory_order_release);
#endif
}

// Replaces `expected` by `wanted`, and gives what was there. acquire, system: whatever came with the word is visible.
// (PTX, because the library's exchange takes its operand by reference, which costs the kernels local memory.)
GIDS_DEVICE uint32_t exchange_if(uint32_t& word, uint32_t expected, uint32_t wanted) {
#if defined(__CUDA_ARCH__)
    uint32_t seen;
    asm volatile("atom.acquire.sys.cas.b32 %0, [%1], %2, %3;"
                 : "=r"(seen)
                 : "l"(&word), "r"(expected), "r"(wanted)
                 : "memory");
    return seen;
#else
    system_ref<uint32_t>(word).compare_exchange_strong(expected, wanted, memory_order_acquire, memory_order_relaxed);
    return expected;
#endif
}

// A slot's word is generation << 2 | state, so that a watchdog that read an old word can never poison a new command.
enum SlotState : uint32_t { kFree = 0, kInFlight = 1, kAnswered = 2, kPoisoned = 3 };
GIDS_DEVICE uint32_t slot_state(uint32_t word) { return word & 3u; }
GIDS_DEVICE uint32_t with_state(uint32_t word, SlotState state) { return (word & ~3u) | state; }

// What is known about one command id.
struct alignas(32) Slot {
    uint64_t user;          // the submitter's; handed back with the completion
    uint64_t submitted_ns;  // the submitter's clock; the watchdog compares it with the deadline
    uint32_t word;          // generation << 2 | SlotState
};

// Counters that threads fight over, each on its own line (128 bytes: two sectors of a GPU's, a pair of a CPU's). Only
// who submits and drains touches them: where that is a GPU, they are in its memory.
struct QueueControl {
    alignas(128) uint32_t next_ticket;  // of the next command; counts for ever
    alignas(128) uint32_t ring_asks;    // > 0: one thread is moving the tail, and this many asks are not yet served
    uint32_t tail;                      // belongs to the thread that raised ring_asks from 0
    alignas(128) uint32_t draining;     // 1: one thread or warp is reading the completion ring
    uint32_t head;                      // belongs to the drainer; counts for ever
    uint32_t acknowledged;              // belongs to the drainer; head as the drive knows it
    alignas(128) uint32_t first_word;   // where to look for a free id first; a hint
};

// What submitters and the host's watchdog tell each other: always in host memory.
struct QueueShared {
    alignas(128) uint32_t closed;  // not 0: the watchdog has taken the queue away
    uint32_t spurious;             // completions for ids that were not in flight: the drive or we are wrong
    uint32_t late;                 // completions for commands that were given up: arrived after their deadline
};

// A view of a queue pair, trivially copyable into a kernel; the host owns what it points to.
struct QueueRef {
    Command* sq;
    Completion* cq;
    uint32_t* sq_doorbell;
    uint32_t* cq_doorbell;
    QueueControl* control;
    uint32_t* ready;      // per place of the ring: ticket + 1 of the last entry that is complete there
    uint32_t* free_ids;   // one bit per id, 32 to a word; poisoned ids never come back
    QueueShared* shared;  // this and the slots: what the watchdog looks at
    Slot* slots;
    uint64_t* prp_lists;  // one controller page per id
    DmaView lists;
    DmaView data;
    uint64_t data_bytes;
    uint32_t depth;      // entries of both rings: a power of two, at most CAP.MQES + 1
    uint32_t ids;        // 1 <= ids <= depth - 1
    uint32_t page_bits;  // of the controller's memory page, CC.MPS
    uint32_t max_bytes;  // of one transfer: MDTS and the list page
    uint32_t ack_batch;  // completions between two writes of the head doorbell; 1 <= ack_batch <= depth - 1
};

enum class Enqueue : uint32_t {
    kIdle,     // nothing was asked
    kDone,     // the command will be seen by the next ring()
    kFull,     // no free id: drain, then try again
    kClosed,   // the watchdog has taken the queue away
    kInvalid,  // the read breaks a rule of this queue (size, alignment, bounds); it can never succeed
};

GIDS_DEVICE bool valid_read(const QueueRef& q, const Read& read) {
    return read.blocks >= 1 && read.blocks <= kMaxBlocksPerCommand && read.bytes >= 1 && read.bytes <= q.max_bytes &&
           read.offset % 4 == 0 && read.offset <= q.data_bytes && read.bytes <= q.data_bytes - read.offset;
}

// Gives every lane that wants one a command id, or -1 when they run out. One atomic operation serves a whole group.
template <class Exec>
GIDS_DEVICE int32_t claim_ids(const Exec& exec, const QueueRef& q, bool wanted) {
    const uint32_t below = (1u << exec.lane()) - 1u;
    const uint32_t words = (q.ids + 31u) / 32u;
    const uint32_t first = exec.shuffle(atomic_ref<uint32_t>(q.control->first_word).load(memory_order_relaxed), 0);
    int32_t id = -1;
    uint32_t missing = exec.ballot(wanted);
    for (uint32_t i = 0; i < words && missing != 0;) {
        const uint32_t word = first + i < words ? first + i : first + i - words;
        uint32_t got = 0;
        uint32_t left = 0;
        if (exec.lane() == 0) {
            atomic_ref<uint32_t> bits(q.free_ids[word]);
            const uint32_t seen = bits.load(memory_order_relaxed);
            uint32_t take = 0;
            uint32_t rest = seen;
            for (uint32_t n = count_bits(missing); n != 0 && rest != 0; --n) {
                take |= rest & (~rest + 1u);
                rest &= rest - 1u;
            }
            // acquire: pairs with release_id, so the entry's old place and buffer are really free.
            if (take != 0) {
                const uint32_t before = bits.fetch_and(~take, memory_order_acquire);
                got = before & take;
                left = before & ~take;
            }
            // relaxed: a hint. Start where ids are left, so that a busy queue does not search from the front.
            if (left != 0 && word != first) {
                atomic_ref<uint32_t>(q.control->first_word).store(word, memory_order_relaxed);
            }
        }
        exec.sync();  // the leader's acquire counts for the lanes that receive its ids
        got = exec.shuffle(got, 0);
        left = exec.shuffle(left, 0);
        const uint32_t rank = count_bits(missing & below);
        if ((missing >> exec.lane() & 1u) != 0 && rank < count_bits(got)) {
            uint32_t bits = got;
            for (uint32_t skip = rank; skip != 0; --skip) bits &= bits - 1u;
            id = static_cast<int32_t>(word * 32u + trailing_zeros(bits));
        }
        missing = exec.ballot(wanted && id < 0);
        if (left == 0) ++i;  // else another group took some of the bits we saw: the word may still serve us
    }
    return id;
}

// Makes an id free again. release: whoever claims it sees that the drive is done with its place and its buffer.
GIDS_DEVICE void release_id(const QueueRef& q, uint32_t id) {
    Slot& slot = q.slots[id];
    system_ref<uint32_t> word(slot.word);  // the watchdog looks at it while kernels run
    word.store(with_state(word.load(memory_order_relaxed), kFree), memory_order_relaxed);
    atomic_ref<uint32_t>(q.free_ids[id / 32u]).fetch_or(1u << (id % 32u), memory_order_release);
}

GIDS_DEVICE void write_entry(const QueueRef& q, uint32_t ticket, uint32_t id, const Read& read, const Prp& prp) {
    Command& entry = q.sq[ticket & (q.depth - 1u)];
    entry.dw[0] = kOpcodeRead | id << 16;
    entry.dw[1] = read.nsid;
    entry.dw[2] = entry.dw[3] = entry.dw[4] = entry.dw[5] = 0;
    entry.dw[6] = static_cast<uint32_t>(prp.first);
    entry.dw[7] = static_cast<uint32_t>(prp.first >> 32);
    entry.dw[8] = static_cast<uint32_t>(prp.second);
    entry.dw[9] = static_cast<uint32_t>(prp.second >> 32);
    entry.dw[10] = static_cast<uint32_t>(read.lba);
    entry.dw[11] = static_cast<uint32_t>(read.lba >> 32);
    entry.dw[12] = read.blocks - 1u;
    entry.dw[13] = entry.dw[14] = entry.dw[15] = 0;
}

// Puts one read per lane that wants it into the ring; ring() makes the drive look. Collective over the group.
// With bytes_per_id the data goes to the id's own buffer, at id * bytes_per_id of the data region, and read.offset is
// ignored: then a poisoned id takes its buffer out of use with it.
template <class Exec>
GIDS_DEVICE Enqueue enqueue(const Exec& exec, const QueueRef& q, bool wanted, Read read, uint64_t user, uint64_t now_ns,
                            uint64_t bytes_per_id = 0) {
    // relaxed: a queue that closes during this call is caught by the host, which waits for kernels and callers to
    // leave.
    const bool closed = system_ref<uint32_t>(q.shared->closed).load(memory_order_relaxed) != 0;
    if (bytes_per_id != 0) read.offset = 0;
    const bool valid = valid_read(q, read) && (bytes_per_id == 0 || read.bytes <= bytes_per_id);
    const int32_t id = claim_ids(exec, q, wanted && valid && !closed);
    const uint32_t have = exec.ballot(id >= 0);
    uint32_t first = 0;
    if (exec.lane() == 0 && have != 0) {
        // acq_rel: tickets form one chain, so the holder of ticket t knows what every earlier holder knew about free
        // ids.
        first = atomic_ref<uint32_t>(q.control->next_ticket).fetch_add(count_bits(have), memory_order_acq_rel);
    }
    exec.sync();  // the leader's acquire counts for every lane
    first = exec.shuffle(first, 0);
    if (id >= 0) {
        const uint32_t cid = static_cast<uint32_t>(id);
        const uint32_t ticket = first + count_bits(have & ((1u << exec.lane()) - 1u));
        if (bytes_per_id != 0) read.offset = cid * bytes_per_id;
        Slot& slot = q.slots[cid];
        slot.user = user;
        // relaxed: a watchdog that reads a stale time finds a stale generation in `word` too, and its exchange fails.
        system_ref<uint64_t>(slot.submitted_ns).store(now_ns, memory_order_relaxed);
        system_ref<uint32_t> word(slot.word);
        // release: the drainer finds `user` by this word; the path through the drive alone would be no order in C++.
        word.store(((word.load(memory_order_relaxed) & ~3u) + 4u) | kInFlight, memory_order_release);
        const uint64_t list_offset = static_cast<uint64_t>(cid) << q.page_bits;
        uint64_t* list = q.prp_lists + list_offset / sizeof(uint64_t);
        write_entry(q, ticket, cid, read,
                    make_prp(q.data, read.offset, read.bytes, q.page_bits, list, q.lists.iova(list_offset)));
        // release, system: the entry and its list are complete before anyone moves the tail over this place.
        system_ref<uint32_t>(q.ready[ticket & (q.depth - 1u)]).store(ticket + 1u, memory_order_release);
        return Enqueue::kDone;
    }
    if (!wanted) return Enqueue::kIdle;
    if (closed) return Enqueue::kClosed;
    return valid ? Enqueue::kFull : Enqueue::kInvalid;
}

// Tells the drive about `entries` (the same value on every lane) entries that this group marked ready. Only the thread
// that raises ring_asks from 0 writes the doorbell; a thread that finds it raised leaves at once, because the writer
// looks at the ring again before it gives up the role. Nobody waits, no ready entry stays unseen.
template <class Exec>
GIDS_DEVICE void ring(const Exec& exec, const QueueRef& q, uint32_t entries) {
    exec.sync();  // every lane has marked its entry
    if (exec.lane() != 0 || entries == 0) return;
    atomic_ref<uint32_t> asks(q.control->ring_asks);
    // acq_rel: release hands our ready marks to the writer in office; acquire takes over `tail` from the last one.
    if (asks.fetch_add(entries, memory_order_acq_rel) != 0) return;
    for (uint32_t served = entries; served != 0;) {
        uint32_t tail = q.control->tail;
        // acquire: the entry is complete before the drive may fetch it.
        while (system_ref<uint32_t>(q.ready[tail & (q.depth - 1u)]).load(memory_order_acquire) == tail + 1u) ++tail;
        if (tail != q.control->tail) {
            q.control->tail = tail;
            write_doorbell(q.sq_doorbell, tail & (q.depth - 1u));
        }
        // acq_rel: acquire sees the marks of those who asked meanwhile; release hands `tail` to the next writer.
        served = asks.fetch_sub(served, memory_order_acq_rel) - served;
    }
}

// Finds the command of one completion and tells `sink(id, user, status)`, which returns whether the id is free at once
// (else its owner calls release_id when it has done with the buffer). Ids that were not in flight are counted, not
// followed.
template <class Sink>
GIDS_DEVICE bool dispatch(const QueueRef& q, uint32_t dw3, Sink sink) {
    const uint32_t id = completion_id(dw3);
    if (id >= q.ids) {
        atomic_ref<uint32_t>(q.shared->spurious).fetch_add(1u, memory_order_relaxed);
        return false;
    }
    Slot& slot = q.slots[id];
    const uint32_t word = system_ref<uint32_t>(slot.word).load(memory_order_relaxed);
    // acquire: `user` belongs to this submission. The exchange decides the race with the watchdog's poison().
    const uint32_t seen =
        slot_state(word) == kInFlight ? exchange_if(slot.word, word, with_state(word, kAnswered)) : ~word;
    if (seen != word) {
        uint32_t& count = slot_state(word) == kFree ? q.shared->spurious : q.shared->late;
        atomic_ref<uint32_t>(count).fetch_add(1u, memory_order_relaxed);
        return false;
    }
    if (sink(id, slot.user, completion_status(dw3))) release_id(q, id);
    return true;
}

// Reads completions until there is none or about `limit` were seen; returns how many commands were dispatched (the same
// value on every lane). Collective. Returns 0 at once when another thread or warp is draining this queue.
template <class Exec, class Sink>
GIDS_DEVICE uint32_t drain(const Exec& exec, const QueueRef& q, uint32_t limit, Sink sink) {
    QueueControl& control = *q.control;
    bool mine = false;
    if (exec.lane() == 0) {
        atomic_ref<uint32_t> draining(control.draining);
        // relaxed look first: a failed exchange would still take the line from the drainer.
        // acquire: `head` and `acknowledged` as the last drainer left them.
        mine = draining.load(memory_order_relaxed) == 0 && draining.exchange(1u, memory_order_acquire) == 0;
    }
    if (!exec.any(mine)) return 0;
    exec.sync();  // the leader's acquire counts for every lane
    const uint32_t width =
        static_cast<uint32_t>(Exec::kLanes) < q.depth ? static_cast<uint32_t>(Exec::kLanes) : q.depth;
    const uint32_t lane = static_cast<uint32_t>(exec.lane());
    uint32_t head = control.head;
    uint32_t acknowledged = control.acknowledged;
    uint32_t dispatched = 0;
    uint32_t seen = 0;
    for (uint32_t run = width; run == width && seen < limit;) {
        const uint32_t position = head + lane;
        // The drive flips the phase on every lap, beginning with 1.
        const uint32_t phase = (position / q.depth & 1u) ^ 1u;
        // acquire: whatever the drive wrote before this entry (the data) is visible after it.
        const uint32_t dw3 = system_ref<uint32_t>(q.cq[position & (q.depth - 1u)].dw[3]).load(memory_order_acquire);
        // Only the unbroken run from the head counts: lanes may see entries in any order.
        run = trailing_zeros(~exec.ballot(lane < width && completion_phase(dw3) == phase));
        const bool found = lane < run && dispatch(q, dw3, sink);
        dispatched += count_bits(exec.ballot(found));
        head += run;
        seen += run;
        if (head - acknowledged >= q.ack_batch) {
            acknowledged = head;
            exec.sync();  // no lane still reads the entries that are given back
            if (lane == 0) write_doorbell(q.cq_doorbell, head & (q.depth - 1u));
        }
    }
    exec.sync();  // every lane has taken `head` before the leader moves it
    if (lane == 0) {
        control.head = head;
        control.acknowledged = acknowledged;
        // release: the next drainer takes over the two fields above.
        atomic_ref<uint32_t>(control.draining).store(0u, memory_order_release);
    }
    return dispatched;
}

// Takes a command away from the drive's answer: from now on its completion is only counted, its id and its buffer are
// not used again. `word` is what the caller saw when it decided. False: it was answered meanwhile.
GIDS_DEVICE bool poison(const QueueRef& q, uint32_t id, uint32_t word) {
    if (slot_state(word) != kInFlight) return false;
    // acquire: the caller reads the slot's `user` next.
    return exchange_if(q.slots[id].word, word, with_state(word, kPoisoned)) == word;
}

}  // namespace gids::nvme
