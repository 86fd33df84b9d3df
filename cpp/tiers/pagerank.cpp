// push_ranks and damp_ranks: pieces of edges and of nodes; a piece finds its first node by bisection.
#include "tiers/pagerank.hpp"

#include <string>

#include "errors.hpp"
#include "pagerank.cuh"

namespace gids {

namespace {
constexpr int64_t kEdgesInPiece = 1 << 16;
constexpr int64_t kNodesInPiece = 1 << 16;
}  // namespace

template <class Index>
void push_ranks(ThreadPool& pool, std::span<const int64_t> indptr, std::span<const uint64_t> rank,
                std::span<const Index> sources, int64_t first, uint64_t relations, std::span<uint64_t> received) {
    const int64_t nodes = static_cast<int64_t>(rank.size());
    const int64_t edges = static_cast<int64_t>(sources.size());
    if (std::ssize(indptr) != nodes + 1)
        throw ConfigError("indptr must have one entry more than rank (got " + std::to_string(indptr.size()) + " and " +
                          std::to_string(nodes) + ")");
    if (first < 0 || first + edges > indptr[nodes])
        throw ConfigError("edges of a chunk must end by " + std::to_string(indptr[nodes]) + " (got " +
                          std::to_string(first + edges) + ")");
    if (relations < 1) throw ConfigError("relations must be at least 1 (got 0)");
    pool.parallel_for(edges, kEdgesInPiece, [&](int64_t begin, int64_t end) {
        for (int64_t k = begin; k < end; ++k)
            if (sources[k] < 0 || static_cast<uint64_t>(sources[k]) >= received.size())
                throw DatasetError("source nodes must be in [0, " + std::to_string(received.size()) + ") (got " +
                                   std::to_string(sources[k]) + " at edge " + std::to_string(first + k) + ")");
        push_rank(Serial{}, indptr.data(), nodes, rank.data(), sources.data(), first, first + begin, first + end,
                  relations, received.data());
    });
}

template void push_ranks(ThreadPool&, std::span<const int64_t>, std::span<const uint64_t>, std::span<const int32_t>,
                         int64_t, uint64_t, std::span<uint64_t>);
template void push_ranks(ThreadPool&, std::span<const int64_t>, std::span<const uint64_t>, std::span<const int64_t>,
                         int64_t, uint64_t, std::span<uint64_t>);

void damp_ranks(ThreadPool& pool, std::span<uint64_t> received, std::span<const uint64_t> restart, uint32_t damping,
                std::span<uint64_t> rank) {
    if (received.size() != restart.size() || received.size() != rank.size())
        throw ConfigError("received, restart and rank must be equally long");
    pool.parallel_for(std::ssize(rank), kNodesInPiece, [&](int64_t begin, int64_t end) {
        for (int64_t v = begin; v < end; ++v) {
            rank[v] = damped_rank(received[v], restart[v], damping);
            received[v] = 0;
        }
    });
}

}  // namespace gids
