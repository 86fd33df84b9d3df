// A graph cut down to a few neighbours of every node: what one pass over the edges leaves in memory.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "partition/lists.hpp"
#include "thread_pool.hpp"

namespace gids {

// Up to `width` neighbours of every node, 4 bytes each, evenly spread over its in-edges; where a node has fewer
// in-edges than that, destinations of its out-edges fill the rest.
class Sketch {
public:
    static constexpr int kMaxWidth = 32;

    Sketch(int64_t num_nodes, int width, uint64_t seed);

    int64_t num_nodes() const { return num_nodes_; }
    int width() const { return width_; }
    int64_t bytes() const { return num_nodes_ * (width_ * 4 + 2); }

    void add(const ListPiece& piece, ThreadPool& pool);
    // After every piece was added: fills the rest of short lists, in order of destinations.
    void add_reverse();

    std::span<const uint32_t> neighbors(int64_t node) const {
        return {slots_.data() + node * width_, counts_[static_cast<size_t>(node)]};
    }
    // Hint that a node's list will be needed soon.
    void prefetch(int64_t node) const { __builtin_prefetch(slots_.data() + node * width_); }

private:
    int64_t num_nodes_;
    int width_;
    uint64_t seed_;
    std::vector<uint32_t> slots_;    // width_ for each node
    std::vector<uint8_t> counts_;    // slots in use
    std::vector<uint8_t> in_edges_;  // of these, from in-edges
};

}  // namespace gids
