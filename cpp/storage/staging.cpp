// Staging: pieces split and join by order; last freed is first reused, so small reads stay in a few warm pages.
#include "storage/staging.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <new>

namespace gids::storage {
namespace {

constexpr uint64_t kHugePage = uint64_t{2} << 20;

int order_for(uint64_t bytes) { return bytes <= Staging::kUnit ? 0 : std::bit_width((bytes - 1) / Staging::kUnit); }

}  // namespace

Staging::Staging(uint64_t bytes, uint64_t piece_bytes) : top_order_(order_for(piece_bytes)) {
    const uint64_t piece = kUnit << top_order_;
    bytes_ = std::max<uint64_t>(bytes / piece, 1) * piece;
    const uint64_t mapped = bytes_ >= kHugePage ? bytes_ + kHugePage : bytes_;
    void* memory = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) throw std::bad_alloc();
    auto begin = reinterpret_cast<uintptr_t>(memory);
    if (mapped != bytes_) {
        // Huge pages need alignment: cut what lies before and after.
        const uintptr_t aligned = (begin + kHugePage - 1) & ~(kHugePage - 1);
        if (aligned != begin) munmap(memory, aligned - begin);
        if (begin + mapped != aligned + bytes_) {
            const uintptr_t end = (aligned + bytes_ + kUnit - 1) & ~(kUnit - 1);
            if (end < begin + mapped) munmap(reinterpret_cast<void*>(end), begin + mapped - end);
        }
        begin = aligned;
        madvise(reinterpret_cast<void*>(begin), bytes_, MADV_HUGEPAGE);
    }
    base_ = reinterpret_cast<std::byte*>(begin);
    // A forked child opens staging of its own; without this the kernel would copy pinned pages at every fork.
    madvise(base_, bytes_, MADV_DONTFORK);
    const size_t units = bytes_ / kUnit;
    heads_.assign(static_cast<size_t>(top_order_) + 1, kNone);
    next_.assign(units, kNone);
    before_.assign(units, kNone);
    free_order_.assign(units, kBusy);
    taken_order_.assign(units, 0);
    for (uint64_t at = bytes_; at != 0; at -= piece) push(static_cast<uint32_t>((at - piece) / kUnit), top_order_);
    free_bytes_ = bytes_;
}

Staging::~Staging() {
    if (!abandoned_) munmap(base_, bytes_);
}

void Staging::push(uint32_t unit, int order) {
    uint32_t& head = heads_[static_cast<size_t>(order)];
    free_order_[unit] = static_cast<uint8_t>(order);
    next_[unit] = head;
    before_[unit] = kNone;
    if (head != kNone) before_[head] = unit;
    head = unit;
}

void Staging::unlink(uint32_t unit) {
    const uint32_t before = before_[unit], next = next_[unit];
    if (before != kNone) next_[before] = next;
    else heads_[free_order_[unit]] = next;
    if (next != kNone) before_[next] = before;
    free_order_[unit] = kBusy;
}

std::byte* Staging::take(uint64_t bytes) {
    const int wanted = order_for(bytes);
    int order = wanted;
    while (order <= top_order_ && heads_[static_cast<size_t>(order)] == kNone) ++order;
    if (order > top_order_) return nullptr;
    const uint32_t unit = heads_[static_cast<size_t>(order)];
    unlink(unit);
    while (order > wanted) {
        --order;
        push(unit + (uint32_t{1} << order), order);
    }
    taken_order_[unit] = static_cast<uint8_t>(wanted);
    free_bytes_ -= kUnit << wanted;
    return base_ + uint64_t{unit} * kUnit;
}

void Staging::give_back(std::byte* piece) {
    auto unit = static_cast<uint32_t>(static_cast<uint64_t>(piece - base_) / kUnit);
    int order = taken_order_[unit];
    free_bytes_ += kUnit << order;
    // Top-order pieces have no buddy. They start at multiples of the piece, so unit ^ size stays inside the arena.
    while (order < top_order_) {
        const uint32_t buddy = unit ^ (uint32_t{1} << order);
        if (free_order_[buddy] != order) break;
        unlink(buddy);
        unit &= ~(uint32_t{1} << order);
        ++order;
    }
    push(unit, order);
}

}  // namespace gids::storage
