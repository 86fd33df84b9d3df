// Passes of the weighted reverse PageRank on a thread pool, over a chunk of the edges at a time.
#pragma once

#include <cstdint>
#include <span>

#include "thread_pool.hpp"

namespace gids {

// received[u] += rank[v] / (in-degree(v) * relations) for the edges u -> v at positions [first, first +
// sources.size()). `relations` is how many edge types end at the destination type. `received` and `sources` belong to
// the source type, `indptr` and `rank` to the destination type.
template <class Index>
void push_ranks(ThreadPool& pool, std::span<const int64_t> indptr, std::span<const uint64_t> rank,
                std::span<const Index> sources, int64_t first, uint64_t relations, std::span<uint64_t> received);

// rank[v] = damping * received[v] + restart[v]; received[v] = 0 for the next round.
void damp_ranks(ThreadPool& pool, std::span<uint64_t> received, std::span<const uint64_t> restart, uint32_t damping,
                std::span<uint64_t> rank);

}  // namespace gids
