// A graph as the samplers see it: in-edges by destination, per relation, over arrays that the caller keeps alive.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "sampling/node_set.hpp"

namespace gids {

// Reads neighbours that are not in memory: out[i] = source node of edge position positions[i].
using NeighborReader = std::function<void(const int64_t* positions, int64_t count, int64_t* out)>;

struct Relation {
    std::string name;
    int src_type = 0;
    int dst_type = 0;
    const int64_t* indptr = nullptr;     // num_nodes[dst_type] + 1 offsets
    const int32_t* indices32 = nullptr;  // at most one of indices32, indices64 and read is set
    const int64_t* indices64 = nullptr;
    NeighborReader read;
    const float* weights = nullptr;     // by edge position
    const int64_t* edge_ids = nullptr;  // by edge position; null: the position is the id
};

struct Topology {
    std::vector<std::string> node_types;
    std::vector<int64_t> num_nodes;
    std::vector<Relation> relations;
    TablePool tables;
};

}  // namespace gids
