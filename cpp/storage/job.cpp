// Job: the copy from staging to the caller's rows, and the state machine that keeps late data out of them.
#include "storage/job.hpp"

#ifdef __x86_64__
#include <immintrin.h>
#endif

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>
#include <vector>

#include "errors.hpp"
#include "storage/kernel_copy.hpp"

namespace gids::storage {
namespace {

template <uint64_t kBytes>
void copy_fixed(std::byte* to, const std::byte* from, uint64_t) {
    std::memcpy(to, from, kBytes);
}
void copy_any(std::byte* to, const std::byte* from, uint64_t bytes) { std::memcpy(to, from, bytes); }

// Rows are scattered, so the hardware cannot guess the next one; within a row it can.
constexpr size_t kRowsAhead = 2;
constexpr uint64_t kLine = 64, kPrefetchBytes = 512;

// Rows beyond what caches hold are written past them: reading a line only to overwrite it would double the traffic.
constexpr uint64_t kStreamBytes = uint64_t{32} << 20;

void prefetch_from(const std::byte* from, uint64_t bytes) {
    for (uint64_t at = 0; at < std::min(bytes, kPrefetchBytes); at += kLine) __builtin_prefetch(from + at, 0);
}
void prefetch_to(const std::byte* to, uint64_t bytes) {
    for (uint64_t at = 0; at < std::min(bytes, kPrefetchBytes); at += kLine) __builtin_prefetch(to + at, 1);
}

#ifdef __x86_64__
void stream_sse2(std::byte* to, const std::byte* from, uint64_t bytes) {
    auto* target = reinterpret_cast<__m128i*>(to);
    const auto* source = reinterpret_cast<const __m128i*>(from);
    for (uint64_t at = 0; at < bytes; at += kLine, target += 4, source += 4) {
        const __m128i a = _mm_loadu_si128(source), b = _mm_loadu_si128(source + 1);
        const __m128i c = _mm_loadu_si128(source + 2), d = _mm_loadu_si128(source + 3);
        _mm_stream_si128(target, a);
        _mm_stream_si128(target + 1, b);
        _mm_stream_si128(target + 2, c);
        _mm_stream_si128(target + 3, d);
    }
}

// Whole lines at once: a quarter faster than four stores that have to be combined.
__attribute__((target("avx512f"))) void stream_avx512(std::byte* to, const std::byte* from, uint64_t bytes) {
    for (uint64_t at = 0; at < bytes; at += kLine)
        _mm512_stream_si512(reinterpret_cast<__m512i*>(to + at), _mm512_loadu_si512(from + at));
}

const auto copy_streaming = __builtin_cpu_supports("avx512f") ? stream_avx512 : stream_sse2;
#endif

}  // namespace

Job::Job(ReadPlan plan, std::byte* out, uint64_t row_bytes, std::shared_ptr<Watch> watch)
    : plan_(std::move(plan)),
      out_(out),
      watch_(std::move(watch)),
      remaining_(plan_.reads().size()),
      progress_(Watch::Clock::now().time_since_epoch().count()) {
    if (plan_.reads().empty()) state_ = State::kDone;
#ifdef __x86_64__
    streams_ = row_bytes % kLine == 0 && reinterpret_cast<uintptr_t>(out) % kLine == 0 &&
               static_cast<uint64_t>(plan_.num_rows()) * row_bytes >= kStreamBytes;
#else
    static_cast<void>(row_bytes);
#endif
}

// Where the row with key 0 would begin relative to the data of a read; wraps around, as unsigned arithmetic may.
uint64_t Job::origin(const TableLayout& layout, const Read& read) {
    return layout.offset_of(layout.first_key(read.file), read.file) -
           layout.first_key(read.file) * layout.row_stride() + read.row_begin - read.offset;
}

std::byte* Job::place_of(const TableLayout& layout, const Read& read) const {
    if (read.count != 1 || read.length != kPage) return nullptr;
    const uint64_t begin = layout.offset_of(plan_.key(read.first), read.file) + read.row_begin;
    if (read.offset != begin || read.length != read.row_end - read.row_begin) return nullptr;
    std::byte* const place = out_ + plan_.position(read.first) * layout.row_bytes() + read.row_begin;
    return reinterpret_cast<uintptr_t>(place) % kPage == 0 ? place : nullptr;
}

void Job::copy_out(const TableLayout& layout, const Read& read, const std::byte* data) const {
    const uint64_t part = read.row_end - read.row_begin;
    const uint64_t row_bytes = layout.row_bytes();
    std::byte* const out = out_ + read.row_begin;
    const uint64_t first = origin(layout, read);
    const size_t last = size_t{read.first} + read.count;
    const auto target = [&](size_t i) { return out + plan_.position(i) * row_bytes; };
    const auto source = [&](size_t i) { return data + (first + plan_.key(i) * layout.row_stride()); };
    const auto each_row = [&](auto&& move) {
        for (size_t i = read.first; i < last; ++i) move(target(i), source(i), part);
    };
    const auto each_long_row = [&](auto&& move) {
        for (size_t i = read.first; i < last; ++i) {
            if (i + kRowsAhead < last) {
                prefetch_from(source(i + kRowsAhead), part);
                if (!streams_) prefetch_to(target(i + kRowsAhead), part);
            }
            move(target(i), source(i), part);
        }
    };
    if (part == 4) each_row(copy_fixed<4>);
    else if (part == 8) each_row(copy_fixed<8>);
#ifdef __x86_64__
    else if (streams_ && part == row_bytes) {
        each_long_row(copy_streaming);
        _mm_sfence();  // streamed lines are visible before end_copy says so
    }
#endif
    else
        each_long_row(copy_any);
}

bool Job::copy_out_guarded(const TableLayout& layout, const Read& read, const std::byte* data) const {
    // Kept by every thread that copies: at most one of the largest reads.
    static thread_local std::vector<std::byte> scratch;
    if (scratch.size() < read.length) scratch.resize(read.length);
    const uint64_t part = read.row_end - read.row_begin, first = origin(layout, read);
    const size_t last = size_t{read.first} + read.count;
    const auto base = reinterpret_cast<uintptr_t>(data);
    std::array<iovec, kMostPieces> to, from;
    size_t pieces = 0;
    const auto copy_pieces = [&] {
        const size_t count = std::exchange(pieces, 0);
        return kernel_copy({to.data(), count}, {from.data(), count});
    };
    for (size_t i = read.first; i < last;) {
        // Rows that share a page, or lie on two that follow each other, are one piece: it touches no page of its own.
        const uint64_t begin = first + plan_.key(i) * layout.row_stride();
        uint64_t end = begin + part;
        for (++i; i < last; ++i) {
            const uint64_t next = first + plan_.key(i) * layout.row_stride();
            if ((base + next) / kPage > (base + end - 1) / kPage + 1) break;
            end = std::max(end, next + part);
        }
        from[pieces] = {const_cast<std::byte*>(data) + begin, end - begin};
        to[pieces] = {scratch.data() + begin, end - begin};
        if (++pieces == kMostPieces && !copy_pieces()) return false;
    }
    if (pieces > 0 && !copy_pieces()) return false;
    copy_out(layout, read, scratch.data());
    return true;
}

void Job::prefetch_first(const TableLayout& layout, const Read& read, const std::byte* data) const {
    const uint64_t part = read.row_end - read.row_begin;
    prefetch_from(data + (origin(layout, read) + plan_.key(read.first) * layout.row_stride()), part);
    if (!streams_) prefetch_to(out_ + plan_.position(read.first) * layout.row_bytes() + read.row_begin, part);
}

bool Job::begin_copy() {
    // seq_cst on both sides: either we see that the job has ended, or finish() sees that we are copying.
    copying_.fetch_add(1);
    if (state_.load() == State::kRunning) return true;
    end_copy(0);
    return false;
}

void Job::end_copy(uint64_t reads) {
    // acq_rel: the rows written by every copier happen before the one that brings the count to zero.
    const bool last = reads != 0 && remaining_.fetch_sub(reads, std::memory_order_acq_rel) == reads;
    // relaxed: who looks at it comes back.
    if (reads != 0) progress_.store(Watch::Clock::now().time_since_epoch().count(), std::memory_order_relaxed);
    if (copying_.fetch_sub(1) == 1 && state_.load() != State::kRunning) {
        // seq_cst, as copying_: either we see that the job was let go, or let_go() sees that nobody copies any more.
        if (let_go_.exchange(false)) --watch_->orphaned_reads;
        const std::lock_guard lock(mutex_);
        changed_.notify_all();
    }
    if (last) finish(State::kDone, {});
}

void Job::abandon() {
    abandoned_.store(true);
    end_copy(0);
}

void Job::finish(State state, Failure failure) {
    const std::lock_guard lock(mutex_);
    if (state_.load() != State::kRunning) return;
    failure_ = std::move(failure);
    state_.store(state);
    changed_.notify_all();
}

void Job::fail(Failure failure) { finish(State::kFailed, std::move(failure)); }

void Job::cancel() {
    finish(State::kCancelled, {});
    std::unique_lock lock(mutex_);
    while (!changed_.wait_for(lock, Watch::kTurn, [this] { return ended(); }))
        if (watch_->blocked(Watch::kGivingUp)) let_go();
}

// With the mutex held, so that who waits does not miss it.
void Job::let_go() {
    ++watch_->orphaned_reads;
    abandoned_.store(true);
    let_go_.store(true);
    if (copying_.load() == 0 && let_go_.exchange(false)) --watch_->orphaned_reads;
    changed_.notify_all();
}

void Job::give_up_if_blocked() {
    const auto blocked = watch_->blocked(watch_->limit());
    if (!blocked) return;
    if (running()) {
        const Watch::Clock::duration quiet =
            Watch::Clock::now().time_since_epoch() - Watch::Clock::duration(progress_.load(std::memory_order_relaxed));
        // While one thread works, a job that is not begun has its turn still to come.
        if (quiet <= watch_->limit() || !(blocked->all || begun_.load(std::memory_order_relaxed))) return;
        const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(blocked->since).count();
        fail({"read timed out: I/O thread " + Watch::name(blocked->thread) + " has been blocked in the kernel for " +
                  std::to_string(seconds) + " s",
              blocked->path, blocked->offset, blocked->length, 0});
    }
    const std::lock_guard lock(mutex_);
    if (!ended()) let_go();
}

bool Job::wait_for(std::chrono::milliseconds limit) {
    std::unique_lock lock(mutex_);
    if (!changed_.wait_for(lock, limit, [this] { return ended(); })) {
        lock.unlock();
        give_up_if_blocked();
        lock.lock();
        if (!ended()) return false;
    }
    if (state_.load() == State::kFailed)
        throw StorageError(failure_.what, failure_.path, failure_.offset, failure_.length, failure_.error_number);
    if (state_.load() == State::kCancelled) throw StorageError("the read was cancelled", "", 0, 0, 0);
    return true;
}

}  // namespace gids::storage
