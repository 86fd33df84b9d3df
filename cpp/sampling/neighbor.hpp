// Node-wise neighbour sampling on the CPU: count, choose, resolve, number, layer by layer from the seeds outwards.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "philox.cuh"
#include "sampling/buffer.hpp"
#include "sampling/topology.hpp"
#include "thread_pool.hpp"

namespace gids {

struct SampleKey {
    uint64_t seed;
    uint32_t epoch;
    uint64_t batch;
};

struct NeighborOptions {
    std::vector<std::vector<int64_t>> fanouts;  // [layer][relation], outermost layer first
    bool replace = false;
    bool edge_ids = false;
};

// Edges of one relation in one layer: in-edges of destination i are [indptr[i], indptr[i + 1]).
struct BlockPart {
    Array<int64_t> indptr;
    Array<int64_t> src;       // numbers within the layer's source nodes of the relation's source type
    Array<int64_t> edge_ids;  // empty unless asked for
};

struct SampledBlock {
    std::vector<int64_t> num_dst;  // by node type; destinations are the first source nodes
    std::vector<int64_t> num_src;
    std::vector<BlockPart> parts;  // by relation
};

struct NeighborSample {
    std::vector<Array<int64_t>> nodes;      // by node type: unique, first occurrence first, seeds before all others
    std::vector<Array<int64_t>> seed_rows;  // by node type: the number of each seed as given
    std::vector<SampledBlock> blocks;       // outermost first
};

// seeds[t] are node ids of type t; duplicates are numbered once. pool may be null: the caller works alone.
NeighborSample sample_neighbors(Topology& topology, const NeighborOptions& options, SampleKey key,
                                const std::vector<std::span<const int64_t>>& seeds, ThreadPool* pool);

}  // namespace gids
