// Counters that a block adds up in shared memory, so that it adds to each of them once rather than lane by lane.
#pragma once

#include "entry.cuh"

namespace gids {

constexpr uint32_t kBlockCells = 256;  // a power of two

// Cells belong to the counters that come first; a counter whose cell is another's is added to as it is. All lanes of
// the block make one, and call flush() once; `owners` and `sums` are shared arrays of kBlockCells.
struct BlockCounts {
    uint32_t* owners;  // number of the counter + 1; 0: nobody's
    uint32_t* sums;

    GIDS_DEVICE BlockCounts(uint32_t* shared_owners, uint32_t* shared_sums) : owners(shared_owners), sums(shared_sums) {
        for (uint32_t cell = threadIdx.x; cell < kBlockCells; cell += blockDim.x) owners[cell] = sums[cell] = 0;
        __syncthreads();
    }

    // Counter `number` is the one at at(number); at most 2^32 are added in a block.
    template <class At>
    GIDS_DEVICE void add(uint32_t number, uint32_t value, const At& at) const {
        if (value == 0) return;
        const uint32_t cell = number & (kBlockCells - 1);
        uint32_t found = 0;
        // relaxed: cells go from nobody's to one counter, sums are only added to, and flush() has a barrier.
        if (!atomic_ref<uint32_t>(owners[cell]).compare_exchange_strong(found, number + 1, memory_order_relaxed) &&
            found != number + 1)
            atomic_ref<int64_t>(*at(number)).fetch_add(static_cast<int64_t>(value), memory_order_relaxed);
        else atomic_ref<uint32_t>(sums[cell]).fetch_add(value, memory_order_relaxed);
    }

    template <class At>
    GIDS_DEVICE void flush(const At& at) const {
        __syncthreads();
        for (uint32_t cell = threadIdx.x; cell < kBlockCells; cell += blockDim.x)
            if (owners[cell] != 0)  // relaxed: only summed; read after the kernel
                atomic_ref<int64_t>(*at(owners[cell] - 1))
                    .fetch_add(static_cast<int64_t>(sums[cell]), memory_order_relaxed);
    }
};

}  // namespace gids
