// Layer-neighbour sampling (LABOR, Balin and Catalyurek 2023): every source node has one variate per layer, and each
// destination takes the in-edges whose sources have the smallest ones. Destinations thereby agree on sources, and a
// batch needs fewer of them, while every destination alone sees what neighbour sampling would give it.
#pragma once

#include "exec.cuh"
#include "logarithm.cuh"
#include "philox.cuh"
#include "weighted.cuh"

namespace gids {

// The variates of one layer. From batch to batch a share of the nodes moves on from `now` to `next`, so that batches of
// one period resemble each other while each of them alone is as random as ever; threshold 0: no node has moved.
struct LaborKey {
    RandomKey now, next, phase;
    uint64_t threshold;      // below 2^32
    const int64_t* origins;  // what nodes were called before they were relabelled; null where they were not
};

// What a source's random numbers are drawn for.
GIDS_DEVICE uint64_t labor_name(const LaborKey& key, uint64_t node) {
    return key.origins == nullptr ? node : static_cast<uint64_t>(key.origins[node]);
}

// period: batches until every node has a new variate; 1: each batch has its own. layer: 0 for all, where layers are to
// resemble each other. type: of the source nodes, which relations share.
GIDS_DEVICE LaborKey labor_key(uint64_t seed, uint32_t epoch, uint64_t batch, uint64_t period, uint32_t layer,
                               uint32_t type, const int64_t* origins) {
    const uint64_t group = batch / period, moved = batch % period;
    return {random_key(seed, epoch, group, layer, type, Stream::kLabor),
            random_key(seed, epoch, group + 1, layer, type, Stream::kLabor),
            random_key(seed, epoch, 0, layer, type, Stream::kLaborPhase), moved * (~uint64_t{0} / period) >> 32,
            origins};
}

// 32 random bits of a node. Not the generator, which makes only the key: a list is looked at whole, edge by edge, and
// LABOR's time goes into this. The finaliser of MurmurHash3 with half of the key before it and half inside; ids of more
// than 32 bits have a key of their own for each upper half.
GIDS_DEVICE uint32_t labor_mix(RandomKey key, uint64_t node) {
    uint32_t x = static_cast<uint32_t>(node) + key.k0;
    const auto upper = static_cast<uint32_t>(node >> 32);
    if (upper != 0) key.k1 ^= philox(key, upper, 0, 0, 0).w[0];
    x = (x ^ x >> 16) * 0x85EBCA6Bu;
    x = (x ^ x >> 13 ^ key.k1) * 0xC2B2AE35u;
    return x ^ x >> 16;
}

// The variate of a source.
GIDS_DEVICE uint32_t labor_bits(const LaborKey& key, uint64_t source) {
    const uint64_t node = labor_name(key, source);
    const bool moved = key.threshold != 0 && labor_mix(key.phase, node) < key.threshold;
    return labor_mix(moved ? key.next : key.now, node);
}

// What edges are ordered by: the variate, or an exponential clock whose rate is the edge's weight. Negative for an edge
// that cannot be chosen.
GIDS_DEVICE double labor_time(uint32_t bits) { return static_cast<double>(bits); }
GIDS_DEVICE double labor_time(uint32_t bits, float weight) {
    constexpr uint64_t kHalf = uint64_t{1} << 31;
    return weight > 0.0f ? exponential(uint64_t{bits} << 32 | kHalf) / static_cast<double>(weight) : -1.0;
}

// Writes the positions that a node contributes, as choose_uniform and choose_weighted do: `eligible` edges can be
// chosen, all of them where count is as many, in order; else the earliest, in the order of their times. indices (an
// array, or Neighbors) and weights begin at the node's first edge; weights may be null. times is scratch for count
// numbers.
template <class Exec, class Indices>
GIDS_DEVICE void choose_labor(Exec exec, const LaborKey& key, int64_t first, int64_t degree, int64_t eligible,
                              int64_t count, const Indices& indices, const float* weights, double* times,
                              int64_t* out) {
    if (count == eligible) {
        take_eligible(exec, first, degree, weights, out);
        return;
    }
    choose_first(
        exec, first, degree, count,
        [&](int64_t i) {
            const uint32_t bits = labor_bits(key, static_cast<uint64_t>(indices[i]));
            return weights == nullptr ? labor_time(bits) : labor_time(bits, weights[i]);
        },
        times, out);
}

// Importance: the c of a destination for which edges that are kept with chance min(1, c * pi) vary as much as `fanout`
// chosen ones would: sum of 1 / min(1, c * pi) = degree^2 / fanout. pi_of(i) is positive. One lane does it, so that the
// order of the sums is the same everywhere.
template <class PiOf>
GIDS_DEVICE double labor_scale(int64_t degree, int64_t fanout, const PiOf& pi_of) {
    if (fanout < 0 || degree <= fanout) {
        double least = 1.0;
        for (int64_t i = 0; i < degree; ++i) least = pi_of(i) < least ? pi_of(i) : least;
        return 1.0 / least;
    }
    if (fanout == 0) return 0.0;
    const double target = static_cast<double>(degree) * static_cast<double>(degree) / static_cast<double>(fanout);
    double c = 0.0;
    for (int64_t certain = 0;;) {  // edges that are kept for sure: more with every round, until none is added
        double sum = 0.0;
        for (int64_t i = 0; i < degree; ++i)
            if (c * pi_of(i) < 1.0) sum += 1.0 / pi_of(i);
        c = sum / (target - static_cast<double>(certain));
        int64_t now = 0;
        for (int64_t i = 0; i < degree; ++i) now += c * pi_of(i) >= 1.0;
        if (now <= certain) return c;
        certain = now;
    }
}

// Whether a source with these bits is kept by a destination, and with which chance it was.
GIDS_DEVICE double labor_chance(double c, double pi) { return c * pi < 1.0 ? c * pi : 1.0; }
GIDS_DEVICE bool labor_keeps(uint32_t bits, double chance) { return static_cast<double>(bits) * 0x1p-32 < chance; }

}  // namespace gids
