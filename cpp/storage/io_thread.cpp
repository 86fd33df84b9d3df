// IoThread: refill, copy what arrived while the device works, wait, repeat.
#include "storage/io_thread.hpp"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "errors.hpp"
#include "storage/interrupts.hpp"

namespace gids::storage {
namespace {

constexpr size_t kClaimReads = 64;
// Completions waited for at once: fewer wake-ups and doorbells, each of which leaves a virtual machine, while the queue
// stays nearly full: a quarter of it, within these bounds, and of large reads no more than so many bytes, which are in
// the caches when they are copied.
constexpr size_t kReapLeast = 16, kReapMost = 32, kReapShare = 4;
constexpr uint64_t kReapBytes = 256 << 10;
// Copies of a reaped batch below this are faster done than handed over. Nor are small reads from a device, however many
// arrived at once: it takes far longer for each of them than the copy does, so no second processor need be woken.
constexpr uint64_t kPoolBytes = kReapBytes, kPoolBytesPerRead = 8 << 10;
constexpr size_t kAhead = 2;  // reads whose rows are fetched into the cache before they are copied
constexpr Microseconds kSlice = Watch::kTurn;
constexpr auto kGivingUp = Watch::kGivingUp;

}  // namespace

IoThread::IoThread(std::shared_ptr<ReaderCore> core, size_t number, uint64_t staging_bytes, unsigned depth)
    : core_(std::move(core)),
      number_(number),
      timeout_(std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(core_->options.timeout_s))),
      pooled_(core_->pool != nullptr && core_->pool->threads() > 1),
      places_(core_->engine->reads_anywhere() && sysconf(_SC_PAGESIZE) == Job::kPage),
      home_cpu_(core_->options.threads == 1 ? core_->engine->home_cpu() : -1) {
    if (core_->engine->needs_staging()) staging_ = std::make_unique<Staging>(staging_bytes, core_->limits.max_io_bytes);
    queue_ = core_->engine->make_queue(staging_ ? staging_->memory() : std::span<std::byte>(), depth);
    slots_.resize(queue_->depth());
    for (auto i = static_cast<uint32_t>(slots_.size()); i > 0; --i) free_.push_back(i - 1);
    requests_.reserve(slots_.size());
    completions_.resize(slots_.size());
}

void IoThread::run() {
    for (;;) {
        now_ = Clock::now();
        core_->watch->begin_turn(number_, now_);
        // In this order: the next reads go to the memory that was just copied from, while it is in the caches.
        hand_out_copies();
        refill();
        if (in_flight_ > stuck_) {
            const size_t count = queue_->reap(completions_, wanted(), kSlice);
            for (size_t i = 0; i < count; ++i) receive(completions_[i]);
            check_timeouts();
            // Before the copies that may end a job, so that its reads are counted by then.
            if (!core_->count(counted_)) break;
        } else if (!help_copying() && !idle_wait()) {
            break;
        }
    }
    shut_down();
}

// With more work to submit, a batch; at the end of the work, all that is left up to a batch.
size_t IoThread::wanted() const {
    const size_t batch = std::clamp(slots_.size() / kReapShare, kReapLeast, kReapMost);
    const size_t by_bytes = kReapBytes * in_flight_ / std::max<uint64_t>(in_flight_bytes_, 1);
    return std::clamp<size_t>((in_flight_ - stuck_) / 2, 1, std::clamp<size_t>(by_bytes, 1, batch));
}

bool IoThread::claim() {
    const std::lock_guard lock(core_->mutex);
    auto& waiting = core_->waiting;
    while (!waiting.empty() && !waiting.front().job->running()) waiting.pop_front();
    if (core_->stopping || waiting.empty()) return false;
    auto& front = waiting.front();
    claimed_ = front.job;
    claimed_->begin();
    claim_next_ = front.next;
    // Small enough that the last claims of several threads end at about the same time.
    const size_t total = claimed_->plan().reads().size(), left = total - claim_next_;
    claim_end_ = claim_next_ + std::clamp<size_t>(left / (2 * core_->options.threads), 1, kClaimReads);
    front.next = claim_end_;
    if (claim_end_ == total) waiting.pop_front();
    return true;
}

