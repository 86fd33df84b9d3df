// Entry points of weighted reverse PageRank, which ranks rows for the host buffer.
#pragma once

#include "entry.cuh"
#include "instances.cuh"
#include "pagerank.cuh"

namespace gids {

constexpr int64_t kEdgesInPiece = 512;  // one bisection is paid for this many edges

template <class Index>
GIDS_DEVICE void push_ranks(const int64_t* indptr, int64_t num_nodes, const uint64_t* rank, const Index* sources,
                            int64_t first, int64_t edges, uint64_t relations, uint64_t* received) {
    const Group<32> warp;
    for (int64_t begin = group_index(warp) * kEdgesInPiece; begin < edges; begin += group_count(warp) * kEdgesInPiece) {
        const int64_t end = begin + kEdgesInPiece < edges ? begin + kEdgesInPiece : edges;
        push_rank(warp, indptr, num_nodes, rank, sources, first, first + begin, first + end, relations, received);
    }
}

}  // namespace gids

// Edges [first, first + edges) of one relation; their sources are in [0, nodes of the source type).
#define GIDS_PUSH_RANKS(bits, index)                                                                                \
    GIDS_KERNEL push_ranks_##bits(const gids::int64_t* indptr, gids::int64_t num_nodes, const gids::uint64_t* rank, \
                                  const index* sources, gids::int64_t first, gids::int64_t edges,                   \
                                  gids::uint64_t relations, gids::uint64_t* received) {                             \
        gids::push_ranks(indptr, num_nodes, rank, sources, first, edges, relations, received);                      \
    }                                                                                                               \
    GIDS_REGISTER(push_ranks_##bits)
GIDS_INDEX_TYPES(GIDS_PUSH_RANKS)

GIDS_KERNEL damp_ranks(gids::uint64_t* received, const gids::uint64_t* restart, gids::uint32_t damping,
                       gids::int64_t count, gids::uint64_t* rank) {
    const gids::Group<1> lane;
    for (gids::int64_t v = group_index(lane); v < count; v += group_count(lane)) {
        rank[v] = gids::damped_rank(received[v], restart[v], damping);
        received[v] = 0;
    }
}
GIDS_REGISTER(damp_ranks)
