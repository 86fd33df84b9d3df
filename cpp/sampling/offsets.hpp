// Offsets of a graph's edge lists in a fraction of their 8 bytes a node: per block a base, per node the distance from
// it in as few bits as the block needs.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "sampling/bits.hpp"
#include "sampling/buffer.hpp"

namespace gids {

// Edge positions of one node.
struct EdgeRange {
    int64_t first;
    int64_t degree;
};

class PackedOffsets {
public:
    static constexpr int64_t kBlockNodes = 64;

    // Room for num_nodes + 1 offsets, which append() brings in order, in pieces of any length.
    explicit PackedOffsets(int64_t num_nodes);

    // Throws DatasetError where offsets do not begin at 0, decrease, or are too many.
    void append(std::span<const int64_t> offsets);
    // Ends the appending. Throws DatasetError where offsets are missing.
    void finish();

    int64_t num_nodes() const { return num_nodes_; }
    int64_t num_edges() const { return last_; }
    size_t bytes() const { return blocks_.capacity_bytes() + bits_.capacity_bytes(); }

    EdgeRange range(int64_t node) const {
        const int64_t first = at(node);
        return {first, at(node + 1) - first};
    }
    // The i-th offset.
    int64_t at(int64_t i) const {
        const Block& block = blocks_[i / kBlockNodes];
        const auto width = static_cast<int>(block.base_and_width & 63);
        const uint64_t bit = block.bit + static_cast<uint64_t>(i % kBlockNodes) * static_cast<uint64_t>(width);
        return static_cast<int64_t>((block.base_and_width >> 6) + load_bits(bits_.data(), bit, width));
    }
    void prefetch(int64_t node) const { __builtin_prefetch(&blocks_[node / kBlockNodes]); }

private:
    struct Block {
        uint64_t base_and_width;  // the block's first offset << 6 | bits of a distance
        uint64_t bit;             // where its distances begin
    };
    static_assert(sizeof(Block) == 16);

    void close_block();

    int64_t num_nodes_;
    int64_t taken_ = 0;          // offsets so far
    int64_t last_ = 0;           // the latest of them
    std::vector<int64_t> open_;  // offsets of the block that is not complete
    Array<Block> blocks_;
    Array<uint8_t> bits_;
    uint64_t used_bits_ = 0;
};

}  // namespace gids