void IoThread::refill() {
    if (staging_ && pooled_) {
        const std::lock_guard lock(copies_mutex_);
        for (std::byte* buffer : returned_) staging_->give_back(buffer);
        returned_.clear();
    }
    requests_.clear();
    while (!free_.empty()) {
        if (claimed_ && !claimed_->running()) claimed_ = nullptr;
        if (!claimed_ && !claim()) break;
        const Read* read = &claimed_->plan().reads()[claim_next_];
        std::byte* buffer = places_ ? claimed_->place_of(core_->layout, *read) : nullptr;
        const bool placed = buffer != nullptr;
        if (placed && !claimed_->begin_copy()) continue;
        if (staging_ && !placed && (buffer = staging_->take(read->length)) == nullptr) break;
        const uint32_t index = free_.back();
        free_.pop_back();
        ++in_flight_;
        in_flight_bytes_ += read->length;
        const bool last = ++claim_next_ == claim_end_;
        slots_[index] = {
            last ? std::move(claimed_) : claimed_, read, buffer, read->length, 0, now_, true, placed, false};
        if (last) claimed_ = nullptr;
        requests_.push_back({index, read->offset, read->length, read->file, buffer, !placed});
    }
    if (!requests_.empty()) {
        const IoRequest& first = requests_.front();
        core_->watch->hand_over(number_, first.file, first.offset, first.length);
        queue_->submit(requests_);
    } else if (stuck_ > 0 && in_flight_ == stuck_ && (claimed_ || free_.empty())) {
        fail_waiting();
    }
}

// Stuck requests hold every slot or too much staging for the next read: who waits for them would wait for ever.
void IoThread::fail_waiting() {
    {
        const std::lock_guard lock(copies_mutex_);
        if (copiers_ > 0 || !copies_.empty() || !returned_.empty() || !arrived_.empty()) return;
    }
    while (claimed_ || claim()) {
        const Read& read = claimed_->plan().reads()[claim_next_];
        claimed_->fail({"the queue is full of requests that timed out", core_->layout.files()[read.file].path,
                        read.offset, read.length, 0});
        claimed_ = nullptr;
    }
}

void IoThread::release(uint32_t index) {
    Slot& slot = slots_[index];
    if (slot.stuck) {
        --stuck_;
        core_->watch->orphaned_reads -= slot.placed;
    }
    slot.job = nullptr;
    slot.busy = slot.placed = slot.stuck = false;
    --in_flight_;
    in_flight_bytes_ -= slot.length;
    free_.push_back(index);
}

void IoThread::fail(Slot& slot, const std::string& what, int error_number) {
    ++counted_.errors;
    const Read& read = *slot.read;
    slot.job->fail(
        {what, core_->layout.files()[read.file].path, read.offset + slot.done, read.length - slot.done, error_number});
}

