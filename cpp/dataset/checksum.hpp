// Sums that name the damaged row: a chunk's hash says that a bit flipped, these two say in which row.
#pragma once

#include <cstdint>

#include "thread_pool.hpp"

namespace gids {

// Digest of one row: every 32-bit word times an odd constant of its own.
uint64_t row_digest(const uint8_t* row, int64_t bytes);

// For every chunk c of chunk_rows rows (the last may be shorter) with row digests d_0, d_1, ...:
//   sums[2c]     = sum of d_i              (mod 2^64)
//   sums[2c + 1] = sum of (i + 1) * d_i    (mod 2^64)
// Damage in one row i changes them by D and (i + 1) * D, which gives i. The digest multiplies every 32-bit word of the
// row with an odd constant, so one changed word changes D by a number that no (i + 1) < 2^32 can hide.
void row_sums(const uint8_t* data, int64_t num_rows, int64_t row_bytes, int64_t chunk_rows, uint64_t* sums,
              ThreadPool& pool);

}  // namespace gids
