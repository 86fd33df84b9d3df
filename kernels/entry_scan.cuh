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

// Whether this block is the last of the launch to come here. All lanes must call it; what the other blocks wrote before
// is visible to the last one's lanes. `turnstile` is 0 before and after a launch.
GIDS_DEVICE bool is_last_block(uint32_t* turnstile) {
    GIDS_SHARED(uint32_t, last, 1);
    __syncthreads();  // the block's writes come before its first lane's release
    if (threadIdx.x == 0) {
        const atomic_ref<uint32_t> arrived(*turnstile);
        // release: this block's writes; acquire: those of the blocks before.
        last[0] = arrived.fetch_add(1u, memory_order_acq_rel) + 1 == gridDim.x ? 1u : 0u;
        if (last[0] != 0) arrived.store(0u, memory_order_relaxed);  // nobody else comes; the next launch begins at 0
    }
    __syncthreads();
    return last[0] != 0;
}

// Exclusive prefix sums that scan_values() made, for launches with the same block size: sums within tiles of a block's
// size, what comes before each tile, and all of it.
struct Prefix {
    const int64_t* within;
    const int64_t* before;
    const int64_t* total;
    int64_t count;

    GIDS_DEVICE int64_t operator[](int64_t i) const { return i < count ? within[i] + before[i / blockDim.x] : *total; }
};

// Prefix sums of value(i) for i < count in one launch; `before` has room for one number a tile of the bound that the
// grid was sized by. The last block adds up the tiles.
template <class Value>
GIDS_DEVICE void scan_values(const Value& value, int64_t count, int64_t* within, int64_t* before, int64_t* total,
                             uint32_t* turnstile) {
    const int64_t tiles = (count + blockDim.x - 1) / blockDim.x;
    for (int64_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        const int64_t i = tile * blockDim.x + threadIdx.x;
        int64_t sum = 0;
        const int64_t earlier = block_exclusive_scan(i < count ? value(i) : 0, sum);
        if (i < count) within[i] = earlier;
        if (threadIdx.x == 0) before[tile] = sum;
    }
    if (!is_last_block(turnstile)) return;
    int64_t carry = 0;
    for (int64_t begin = 0; begin < tiles; begin += blockDim.x) {
        const int64_t i = begin + threadIdx.x;
        int64_t sum = 0;
        const int64_t earlier = block_exclusive_scan(i < tiles ? before[i] : 0, sum);
        if (i < tiles) before[i] = carry + earlier;
        carry += sum;
    }
    if (threadIdx.x == 0) *total = carry;
}

constexpr int kRadixDigits = 256;  // of 8 bits: row numbers of 32 bits take four rounds

}  // namespace gids

GIDS_KERNEL set_values(gids::int64_t value, gids::int64_t count, gids::int64_t* out) {
    const gids::Group<1> lane;
    for (gids::int64_t i = group_index(lane); i < count; i += group_count(lane)) out[i] = value;
}
GIDS_REGISTER(set_values)

GIDS_KERNEL scan_tiles(const gids::int64_t* in, const gids::int64_t* count, gids::int64_t* within,
                       gids::int64_t* before, gids::int64_t* total, gids::uint32_t* turnstile) {
    gids::scan_values([&](gids::int64_t i) { return in[i]; }, *count, within, before, total, turnstile);
}
GIDS_REGISTER(scan_tiles)

// out[i] is the sum of in[0 .. i), out[count] the total; may work in place.
GIDS_KERNEL scan_add(const gids::int64_t* before, const gids::int64_t* total, const gids::int64_t* count,
                     gids::int64_t* out) {
    const gids::Prefix sums{out, before, total, *count};
    const gids::Group<1> lane;
    for (gids::int64_t i = group_index(lane); i < *count; i += group_count(lane)) out[i] = sums[i];
    if (blockIdx.x == 0 && threadIdx.x == 0) out[*count] = *total;
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

// Radix sort of (key, value) pairs, one digit a round of two launches. Counts of tile t: counts[t * digits + digit];
// the last block turns them into sums before tiles, and totals[digit] into the sum of all.
GIDS_KERNEL radix_count(const gids::int64_t* keys, const gids::int64_t* count, int shift, gids::int64_t* counts,
                        gids::int64_t* totals, gids::uint32_t* turnstile) {
    GIDS_SHARED(gids::uint32_t, tally, gids::kRadixDigits);
    const gids::int64_t tiles = (*count + blockDim.x - 1) / blockDim.x;
    for (gids::int64_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        for (unsigned d = threadIdx.x; d < gids::kRadixDigits; d += blockDim.x) tally[d] = 0;
        __syncthreads();
        const gids::int64_t i = tile * blockDim.x + threadIdx.x;
        // relaxed: only summed, read after the barrier.
        if (i < *count)
            gids::atomic_ref<gids::uint32_t>(tally[keys[i] >> shift & (gids::kRadixDigits - 1)])
                .fetch_add(1u, gids::memory_order_relaxed);
        __syncthreads();
        for (unsigned d = threadIdx.x; d < gids::kRadixDigits; d += blockDim.x)
            counts[tile * gids::kRadixDigits + d] = tally[d];
        __syncthreads();
    }
    if (!gids::is_last_block(turnstile)) return;
    // A lane for each digit: neighbours read neighbours, and no lane waits for another.
    for (unsigned d = threadIdx.x; d < gids::kRadixDigits; d += blockDim.x) {
        gids::int64_t sum = 0;
        for (gids::int64_t tile = 0; tile < tiles; ++tile) {
            const gids::int64_t own = counts[tile * gids::kRadixDigits + d];
            counts[tile * gids::kRadixDigits + d] = sum;
            sum += own;
        }
        totals[d] = sum;
    }
}
GIDS_REGISTER(radix_count)

GIDS_KERNEL radix_scatter(const gids::int64_t* keys, const gids::int64_t* values, const gids::int64_t* count, int shift,
                          const gids::int64_t* counts, const gids::int64_t* totals, gids::int64_t* out_keys,
                          gids::int64_t* out_values) {
    GIDS_SHARED(gids::uint8_t, digits, GIDS_BLOCK_THREADS);
    GIDS_SHARED(gids::int64_t, base, gids::kRadixDigits);
    gids::int64_t carry = 0;
    for (int begin = 0; begin < gids::kRadixDigits; begin += static_cast<int>(blockDim.x)) {
        const int d = begin + static_cast<int>(threadIdx.x);
        gids::int64_t sum = 0;
        const gids::int64_t earlier = gids::block_exclusive_scan(d < gids::kRadixDigits ? totals[d] : 0, sum);
        if (d < gids::kRadixDigits) base[d] = carry + earlier;
        carry += sum;
    }
    __syncthreads();
    const gids::int64_t tiles = (*count + blockDim.x - 1) / blockDim.x;
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
            const gids::int64_t to = base[digit] + counts[tile * gids::kRadixDigits + digit] + rank;
            out_keys[to] = key;
            out_values[to] = values[i];
        }
        __syncthreads();
    }
}
GIDS_REGISTER(radix_scatter)
