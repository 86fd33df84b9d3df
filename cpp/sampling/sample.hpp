// What samplers return, and how they begin: seeds numbered first, then layers from the seeds outwards.
#pragma once

#include <cstdint>
#include <vector>

#include "sampling/buffer.hpp"
#include "sampling/request.hpp"
#include "sampling/topology.hpp"

namespace gids {

// Edges of one relation in one layer: in-edges of destination i are [indptr[i], indptr[i + 1]).
struct BlockPart {
    Array<int64_t> indptr;
    Array<int64_t> src;       // numbers within the layer's source nodes of the relation's source type
    Array<int64_t> edge_ids;  // empty unless asked for
    Array<float> weights;     // empty unless the sampler weights its edges
};

struct SampledBlock {
    std::vector<int64_t> num_dst;  // by node type; destinations are the first source nodes
    std::vector<int64_t> num_src;
    std::vector<BlockPart> parts;  // by relation
};

struct Sampled {
    std::vector<Array<int64_t>> nodes;      // by node type: unique, first occurrence first, seeds before all others
    std::vector<Array<int64_t>> seed_rows;  // by node type: the number of each seed as given
    std::vector<SampledBlock> blocks;       // outermost first
    std::vector<Array<int64_t>> trees{};    // by node type: the seed that each node belongs to, where seeds share none
};

// One set per node type, with the seeds in it; their numbers go to sample.seed_rows. Throws ConfigError for a seed that
// is no node.
std::vector<NodeSet> number_seeds(Topology& topology, const Seeds& seeds, Sampled& sample);

std::vector<int64_t> sizes(const std::vector<NodeSet>& sets);

}  // namespace gids
