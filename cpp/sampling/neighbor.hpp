// Node-wise neighbour sampling on the CPU, layer by layer from the seeds outwards.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "sampling/edges.hpp"
#include "sampling/sample.hpp"
#include "thread_pool.hpp"

namespace gids {

struct LaborOptions {
    int64_t importance = 0;         // rounds that raise the chances of sources which serve several destinations
    bool layer_dependency = false;  // all layers have the same variates
    uint64_t batch_dependency = 1;  // batches until all variates are new
};

struct NeighborOptions {
    std::vector<std::vector<int64_t>> fanouts;  // [layer][relation], outermost layer first
    bool replace = false;
    bool edge_ids = false;
    bool weighted = false;
    std::optional<LaborOptions> labor{};  // choose by variates of the sources instead
    // What the layer nearest the seeds counts as in random keys: above 0 where the seeds were sampled by others.
    uint32_t first_hop = 0;
};

// pool may be null: the caller works alone.
Sampled sample_neighbors(Topology& topology, const NeighborOptions& options, const SampleRequest& request,
                         ThreadPool* pool);

struct HopOptions {
    std::vector<int64_t> fanouts;  // by relation
    bool replace = false;
    bool weighted = false;
};

// Edges, with their ids, of the nodes at `places` among `nodes`, which are distinct; sources that are not among them
// are numbered on from them. The block's destinations are those of `places`. No node is meant to be expanded twice:
// then one key serves all hops.
Sampled expand_nodes(Topology& topology, const HopOptions& options, const SampleKey& key, const Seeds& nodes,
                     const Seeds& places, ThreadPool* pool);

// Induced subgraph of everything that neighbour sampling reaches (ShaDow): one block whose sources are its
// destinations.
Sampled sample_shadow(Topology& topology, const NeighborOptions& options, const SampleRequest& request,
                      ThreadPool* pool);

enum class TimeOf { kNothing, kEdge, kNode };

struct DisjointOptions {
    std::vector<std::vector<int64_t>> fanouts;  // [layer][relation], outermost layer first
    bool replace = false;
    bool edge_ids = false;
    TimeOf by = TimeOf::kNothing;  // whose time must not be after the seed's
    bool last = false;             // the latest edges instead of random ones
    int64_t window = -1;           // only edges less than this much older than the seed; -1: any
    uint32_t first_hop = 0;        // as in NeighborOptions
};

// A tree of its own for every seed; with times, none of its edges is from after the seed's time.
Sampled sample_disjoint(Topology& topology, const DisjointOptions& options, const SampleRequest& request,
                        ThreadPool* pool);

struct LadiesOptions {
    std::vector<int64_t> sizes;  // nodes kept per source type, by layer, outermost first
    bool edge_ids = false;
    bool weighted = false;
};

// Layer-wise sampling (LADIES) with importance weights.
Sampled sample_ladies(Topology& topology, const LadiesOptions& options, const SampleRequest& request, ThreadPool* pool);

// Drops excluded edges from a list, in place.
void drop_excluded(const ExcludedEdges& excluded, const int64_t* nodes, EdgeList& edges);

}  // namespace gids
