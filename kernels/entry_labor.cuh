// Entry points of layer-neighbour sampling.
#pragma once

#include "entry.cuh"
#include "entry_sampling.cuh"
#include "instances.cuh"
#include "labor.cuh"
#include "neighbors.cuh"

namespace gids {

template <class Index>
GIDS_DEVICE void choose_labor_edges(const LaborKey& key, Neighbors<Index> neighbors, const float* weights,
                                    Prefix counts, const int64_t* first, const int64_t* degree, const int64_t* eligible,
                                    int64_t* begins, double* times, int64_t* positions) {
    const Group<8> group;
    choose_by_node(group, counts, begins, [&](int64_t i, int64_t begin, int64_t count) {
        choose_labor(group, key, first[i], degree[i], eligible[i], count, neighbors.from(first[i]),
                     weights == nullptr ? nullptr : weights + first[i], times + begin, positions + begin);
    });
}

}  // namespace gids

// weights may be null: then eligible is degree. `times` is scratch, one number per chosen edge.
#define GIDS_CHOOSE_LABOR(bits, index)                                                                               \
    GIDS_KERNEL choose_labor_edges_##bits(                                                                           \
        gids::uint32_t now0, gids::uint32_t now1, gids::uint32_t next0, gids::uint32_t next1, gids::uint32_t phase0, \
        gids::uint32_t phase1, gids::uint64_t threshold, const gids::int64_t* origins, const index* indices,         \
        const gids::HeldPieces* held, const index* values, const float* weights, const gids::int64_t* num_dst,       \
        const gids::int64_t* first, const gids::int64_t* degree, const gids::int64_t* eligible,                      \
        const gids::int64_t* within, const gids::int64_t* before, const gids::int64_t* total, gids::int64_t* begins, \
        double* times, gids::int64_t* positions) {                                                                   \
        gids::choose_labor_edges<index>({{now0, now1}, {next0, next1}, {phase0, phase1}, threshold, origins},        \
                                        {indices, held, values}, weights, {within, before, total, *num_dst}, first,  \
                                        degree, eligible, begins, times, positions);                                 \
    }                                                                                                                \
    GIDS_REGISTER(choose_labor_edges_##bits)
GIDS_INDEX_TYPES(GIDS_CHOOSE_LABOR)