void IoThread::receive(const IoCompletion& completion) {
    const auto index = static_cast<uint32_t>(completion.tag);
    Slot& slot = slots_[index];
    const Read& read = *slot.read;
    const uint64_t block = core_->limits.block_bytes;
    bool complete = false, again = false;
    if (slot.stuck) {
        // It came back after all: only the buffer is of interest.
    } else if (completion.result == -EAGAIN || completion.result == -EINTR) {
        again = slot.job->running();
    } else if (completion.result < 0) {
        const std::string reason = queue_->explain(completion.tag);
        fail(slot, reason.empty() ? "read failed" : reason, static_cast<int>(-completion.result));
    } else {
        const uint64_t got = slot.done + static_cast<uint64_t>(completion.result);
        const uint64_t served = uint64_t{read.count} * (read.row_end - read.row_begin);
        // In memory, what lies between the rows is not touched.
        counted_.bytes_read += completion.data ? std::min(got, served) : static_cast<uint64_t>(completion.result);
        complete = got >= read.length;
        if (!complete) {
            const uint64_t last_row = slot.job->plan().key(size_t{read.first} + read.count - 1);
            const uint64_t needed = core_->layout.offset_of(last_row, read.file) + read.row_end - read.offset;
            complete = got >= needed;  // the file's tail: what is missing lies behind the last row
            // Go on from the last whole block: direct reads cannot begin in the middle of one.
            const auto whole = static_cast<uint32_t>(got & ~(block - 1));
            if (!complete && whole > slot.done) {
                slot.done = whole;
                again = slot.job->running();
            } else if (!complete) {
                fail(slot, got == slot.done ? "the file ends before its rows do" : "short read", 0);
            }
        }
    }
    if (again) {
        ++counted_.retries;
        slot.since = now_;
        const IoRequest request{index,
                                read.offset + slot.done,
                                read.length - slot.done,
                                read.file,
                                slot.buffer ? slot.buffer + slot.done : nullptr,
                                !slot.placed};
        queue_->submit({&request, 1});
        return;
    }
    ++counted_.reads;
    if (complete && slot.placed) {
        ++counted_.placed;
        arrived_.push_back({std::move(slot.job), &read, nullptr, nullptr});
    } else if (complete) {
        const std::byte* data = completion.data ? completion.data - slot.done : slot.buffer;
        arrived_.push_back({std::move(slot.job), &read, data, slot.buffer});
    } else if (slot.placed) {
        if (!slot.stuck) slot.job->end_copy(0);
    } else if (slot.buffer) {
        staging_->give_back(slot.buffer);
    }
    release(index);
}

void IoThread::copy(std::vector<Arrived>& arrived) {
    for (size_t begin = 0; begin < arrived.size();) {
        Job& job = *arrived[begin].job;
        size_t end = begin;
        while (end < arrived.size() && arrived[end].job.get() == &job) ++end;
        if (job.begin_copy()) {
            for (size_t i = begin; i < end; ++i) {
                if (arrived[i].data == nullptr) continue;
                if (core_->engine->guarded()) {
                    copy_guarded(job, arrived[i]);
                    continue;
                }
                if (i + kAhead < end && arrived[i + kAhead].data != nullptr)
                    job.prefetch_first(core_->layout, *arrived[i + kAhead].read, arrived[i + kAhead].data);
                job.copy_out(core_->layout, *arrived[i].read, arrived[i].data);
            }
            job.end_copy(end - begin);
        }
        for (; begin < end; ++begin)
            if (arrived[begin].data == nullptr) job.end_copy(0);
    }
}

void IoThread::copy_guarded(Job& job, const Arrived& item) {
    const Read& read = *item.read;
    const bool copied = job.copy_out_guarded(core_->layout, read, item.data);
    // Asked afterwards: up to the end of its last page, a file that was truncated meanwhile reads as zeros.
    const uint64_t there = core_->engine->file_bytes(read.file);
    const uint64_t last_row = job.plan().key(size_t{read.first} + read.count - 1);
    const uint64_t end = core_->layout.offset_of(last_row, read.file) + read.row_end;
    if (copied && there >= end) return;
    const uint64_t missing = std::clamp(there, read.offset, end);
    const bool ends = there < end;
    job.fail({ends ? "the file ends before its rows do" : "the mapped file cannot be read",
              core_->layout.files()[read.file].path, ends ? missing : read.offset, end - (ends ? missing : read.offset),
              ends ? 0 : EIO});
    const std::lock_guard lock(core_->mutex);
    ++core_->stats.errors;
}

void IoThread::hand_out_copies() {
    if (arrived_.empty()) return;
    uint64_t bytes = 0;
    if (pooled_)
        for (const Arrived& item : arrived_)
            if (item.data != nullptr) bytes += uint64_t{item.read->count} * core_->layout.row_bytes();
    const uint64_t least = std::max(kPoolBytes, staging_ ? arrived_.size() * kPoolBytesPerRead : 0);
    if (bytes < least) {
        copy(arrived_);
        if (staging_)
            for (const Arrived& item : arrived_)
                if (item.buffer != nullptr) staging_->give_back(item.buffer);
        arrived_.clear();
        return;
    }
    {
        const std::lock_guard lock(copies_mutex_);
        copies_.push_back(std::move(arrived_));
    }
    arrived_.clear();
    // The pool may be busy, even with callers that wait for this very read: the task only offers help, and this
    // thread copies by itself whenever it has nothing else to do.
    core_->pool->post([self = shared_from_this()] { self->help_copying(); });
}

