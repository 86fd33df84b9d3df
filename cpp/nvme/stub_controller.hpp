// A drive made of memory: fetches entries, follows PRPs, answers in an order of the test's choice. It checks what a
// real drive would silently get wrong, and measures the queue code with no device behind it.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "nvme/queue_memory.hpp"

namespace gids::nvme {

// The byte at an address of the stub's one namespace; a function, so that tests need no image.
inline uint8_t stub_byte(uint64_t address) { return static_cast<uint8_t>((address * 0x9E3779B97F4A7C15ull) >> 56); }

struct StubOptions {
    QueueShape shape{64, 63, 12};
    uint64_t data_bytes = 1 << 20;
    uint32_t max_bytes = 128 << 10;
    uint32_t ack_batch = 16;
    uint32_t block_bits = 9;
    bool paged = false;       // bus addresses page by page, scattered, as without an IOMMU
    bool move_data = true;    // false: answer only, for measurements
    bool check = true;        // false: do not look for ids in flight twice
    bool reorder = false;     // answer what is fetched in random order
    uint32_t hold_every = 0;  // every n-th command is answered only after everything else that was fetched
};

class StubController {
public:
    explicit StubController(const StubOptions& options)
        : options_(options), state_(options.shape), random_(options.shape.depth) {
        const uint64_t page = options.shape.page();
        dma_.resize(options.shape.dma_bytes() + page);
        data_.resize(options.data_bytes + page);
        std::byte* rings = align(dma_, page);
        std::byte* data = align(data_, page);
        const DmaView ring_view = map(rings, options.shape.dma_bytes());
        ref_.data = map(data, options.data_bytes);
        ref_.data_bytes = options.data_bytes;
        ref_.max_bytes = std::min(options.max_bytes, max_listed_bytes(options.shape.page_bits));
        ref_.ack_batch = std::clamp(options.ack_batch, 1u, options.shape.depth - 1);
        ref_.sq_doorbell = &sq_doorbell_;
        ref_.cq_doorbell = &cq_doorbell_;
        state_.attach(ref_, rings, ring_view);
    }

    const QueueRef& queue() const { return ref_; }
    std::byte* data() { return align(data_, options_.shape.page()); }

    // Rings, data and queue state, each whole pages: all that a submitter touches, but for the doorbells in this
    // object.
    std::vector<std::span<std::byte>> regions() {
        const QueueShape& shape = options_.shape;
        return {{align(dma_, shape.page()), shape.dma_bytes()},
                {data(), options_.data_bytes},
                state_.own(),
                state_.shared()};
    }

    // Fetches what the doorbell shows and answers at most `limit` commands. Returns the number of answers.
    size_t step(size_t limit = SIZE_MAX) {
        // acquire: pairs with write_doorbell, as the bus does for a real drive.
        const uint32_t tail = std::atomic_ref(sq_doorbell_).load(std::memory_order_acquire);
        while (sq_head_ != tail) {
            const Command command = ref_.sq[sq_head_];
            sq_head_ = (sq_head_ + 1) & (ref_.depth - 1);
            const uint32_t id = command.dw[0] >> 16;
            if (id >= ref_.ids || (command.dw[0] & 0xffff) != kOpcodeRead) {
                violations.push_back("entry is no read with a valid id: " + std::to_string(command.dw[0]));
                continue;
            }
            for (size_t i = 0; options_.check && i < fetched_.size(); ++i)
                if (const Command& other = fetched_[i]; other.dw[0] >> 16 == id)
                    violations.push_back("id in flight twice: " + std::to_string(id));
            ++commands;
            if (options_.hold_every != 0 && commands % options_.hold_every == 0) held_.push_back(command);
            else fetched_.push_back(command);
        }
        if (options_.reorder) std::shuffle(fetched_.begin(), fetched_.end(), random_);
        size_t answered = 0;
        while (answered < limit && !full() && answer_one()) ++answered;
        return answered;
    }

    // Posts a completion for any id, for tests of what a confused drive does.
    void post(uint32_t id, uint32_t status) {
        Completion& entry = ref_.cq[cq_tail_ & (ref_.depth - 1)];
        entry.dw[2] = sq_head_;
        const uint32_t phase = (cq_tail_ / ref_.depth & 1) ^ 1;
        // release: the data is there before the phase flips, as the specification promises of a drive.
        std::atomic_ref(entry.dw[3]).store(id | phase << 16 | status << 17, std::memory_order_release);
        ++cq_tail_;
    }

    // Status for a command, 0 by default; called for every answer.
    std::function<uint32_t(const Command&)> status_of = [](const Command&) { return 0u; };

