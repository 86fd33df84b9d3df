// Gathers rows out of the tiers and copies admitted rows into the cache, on a thread pool.
#pragma once

#include <cstdint>
#include <span>

#include "gather.cuh"
#include "thread_pool.hpp"

namespace gids {

// Order of gids.table.DTYPES.
enum class DType { kFloat16, kBFloat16, kFloat32, kFloat64, kUInt8, kInt8, kInt16, kInt32, kInt64 };

// out[i] = row location[i], `dim` values of `from` as values of `to`. Any type to itself, and any type to a float.
void gather_rows(ThreadPool& pool, const AddressSpace& space, std::span<const int64_t> location, uint8_t* out, DType to,
                 DType from, int64_t dim);

// cache[slot[k]] = group[position[k]], rows of `row_bytes` bytes.
void admit_rows(ThreadPool& pool, uint8_t* cache, std::span<const int64_t> slot, const uint8_t* group,
                std::span<const int64_t> position, int64_t row_bytes);

}  // namespace gids
