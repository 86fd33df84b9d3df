// Staging memory of one I/O thread: a fixed arena, handed out in power-of-two pieces (buddy system).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace gids::storage {

class Staging {
public:
    static constexpr uint64_t kUnit = 4096;  // smallest piece

    // `piece_bytes`, the largest piece, is rounded up to a power of two; the arena to whole pieces, at least one.
    Staging(uint64_t bytes, uint64_t piece_bytes);
    ~Staging();
    Staging(const Staging&) = delete;
    Staging& operator=(const Staging&) = delete;

    std::span<std::byte> memory() const { return {base_, bytes_}; }
    // A piece of at least `bytes` bytes, aligned to its size up to 4 KiB; null when there is none now.
    std::byte* take(uint64_t bytes);
    void give_back(std::byte* piece);
    uint64_t free_bytes() const { return free_bytes_; }
    // Something may still write here: the arena is never unmapped, so that nobody else gets its memory.
    void abandon() { abandoned_ = true; }

private:
    static constexpr uint32_t kNone = ~uint32_t{0};
    static constexpr uint8_t kBusy = 0xff;

    void push(uint32_t unit, int order);
    void unlink(uint32_t unit);

    std::byte* base_ = nullptr;
    uint64_t bytes_ = 0;
    uint64_t free_bytes_ = 0;  // free_bytes_ + bytes of pieces handed out == bytes_
    int top_order_ = 0;
    bool abandoned_ = false;
    std::vector<uint32_t> heads_;          // per order: first free unit
    std::vector<uint32_t> next_, before_;  // per unit: links of its free list
    std::vector<uint8_t> free_order_;      // per unit: order of the free piece that begins here, else kBusy
    std::vector<uint8_t> taken_order_;     // per unit: order of the piece that was handed out here
};

}  // namespace gids::storage
