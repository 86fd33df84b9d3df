// Philox4x32-10, the counter-based generator behind every random choice: no state, so no order of execution to
// depend on. (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011.)
#pragma once

#include "exec.cuh"

namespace gids {

struct RandomKey {
    uint32_t k0, k1;
};

struct RandomBlock {
    uint32_t w[4];
    GIDS_DEVICE uint64_t low() const { return static_cast<uint64_t>(w[1]) << 32 | w[0]; }
    GIDS_DEVICE uint64_t high() const { return static_cast<uint64_t>(w[3]) << 32 | w[2]; }
};

GIDS_DEVICE RandomBlock philox(RandomKey key, uint32_t c0, uint32_t c1, uint32_t c2, uint32_t c3) {
    for (int round = 0; round < 10; ++round) {
        const uint64_t p0 = 0xD2511F53ull * c0;
        const uint64_t p1 = 0xCD9E8D57ull * c2;
        c0 = static_cast<uint32_t>(p1 >> 32) ^ c1 ^ key.k0;
        c1 = static_cast<uint32_t>(p1);
        c2 = static_cast<uint32_t>(p0 >> 32) ^ c3 ^ key.k1;
        c3 = static_cast<uint32_t>(p0);
        key.k0 += 0x9E3779B9u;
        key.k1 += 0xBB67AE85u;
    }
    return {{c0, c1, c2, c3}};
}

// What a random number is for; part of the key, so that no two uses ever share a stream.
enum class Stream : uint32_t { kNeighbors = 1, kLayer = 2, kNegatives = 3, kSeeds = 4, kLabor = 5, kLaborPhase = 6 };

// The key of one (seed, epoch, batch, layer, relation, use). Two generator calls fold the 200-odd bits into 64.
GIDS_DEVICE RandomKey random_key(uint64_t seed, uint32_t epoch, uint64_t batch, uint32_t layer, uint32_t relation,
                                 Stream stream) {
    const RandomBlock a =
        philox({static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)}, epoch, static_cast<uint32_t>(batch),
               static_cast<uint32_t>(batch >> 32), static_cast<uint32_t>(stream));
    const RandomBlock b = philox({a.w[0], a.w[1]}, a.w[2], a.w[3], layer, relation);
    return {b.w[0], b.w[1]};
}

// The i-th block of numbers that belongs to one node.
GIDS_DEVICE RandomBlock random_block(RandomKey key, uint64_t node, uint32_t i) {
    return philox(key, static_cast<uint32_t>(node), static_cast<uint32_t>(node >> 32), i, 0);
}

GIDS_DEVICE uint64_t random_below(uint64_t bits, uint64_t bound) { return multiply_high(bits, bound); }

}  // namespace gids
