// Entry points of edges as seeds: negatives, the pairs of a batch, and edges that its blocks leave out.
#pragma once

#include "entry.cuh"
#include "exclude.cuh"
#include "negative.cuh"

// out[i * per_edge + j] is draw j of edge i.
GIDS_KERNEL draw_negatives(gids::uint32_t k0, gids::uint32_t k1, gids::int64_t edges, gids::int64_t per_edge,
                           gids::int64_t num_nodes, gids::int64_t* out) {
    const gids::Group<1> lane;
    for (gids::int64_t i = group_index(lane); i < edges * per_edge; i += group_count(lane))
        out[i] = gids::negative_node({k0, k1}, i / per_edge, i % per_edge, num_nodes);
}
GIDS_REGISTER(draw_negatives)

// rows[i] is the source of positive pair i; negative pairs follow in order and keep their source.
GIDS_KERNEL pair_seeds(const gids::int64_t* rows, gids::int64_t edges, gids::int64_t per_edge, gids::int64_t* src,
                       float* labels) {
    const gids::Group<1> lane;
    for (gids::int64_t i = group_index(lane); i < edges * (1 + per_edge); i += group_count(lane)) {
        const bool positive = i < edges;
        src[i] = rows[positive ? i : (i - edges) / per_edge];
        labels[i] = positive ? 1.0f : 0.0f;
    }
}
GIDS_REGISTER(pair_seeds)

// flags[e] says whether edge e stays: in-edges of nodes[i] are [begins[i], begins[i + 1]).
GIDS_KERNEL exclude_edges(const gids::NodePair* excluded, gids::int64_t num_excluded, const gids::int64_t* nodes,
                          const gids::int64_t* begins, const gids::int64_t* num_dst, const gids::int64_t* src,
                          gids::int64_t* flags) {
    const gids::Group<8> group;
    for (gids::int64_t i = group_index(group); i < *num_dst; i += group_count(group))
        for (gids::int64_t e = begins[i] + group.lane(); e < begins[i + 1]; e += 8)
            flags[e] = gids::contains_pair(excluded, num_excluded, {nodes[i], src[e]}) ? 0 : 1;
}
GIDS_REGISTER(exclude_edges)

// Weights of edges whose positions do not follow each other.
GIDS_KERNEL take_weights(const float* from, const gids::int64_t* index, gids::int64_t count, float* out) {
    const gids::Group<1> lane;
    for (gids::int64_t i = group_index(lane); i < count; i += group_count(lane)) out[i] = from[index[i]];
}
GIDS_REGISTER(take_weights)