bool IoThread::help_copying() {
    std::vector<Arrived> batch;
    {
        const std::lock_guard lock(copies_mutex_);
        if (copies_.empty()) return false;
        batch = std::move(copies_.back());
        copies_.pop_back();
        ++copiers_;
    }
    copy(batch);
    const std::lock_guard lock(copies_mutex_);
    for (const Arrived& item : batch)
        if (item.buffer) returned_.push_back(item.buffer);
    --copiers_;
    copies_changed_.notify_all();
    return true;
}

void IoThread::check_timeouts() {
    if (now_ < next_check_) return;
    next_check_ = now_ + std::min<Clock::duration>(timeout_ / 4, kSlice);
    for (Slot& slot : slots_) {
        if (!slot.busy || slot.stuck) continue;
        // Whoever gave up waits until nothing is written to the rows any more, though not for a device that hangs.
        const bool given_up = slot.placed && !slot.job->running();
        if (now_ - slot.since < (given_up ? std::min<Clock::duration>(timeout_, kGivingUp) : timeout_)) continue;
        ++counted_.timeouts;
        fail(slot, "read timed out", 0);
        core_->count(counted_);  // before whoever waits for the slot hears of it
        set_stuck(slot);
    }
}

void IoThread::set_stuck(Slot& slot) {
    slot.stuck = true;
    ++stuck_;
    if (slot.placed) {
        ++core_->watch->orphaned_reads;
        slot.job->abandon();
    } else {
        slot.job = nullptr;
    }
}

// Sleeps until there is work. False when it is time to stop.
bool IoThread::idle_wait() {
    {
        // A claim that waits for staging: buffers out for copying come back through copies_changed_.
        std::unique_lock lock(copies_mutex_);
        if (claimed_) {
            copies_changed_.wait(lock, [this] { return !returned_.empty() || !copies_.empty() || copiers_ == 0; });
            return true;
        }
    }
    core_->watch->rest(number_);
    std::unique_lock lock(core_->mutex);
    const auto ready = [this] { return core_->stopping || !core_->waiting.empty(); };
    // Stuck requests may still come back, so that their buffers can be used again.
    if (stuck_ > 0) core_->work.wait_for(lock, kSlice, ready);
    else core_->work.wait(lock, ready);
    const bool stop = core_->stopping;
    lock.unlock();
    if (!stop) move_to_cpu(home_cpu_);
    if (!stop && stuck_ > 0) {
        const size_t count = queue_->reap(completions_, 0, Microseconds(0));
        for (size_t i = 0; i < count; ++i) receive(completions_[i]);
    }
    return !stop;
}

void IoThread::shut_down() {
    core_->watch->begin_turn(number_, Clock::now());
    const auto deadline = Clock::now() + kGivingUp;
    if (in_flight_ > 0) queue_->cancel();
    while (in_flight_ > 0 && Clock::now() < deadline) {
        const size_t count = queue_->reap(completions_, 1, Microseconds(50'000));
        for (size_t i = 0; i < count; ++i) receive(completions_[i]);
    }
    for (Slot& slot : slots_)
        if (slot.busy && slot.placed && !slot.stuck) set_stuck(slot);
    copy(arrived_);  // of ended jobs: nothing is copied, brackets are closed
    arrived_.clear();
    std::unique_lock lock(copies_mutex_);
    for (auto& batch : copies_) copy(batch);
    copies_.clear();
    copies_changed_.wait(lock, [this] { return copiers_ == 0; });
    if (in_flight_ > 0 && staging_) staging_->abandon();
    queue_ = nullptr;
}

}  // namespace gids::storage
