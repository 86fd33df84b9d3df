// The memory of one queue pair on the host: sizes, alignment and first contents of everything a QueueRef points to.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <memory>
#include <new>
#include <span>
#include <string>
#include <vector>

#include "errors.hpp"
#include "nvme_queue.cuh"

namespace gids::nvme {

inline constexpr Serial kSerial;  // the host drives a queue one command at a time
inline constexpr uint64_t kPage = 4096;

// What the drive itself reads and writes (rings, lists) is in DMA memory; the rest only the submitters share.
struct QueueShape {
    uint32_t depth = 0;  // power of two
    uint32_t ids = 0;    // commands in flight at most; depth - 1 uses the whole ring
    uint32_t page_bits = 12;

    void check() const {
        if (depth < 2 || depth > 65536 || !std::has_single_bit(depth))
            throw ConfigError("NVMe queue depth must be a power of two from 2 to 65536 (got " + std::to_string(depth) +
                              ")");
        if (ids < 1 || ids > depth - 1)
            throw ConfigError("NVMe command ids must number 1 to depth - 1 = " + std::to_string(depth - 1) + " (got " +
                              std::to_string(ids) + ")");
    }
    uint64_t page() const { return uint64_t{1} << page_bits; }
    uint64_t round(uint64_t bytes) const { return (bytes + page() - 1) & ~(page() - 1); }
    uint64_t sq_bytes() const { return round(uint64_t{depth} * sizeof(Command)); }
    uint64_t cq_bytes() const { return round(uint64_t{depth} * sizeof(Completion)); }
    uint64_t list_bytes() const { return uint64_t{ids} * page(); }
    // Submission ring, completion ring, PRP lists, each on its own pages.
    uint64_t dma_bytes() const { return sq_bytes() + cq_bytes() + list_bytes(); }
};

// State of a queue pair: what only submitters touch, and on other pages what they share with the watchdog, so that it
// can be pinned and shown to a GPU, which has a copy of the first in its own memory. Lives as long as anything may
// submit, drain or poison.
class QueueState {
public:
    explicit QueueState(const QueueShape& shape) : shape_(shape) {
        shape.check();
        uint64_t bytes = sizeof(QueueControl);
        const auto take = [&bytes](uint64_t size) {
            const uint64_t at = (bytes + 127) & ~uint64_t{127};
            bytes = at + size;
            return at;
        };
        const uint64_t ready = take(uint64_t{shape.depth} * sizeof(uint32_t));
        const uint64_t free_ids = take(uint64_t{words()} * sizeof(uint32_t));
        bytes = own_bytes_ = (bytes + kPage - 1) & ~(kPage - 1);
        const uint64_t shared = take(sizeof(QueueShared));
        const uint64_t slots = take(uint64_t{shape.ids} * sizeof(Slot));
        bytes_ = (bytes + kPage - 1) & ~(kPage - 1);
        memory_.reset(static_cast<std::byte*>(std::aligned_alloc(kPage, bytes_)));
        if (!memory_) throw std::bad_alloc();
        control_ = new (memory_.get()) QueueControl{};
        shared_ = new (memory_.get() + shared) QueueShared{};
        slots_ = reinterpret_cast<Slot*>(memory_.get() + slots);
        ready_ = reinterpret_cast<uint32_t*>(memory_.get() + ready);
        free_ids_ = reinterpret_cast<uint32_t*>(memory_.get() + free_ids);
        reset();
    }

    // As after creation: nothing in flight, no id poisoned, both rings at the beginning. Counts of stray answers stay.
    void reset() {
        *control_ = QueueControl{};
        shared_->closed = 0;
        std::fill_n(slots_, shape_.ids, Slot{});
        std::fill_n(ready_, shape_.depth, 0u);
        std::fill_n(free_ids_, words(), 0u);
        for (uint32_t id = 0; id < shape_.ids; ++id) free_ids_[id / 32] |= 1u << (id % 32);
    }

    // As reset(), but poisoned ids stay out of use: the drive was told to forget them, not seen to.
    void restart() {
        const std::vector<Slot> before(slots_, slots_ + shape_.ids);
        reset();
        for (uint32_t id = 0; id < shape_.ids; ++id) {
            if (slot_state(before[id].word) != kPoisoned) continue;
            slots_[id] = before[id];
            free_ids_[id / 32] &= ~(1u << (id % 32));
        }
    }

    // Fills what belongs to the host. `dma` is dma_bytes() long, page aligned, zeroed; `dma_view` its bus addresses.
    void attach(QueueRef& ref, std::byte* dma, const DmaView& dma_view) {
        ref.depth = shape_.depth;
        ref.ids = shape_.ids;
        ref.page_bits = shape_.page_bits;
        ref.sq = reinterpret_cast<Command*>(dma);
        ref.cq = reinterpret_cast<Completion*>(dma + shape_.sq_bytes());
        const uint64_t lists = shape_.sq_bytes() + shape_.cq_bytes();
        ref.prp_lists = reinterpret_cast<uint64_t*>(dma + lists);
        ref.lists = dma_view;
        if (dma_view.pages != nullptr) ref.lists.pages += lists >> dma_view.page_bits;
        else ref.lists.base += lists;
        ref.control = control_;
        ref.ready = ready_;
        ref.free_ids = free_ids_;
        ref.shared = shared_;
        ref.slots = slots_;
    }

    const QueueShape& shape() const { return shape_; }
    // What only submitters touch, and what the watchdog does too.
    std::span<std::byte> own() const { return {memory_.get(), own_bytes_}; }
    std::span<std::byte> shared() const { return {memory_.get() + own_bytes_, bytes_ - own_bytes_}; }

private:
    struct Free {
        void operator()(std::byte* memory) const { std::free(memory); }
    };
    uint32_t words() const { return (shape_.ids + 31) / 32; }

    QueueShape shape_;
    uint64_t own_bytes_ = 0, bytes_ = 0;
    std::unique_ptr<std::byte, Free> memory_;
    QueueControl* control_ = nullptr;
    uint32_t* ready_ = nullptr;
    uint32_t* free_ids_ = nullptr;
    QueueShared* shared_ = nullptr;
    Slot* slots_ = nullptr;
};

}  // namespace gids::nvme
