// Node-wise neighbour sampling on the CPU, layer by layer from the seeds outwards.
#pragma once

#include <cstdint>
#include <vector>

#include "exclude.cuh"
#include "sampling/edges.hpp"
#include "sampling/sample.hpp"
#include "thread_pool.hpp"

namespace gids {

// Edges that must not appear in a block, sorted.
using ExcludedEdges = std::vector<NodePair>;

struct NeighborOptions {
    std::vector<std::vector<int64_t>> fanouts;  // [layer][relation], outermost layer first
    bool replace = false;
    bool edge_ids = false;
    bool weighted = false;
    std::vector<ExcludedEdges> excluded{};  // by relation; may be empty altogether
};

// pool may be null: the caller works alone.
Sampled sample_neighbors(Topology& topology, const NeighborOptions& options, SampleKey key, const Seeds& seeds,
                         ThreadPool* pool);

// Induced subgraph of everything that neighbour sampling reaches (ShaDow): one block whose sources are its
// destinations.
Sampled sample_shadow(Topology& topology, const NeighborOptions& options, SampleKey key, const Seeds& seeds,
                      ThreadPool* pool);

struct LadiesOptions {
    std::vector<int64_t> sizes;  // nodes kept per source type, by layer, outermost first
    bool edge_ids = false;
    bool weighted = false;
    std::vector<ExcludedEdges> excluded{};  // by relation; may be empty altogether
};

// Layer-wise sampling (LADIES) with importance weights.
Sampled sample_ladies(Topology& topology, const LadiesOptions& options, SampleKey key, const Seeds& seeds,
                      ThreadPool* pool);

// Drops excluded edges from a list, in place.
void drop_excluded(const ExcludedEdges& excluded, const int64_t* nodes, EdgeList& edges);

}  // namespace gids
