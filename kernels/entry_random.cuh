// Entry point of the random generator: `gids selftest` compares it with the CPU before anything that draws from it.
#pragma once

#include "entry.cuh"
#include "philox.cuh"

GIDS_KERNEL random_blocks(gids::uint32_t k0, gids::uint32_t k1, gids::int64_t first, gids::int64_t count,
                          gids::uint32_t* out) {
    const gids::Group<1> lane;
    for (gids::int64_t i = group_index(lane); i < count; i += group_count(lane)) {
        const gids::RandomBlock block = gids::random_block({k0, k1}, static_cast<gids::uint64_t>(first + i), 0);
        for (int w = 0; w < 4; ++w) out[4 * i + w] = block.w[w];
    }
}
GIDS_REGISTER(random_blocks)
