// Which rows batches want: how many want each, and how many rows are on disk if a segment's batches share them.
#pragma once

#include <cstdint>
#include <span>

namespace gids::pack {

// A mark that no segment gives: such a row is not counted.
constexpr int32_t kNeverCounted = INT32_MAX;

// Adds one to the count of every row of `ids`.
template <class Id>
void count_uses(std::span<const Id> ids, std::span<uint32_t> counts);

// Marks the rows of one batch with its segment; returns how many of them no earlier batch of the segment had.
template <class Id>
int64_t mark_rows(std::span<const Id> ids, int32_t segment, std::span<int32_t> marks);

}  // namespace gids::pack
