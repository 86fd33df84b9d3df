// A graph as the samplers see it: in-edges by destination, per relation, over arrays that the caller keeps alive.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "sampling/hot_lists.hpp"
#include "sampling/node_set.hpp"

namespace gids {

// Reads what is not in memory: out[i] = value of edge position positions[i].
using NeighborReader = std::function<void(const int64_t* positions, int64_t count, int64_t* out)>;
using WeightReader = std::function<void(const int64_t* positions, int64_t count, float* out)>;

struct Relation {
    std::string name;
    int src_type = 0;
    int dst_type = 0;
    const int64_t* indptr = nullptr;  // num_nodes[dst_type] + 1 offsets
    // Source nodes by edge position: exactly one of the three is set.
    const int32_t* indices32 = nullptr;
    const int64_t* indices64 = nullptr;
    NeighborReader read;
    std::shared_ptr<const HotLists> hot;  // neighbour lists kept in memory although the others are on disk; may be null
    // Weights by edge position: at most one of the two is set.
    const float* weights = nullptr;
    WeightReader read_weights;
    // Ids by edge position: at most one of the two is set; with neither the position is the id.
    const int64_t* edge_ids = nullptr;
    NeighborReader read_edge_ids;

    bool in_memory() const { return !read; }
    bool weighted() const { return weights != nullptr || read_weights; }
};

struct Topology {
    std::vector<std::string> node_types;
    std::vector<int64_t> num_nodes;
    std::vector<Relation> relations;
    TablePool tables;

    int64_t num_sources(const Relation& relation) const { return num_nodes[static_cast<size_t>(relation.src_type)]; }
};

}  // namespace gids
