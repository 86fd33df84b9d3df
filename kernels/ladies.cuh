// Layer-dependent importance sampling (LADIES, Zou et al. 2019): how likely a candidate is, when it is chosen, and what
// its edges weigh afterwards. Masses are integers, so that they can be summed in any order.
#pragma once

#include "exec.cuh"
#include "logarithm.cuh"
#include "philox.cuh"

namespace gids {

// Bits below the point of a mass. A destination gives at most 1 in all, so their sum stays below 2^62.
GIDS_DEVICE int mass_bits(int64_t num_dst) {
    int bits = 62;
    while (bits > 0 && (num_dst >> (62 - bits)) > 0) --bits;
    return bits;
}

// What an edge that carries `part` of its destination's `whole` adds to the mass of its source: its share squared.
GIDS_DEVICE uint64_t edge_mass(uint64_t part, uint64_t whole, int bits) {
    const double share = static_cast<double>(part) / static_cast<double>(whole);
    const double mass = share * share * static_cast<double>(uint64_t{1} << bits);
    return mass < 1.0 ? 1 : static_cast<uint64_t>(mass);
}

// When a candidate finishes its race; the earliest ones are chosen.
GIDS_DEVICE double candidate_time(RandomKey key, uint64_t node, uint64_t mass) {
    return exponential(random_block(key, node, 0).low()) / static_cast<double>(mass);
}

// Importance weight of an edge before rows are normalised: share / (chosen * probability of the source).
GIDS_DEVICE double importance(uint64_t part, uint64_t whole, uint64_t mass, uint64_t total_mass, int64_t chosen) {
    const double share = static_cast<double>(part) / static_cast<double>(whole);
    const double probability = static_cast<double>(mass) / static_cast<double>(total_mass);
    return share / (static_cast<double>(chosen) * probability);
}

}  // namespace gids
