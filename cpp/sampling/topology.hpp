// A graph as the samplers see it: in-edges by destination, per relation, over arrays that the caller keeps alive.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "sampling/hot_lists.hpp"
#include "sampling/node_set.hpp"
#include "sampling/offsets.hpp"

namespace gids {

// Reads what is not in memory: out[i] = value of edge position positions[i]; both may be the same array.
using NeighborReader = std::function<void(const int64_t* positions, int64_t count, int64_t* out)>;
using WeightReader = std::function<void(const int64_t* positions, int64_t count, float* out)>;

struct Relation {
    std::string name;
    int src_type = 0;
    int dst_type = 0;
    // num_nodes[dst_type] + 1 offsets: exactly one of the two is set.
    const int64_t* indptr = nullptr;
    std::shared_ptr<const PackedOffsets> packed;
    // Source nodes by edge position: exactly one of the three is set.
    const int32_t* indices32 = nullptr;
    const int64_t* indices64 = nullptr;
    NeighborReader read;
    // Neighbour lists kept in memory although the others are on disk; null until they are there, which may be while
    // samplers run. Kept alive by whoever set it.
    std::shared_ptr<std::atomic<const HotLists*>> hot = std::make_shared<std::atomic<const HotLists*>>(nullptr);
    // Weights by edge position: at most one of the two is set.
    const float* weights = nullptr;
    WeightReader read_weights;
    // Ids by edge position: at most one of the two is set; with neither the position is the id.
    const int64_t* edge_ids = nullptr;
    NeighborReader read_edge_ids;
    // Times by edge position: at most one of the two is set.
    const int64_t* times = nullptr;
    NeighborReader read_times;
    const int64_t* dst_origins = nullptr;  // Topology::origins of the destination type

    EdgeRange range(int64_t node) const {
        return packed ? packed->range(node) : EdgeRange{indptr[node], indptr[node + 1] - indptr[node]};
    }
    void prefetch_range(int64_t node) const {
        if (packed) packed->prefetch(node);
        else __builtin_prefetch(&indptr[node]);
    }
    // What a destination's random numbers are drawn for.
    uint64_t random_name(int64_t dst) const {
        return static_cast<uint64_t>(dst_origins != nullptr ? dst_origins[dst] : dst);
    }
    // acquire: who sees the lists sees them filled.
    const HotLists* hot_lists() const { return hot->load(std::memory_order_acquire); }
    bool in_memory() const { return !read; }
    bool weighted() const { return weights != nullptr || read_weights; }
};

struct Topology {
    std::vector<std::string> node_types;
    std::vector<int64_t> num_nodes;
    std::vector<Relation> relations;
    // Of a relabelled graph: the ids its nodes had, by type; null where they are as they were. Random numbers are drawn
    // for these, so that a graph gives the same samples whatever its nodes are called.
    std::vector<const int64_t*> origins;
    std::vector<const int64_t*> node_times;  // by type; null where nodes have none
    TablePool tables;

    const int64_t* times_of(size_t type) const { return type < node_times.size() ? node_times[type] : nullptr; }
    const int64_t* origins_of(size_t type) const { return type < origins.size() ? origins[type] : nullptr; }
    int64_t num_sources(const Relation& relation) const { return num_nodes[static_cast<size_t>(relation.src_type)]; }
};

}  // namespace gids
