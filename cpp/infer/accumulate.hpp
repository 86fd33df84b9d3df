// Sums over in-edges while the rows of the sources pass by in order: edges grouped by block of sources, and the adding.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "thread_pool.hpp"

namespace gids::infer {

// In-edges of consecutive destinations by block of `block_rows` sources. Edges of block b are [begin[b], begin[b + 1]),
// by destination, and those of one destination by source: over all blocks, every destination sees its sources ascend.
struct EdgeBlocks {
    std::vector<int64_t> begin;
    std::vector<uint32_t> source;       // counted from the first row of the block
    std::vector<uint32_t> destination;  // counted from the first destination
};

// offsets[d]..offsets[d + 1], less offsets[0], are the edges of destination d in `sources`, which is sorted in place.
template <class Id>
EdgeBlocks group_edges(ThreadPool& pool, std::span<const int64_t> offsets, std::span<Id> sources, int64_t num_sources,
                       int64_t block_rows);

// sums[destination[e]] += rows[source[e]] for every edge, in order for every destination, whatever the threads are.
// `destination` ascends.
template <class Value>
void add_rows(ThreadPool& pool, std::span<const uint32_t> source, std::span<const uint32_t> destination,
              const Value* rows, int64_t num_rows, Value* sums, int64_t num_sums, int64_t dim);

}  // namespace gids::infer
