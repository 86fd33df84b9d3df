// Entry points of the passes that others are built from: exclusive prefix sum, compaction, stable radix sort.
// Counts may be known to the device only, so they are read through pointers and grids are sized by a bound.
#pragma once

#include "entry.cuh"

namespace gids {

// Exclusive prefix sum of the block's values by doubling; `total` gets their sum. All lanes of the block must call it.
GIDS_DEVICE int64_t block_exclusive_scan(int64_t value, int64_t& total) {
    GIDS_SHARED(int64_t, cell, 2 * GIDS_BLOCK_THREADS);
    const int lane = static_cast<int>(threadIdx.x), lanes = static_cast<int>(blockDim.x);
    int at = 0;  // two halves: one is read while the other is written
    cell[lane] = value;
    __syncthreads();
    for (int step = 1; step < lanes; step *= 2) {
        const int64_t sum = cell[at + lane] + (lane >= step ? cell[at + lane - step] : 0);
        at = GIDS_BLOCK_THREADS - at;
        cell[at + lane] = sum;
        __syncthreads();
    }
    const int64_t inclusive = cell[at + lane];
    total = cell[at + lanes - 1];
    __syncthreads();  // the cells are free for the next call
    return inclusive - value;
}

constexpr int kRadixDigits = 16;  // of 4 bits: a tile's counts fit in registers' reach, and few digits mean few ties

}  // namespace gids

GIDS_KERNEL set_values(gids::int64_t value, gids::int64_t count, gids::int64_t* out) {
    const gids::Group<1> lane;
    for (gids::int64_t i = group_index(lane); i < count; i += group_count(lane)) out[i] = value;
}
GIDS_REGISTER(set_values)

// Pass 1 of 3: tile t covers [t * blockDim, (t + 1) * blockDim); out gets sums within the tile.
GIDS_KERNEL scan_tiles(const gids::int64_t* in, const gids::int64_t* count, gids::int64_t tiles, gids::int64_t* out,
                       gids::int64_t* tile_sums) {
    for (gids::int64_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        const gids::int64_t i = tile * blockDim.x + threadIdx.x;
        gids::int64_t total = 0;
        const gids::int64_t before = gids::block_exclusive_scan(i < *count ? in[i] : 0, total);
        if (i < *count) out[i] = before;
        if (threadIdx.x == 0) tile_sums[tile] = total;
    }
}
GIDS_REGISTER(scan_tiles)

// Pass 2, one block: sums of tiles become sums before tiles; tile_sums[tiles] gets the total.
GIDS_KERNEL scan_sums(gids::int64_t* tile_sums, gids::int64_t tiles) {
    gids::int64_t carry = 0;
    for (gids::int64_t begin = 0; begin < tiles; begin += blockDim.x) {
        const gids::int64_t i = begin + threadIdx.x;
        gids::int64_t total = 0;
        const gids::int64_t before = gids::block_exclusive_scan(i < tiles ? tile_sums[i] : 0, total);
        if (i < tiles) tile_sums[i] = carry + before;
        carry += total;
    }
    if (threadIdx.x == 0) tile_sums[tiles] = carry;
}
GIDS_REGISTER(scan_sums)

// Pass 3, with pass 1's block size: out[i] is the sum of in[0 .. i), out[count] the total.
GIDS_KERNEL scan_add(const gids::int64_t* tile_sums, const gids::int64_t* count, gids::int64_t tiles,
                     gids::int64_t* out) {
    for (gids::int64_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        const gids::int64_t i = tile * blockDim.x + threadIdx.x;
        if (i < *count) out[i] += tile_sums[tile];
    }
    if (blockIdx.x == 0 && threadIdx.x == 0) out[*count] = tile_sums[tiles];
}
GIDS_REGISTER(scan_add)

// out[before[i]] = i for the flagged i, in order; flags are 0 or 1 and `before` is their prefix sum.
GIDS_KERNEL compact_indices(const gids::int64_t* flags, const gids::int64_t* before, const gids::int64_t* count,
                            gids::int64_t limit, gids::int64_t* out) {
    const gids::Group<1> lane;
    for (gids::int64_t i = group_index(lane); i < *count; i += group_count(lane))
        if (flags[i] != 0 && before[i] < limit) out[before[i]] = i;
}
GIDS_REGISTER(compact_indices)

// Radix sort of (key, value) pairs, one digit a round. Counts of tile t: counts[digit * tiles + t], so that their
// prefix sum is where the tile's first key of the digit goes.
GIDS_KERNEL radix_count(const gids::int64_t* keys, const gids::int64_t* count, gids::int64_t tiles, int shift,
                        gids::int64_t* counts) {
    GIDS_SHARED(gids::uint32_t, tally, gids::kRadixDigits);
    for (gids::int64_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        for (unsigned d = threadIdx.x; d < gids::kRadixDigits; d += blockDim.x) tally[d] = 0;
        __syncthreads();
        const gids::int64_t i = tile * blockDim.x + threadIdx.x;
        // relaxed: only summed, read after the barrier.
        if (i < *count)
            gids::atomic_ref<gids::uint32_t>(tally[keys[i] >> shift & (gids::kRadixDigits - 1)])
                .fetch_add(1u, gids::memory_order_relaxed);
        __syncthreads();
        for (unsigned d = threadIdx.x; d < gids::kRadixDigits; d += blockDim.x) counts[d * tiles + tile] = tally[d];
        __syncthreads();
    }
}
GIDS_REGISTER(radix_count)

GIDS_KERNEL radix_scatter(const gids::int64_t* keys, const gids::int64_t* values, const gids::int64_t* count,
                          gids::int64_t tiles, int shift, const gids::int64_t* starts, gids::int64_t* out_keys,
                          gids::int64_t* out_values) {
    GIDS_SHARED(gids::uint8_t, digits, GIDS_BLOCK_THREADS);
    for (gids::int64_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        const gids::int64_t i = tile * blockDim.x + threadIdx.x;
        const bool active = i < *count;
        const gids::int64_t key = active ? keys[i] : 0;
        const auto digit = static_cast<gids::uint8_t>(key >> shift & (gids::kRadixDigits - 1));
        digits[threadIdx.x] = digit;
        __syncthreads();
        if (active) {
            gids::int64_t rank = 0;  // earlier keys of the tile with this digit: keeps the sort stable
            for (unsigned j = 0; j < threadIdx.x; ++j) rank += digits[j] == digit;
            const gids::int64_t to = starts[digit * tiles + tile] + rank;
            out_keys[to] = key;
            out_values[to] = values[i];
        }
        __syncthreads();
    }
}
GIDS_REGISTER(radix_scatter)
