// Weighted reverse PageRank: rank flows from a node to the nodes that its neighbourhood is sampled from.
//
// Rank is a fixed-point number (all of it together is kRankUnit), so that adding in any order, on any device, gives the
// same bits. (Min et al., "Graph neural network training with data tiering", KDD 2022.)
#pragma once

#include "exec.cuh"

namespace gids {

constexpr uint64_t kRankUnit = uint64_t{1} << 62;
constexpr int kDampingBits = 16;  // damping is a multiple of 2^-16

// The destination node of edge position `edge`: the last v with indptr[v] <= edge.
GIDS_DEVICE int64_t node_of_edge(const int64_t* indptr, int64_t num_nodes, int64_t edge) {
    int64_t low = 0, high = num_nodes;
    while (high - low > 1) {
        const int64_t middle = low + (high - low) / 2;
        if (indptr[middle] <= edge) low = middle;
        else high = middle;
    }
    return low;
}

// Edges [begin, end) of the graph give each source its part of the destination's rank. `sources` holds the source ids
// of the positions from `first` on. A destination type with several `relations` gives each the same part.
template <class Index, class Exec>
GIDS_DEVICE void push_rank(const Exec& exec, const int64_t* indptr, int64_t num_nodes, const uint64_t* rank,
                           const Index* sources, int64_t first, int64_t begin, int64_t end, uint64_t relations,
                           uint64_t* received) {
    int64_t node = node_of_edge(indptr, num_nodes, begin);
    for (int64_t edge = begin; edge < end;) {
        while (indptr[node + 1] <= edge) ++node;
        const int64_t stop = indptr[node + 1] < end ? indptr[node + 1] : end;
        const uint64_t part = rank[node] / (static_cast<uint64_t>(indptr[node + 1] - indptr[node]) * relations);
        if (part != 0) {
            for (int64_t k = edge + exec.lane(); k < stop; k += Exec::kLanes) {
#ifndef __CUDA_ARCH__
                constexpr int64_t kAhead = 24;  // an atomic add waits for its line: without this, one miss at a time
                if (k + kAhead < end) __builtin_prefetch(&received[sources[k + kAhead - first]], 1);
#endif
                // relaxed: sums are read after the pass.
                atomic_ref<uint64_t>(received[sources[k - first]]).fetch_add(part, memory_order_relaxed);
            }
        }
        edge = stop;
    }
}

// One node's rank for the next round: what flowed in, damped, and its part of the restart weight.
GIDS_DEVICE uint64_t damped_rank(uint64_t received, uint64_t restart, uint32_t damping) {
    return (received >> kDampingBits) * damping + restart;
}

}  // namespace gids
