// Job: the copy from staging to the caller's rows, and the state machine that keeps late data out of them.
#include "storage/job.hpp"

#include <algorithm>
#include <cstring>

#include "errors.hpp"

namespace gids::storage {
namespace {

template <uint64_t kBytes>
void copy_fixed(std::byte* to, const std::byte* from, uint64_t) {
    std::memcpy(to, from, kBytes);
}
void copy_any(std::byte* to, const std::byte* from, uint64_t bytes) { std::memcpy(to, from, bytes); }

// Rows are scattered, so the hardware cannot guess the next one; within a row it can.
constexpr size_t kAhead = 2;
constexpr uint64_t kLine = 64, kPrefetchBytes = 256;

void prefetch(const std::byte* to, const std::byte* from, uint64_t bytes) {
    for (uint64_t at = 0; at < std::min(bytes, kPrefetchBytes); at += kLine) {
        __builtin_prefetch(from + at, 0);
        __builtin_prefetch(to + at, 1);
    }
}

}  // namespace

void Job::copy_out(const TableLayout& layout, const Read& read, const std::byte* data) const {
    const uint64_t part = read.row_end - read.row_begin;
    const bool widen = conversion_ != Conversion::kNone;
    const uint64_t row_bytes = layout.row_bytes(), out_row_bytes = widen ? 2 * row_bytes : row_bytes;
    std::byte* const out = out_ + (widen ? 2 * read.row_begin : read.row_begin);
    // Where the row with key 0 would begin relative to `data`; wraps around, as unsigned arithmetic may.
    const uint64_t origin = layout.offset_of(layout.first_key(read.file), read.file) -
                            layout.first_key(read.file) * layout.row_stride() + read.row_begin - read.offset;
    const size_t last = size_t{read.first} + read.count;
    const auto each_row = [&](auto&& move) {
        for (size_t i = read.first; i < last; ++i)
            move(out + plan_.position(i) * out_row_bytes, data + (origin + plan_.key(i) * layout.row_stride()), part);
    };
    const auto each_long_row = [&](auto&& move) {
        for (size_t i = read.first; i < last; ++i) {
            if (i + kAhead < last)
                prefetch(out + plan_.position(i + kAhead) * out_row_bytes,
                         data + (origin + plan_.key(i + kAhead) * layout.row_stride()), part);
            move(out + plan_.position(i) * out_row_bytes, data + (origin + plan_.key(i) * layout.row_stride()), part);
        }
    };
    if (widen) {
        each_long_row([&](std::byte* to, const std::byte* from, uint64_t bytes) {
            widen_row(Serial{}, conversion_, reinterpret_cast<const uint8_t*>(from), reinterpret_cast<uint32_t*>(to),
                      static_cast<int64_t>(bytes / 2));
        });
    } else if (part == 4) each_row(copy_fixed<4>);
    else if (part == 8) each_row(copy_fixed<8>);
    else each_long_row(copy_any);
}

void Job::prefetch_first(const TableLayout& layout, const Read& read, const std::byte* data) const {
    const uint64_t scale = conversion_ == Conversion::kNone ? 1 : 2;
    const uint64_t from = layout.offset_of(plan_.key(read.first), read.file) + read.row_begin - read.offset;
    prefetch(out_ + scale * (plan_.position(read.first) * layout.row_bytes() + read.row_begin), data + from,
             read.row_end - read.row_begin);
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
    if (copying_.fetch_sub(1) == 1 && state_.load() != State::kRunning) {
        const std::lock_guard lock(mutex_);
        changed_.notify_all();
    }
    if (last) finish(State::kDone, {});
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
    changed_.wait(lock, [this] { return copying_.load() == 0; });
}

bool Job::wait_for(std::chrono::milliseconds limit) {
    std::unique_lock lock(mutex_);
    if (!changed_.wait_for(lock, limit, [this] { return !running() && copying_.load() == 0; })) return false;
    if (state_.load() == State::kFailed)
        throw StorageError(failure_.what, failure_.path, failure_.offset, failure_.length, failure_.error_number);
    if (state_.load() == State::kCancelled) throw StorageError("the read was cancelled", "", 0, 0, 0);
    return true;
}

}  // namespace gids::storage
