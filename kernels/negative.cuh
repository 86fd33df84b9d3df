// Uniform negative destinations for link prediction: draw j of edge i of a batch.
#pragma once

#include "sample.cuh"

namespace gids {

GIDS_DEVICE int64_t negative_node(RandomKey key, int64_t edge, int64_t j, int64_t num_nodes) {
    return static_cast<int64_t>(
        uniform_draw(key, static_cast<uint64_t>(edge), static_cast<uint32_t>(j), static_cast<uint64_t>(num_nodes)));
}

}  // namespace gids