    uint64_t commands = 0;
    uint64_t full_waits = 0;              // times the completion ring was full with answers waiting
    std::vector<std::string> violations;  // rules that the queue code broke
    size_t waiting() const { return fetched_.size() + held_.size(); }

private:
    static std::byte* align(std::vector<std::byte>& memory, uint64_t page) {
        const auto address = reinterpret_cast<uintptr_t>(memory.data());
        return memory.data() + ((page - address % page) % page);
    }

    DmaView map(std::byte* memory, uint64_t bytes) {
        const uint64_t page = options_.shape.page();
        const uint64_t count = (bytes + page - 1) / page;
        const uint64_t base = next_iova_;
        next_iova_ += (count + 3) * page;  // a gap: an address past the end belongs to nobody
        std::vector<uint64_t> pages(count);
        for (uint64_t i = 0; i < count; ++i) pages[i] = base + i * page;
        if (options_.paged) std::shuffle(pages.begin(), pages.end(), random_);
        for (uint64_t i = 0; i < count; ++i) {
            if (page_of_.size() <= pages[i] / page) page_of_.resize(pages[i] / page + 1, nullptr);
            page_of_[pages[i] / page] = memory + i * page;
        }
        if (!options_.paged) return {base, nullptr, options_.shape.page_bits};
        tables_.push_back(std::make_unique<std::vector<uint64_t>>(std::move(pages)));
        return {0, tables_.back()->data(), options_.shape.page_bits};
    }

    std::byte* at(uint64_t iova) {
        const uint64_t page = options_.shape.page();
        if (iova / page >= page_of_.size() || page_of_[iova / page] == nullptr) {
            violations.push_back("bus address belongs to nobody: " + std::to_string(iova));
            return nullptr;
        }
        return page_of_[iova / page] + iova % page;
    }

    bool full() {
        const uint32_t head = std::atomic_ref(cq_doorbell_).load(std::memory_order_acquire);
        const bool is_full = ((cq_tail_ + 1) & (ref_.depth - 1)) == head;
        if (is_full && waiting() != 0) ++full_waits;
        return is_full;
    }

    bool answer_one() {
        std::vector<Command>& from = fetched_.empty() ? held_ : fetched_;
        if (from.empty()) return false;
        const Command command = from.back();
        from.pop_back();
        const uint32_t status = status_of(command);
        if (status == 0 && options_.move_data) transfer(command);
        post(command.dw[0] >> 16, status);
        return true;
    }

    void transfer(const Command& command) {
        const uint64_t page = options_.shape.page();
        const uint64_t lba = command.dw[10] | uint64_t{command.dw[11]} << 32;
        const uint64_t bytes = (uint64_t{command.dw[12] & 0xffff} + 1) << options_.block_bits;
        const uint64_t first = command.dw[6] | uint64_t{command.dw[7]} << 32;
        const uint64_t second = command.dw[8] | uint64_t{command.dw[9]} << 32;
        const uint64_t pages = (first % page + bytes + page - 1) / page;
        if (bytes > ref_.max_bytes) violations.push_back("longer than MDTS: " + std::to_string(bytes));
        uint64_t done = 0;
        for (uint64_t i = 0; i < pages; ++i) {
            uint64_t address = first;
            if (i >= 1 && pages <= 2) address = second;
            if (i >= 1 && pages > 2) {
                if ((i - 1) * 8 >= page) return violations.push_back("list longer than its page");
                std::byte* entry = at(second + (i - 1) * 8);
                if (entry == nullptr) return;
                std::memcpy(&address, entry, 8);
            }
            if (i >= 1 && address % page != 0) violations.push_back("later PRP not at a page's beginning");
            const uint64_t count = std::min(bytes - done, page - address % page);
            std::byte* target = at(address);
            if (target == nullptr) return;
            for (uint64_t k = 0; k < count; ++k)
                target[k] = static_cast<std::byte>(stub_byte((lba << options_.block_bits) + done + k));
            done += count;
        }
    }

    StubOptions options_;
    QueueState state_;
    QueueRef ref_{};
    std::mt19937 random_;
    std::vector<std::byte> dma_, data_;
    std::vector<std::byte*> page_of_;  // bus page number -> memory
    std::vector<std::unique_ptr<std::vector<uint64_t>>> tables_;
    uint64_t next_iova_ = 1 << 20;
    uint32_t sq_doorbell_ = 0, cq_doorbell_ = 0;
    uint32_t sq_head_ = 0, cq_tail_ = 0;
    std::vector<Command> fetched_, held_;
};

}  // namespace gids::nvme
