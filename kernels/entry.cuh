// What every file of entry points includes: the shape of a launch, and the table that the test build launches from.
#pragma once

#include "exec.cuh"

// Threads of the largest block that an entry point is launched with, and how many of those a multiprocessor holds at
// least: together 64 registers a thread, which no entry point needs. Left to itself ptxas aims at 32 and spills.
#define GIDS_BLOCK_THREADS 256
#define GIDS_BLOCKS_RESIDENT 4
#define GIDS_KERNEL extern "C" __global__ void __launch_bounds__(GIDS_BLOCK_THREADS, GIDS_BLOCKS_RESIDENT)
// For entry points that wait on a drive, or whose counts stay in registers (ptxas spills on sm_100): half as many
// blocks, twice the registers.
#define GIDS_WIDE_KERNEL extern "C" __global__ void __launch_bounds__(GIDS_BLOCK_THREADS, GIDS_BLOCKS_RESIDENT / 2)

// GIDS_REGISTER(kernel): after each entry point. A CUDA build finds entry points by their extern "C" name; the
// lane-by-lane test build needs a table.
#ifdef GIDS_SIMT
#define GIDS_REGISTER(kernel) \
    static const simt::Registration kernel##_registration = simt::registration(#kernel, &simt::thunk<&kernel>, &kernel);
#else
#define GIDS_REGISTER(kernel)
#endif

namespace gids {

// Number of this group over the whole one-dimensional launch, and how many there are: entry points loop from the one
// in steps of the other, so any grid covers any count.
template <class Exec>
GIDS_DEVICE int64_t group_index(Exec) {
    return (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) / Exec::kLanes;
}
template <class Exec>
GIDS_DEVICE int64_t group_count(Exec) {
    return static_cast<int64_t>(gridDim.x) * blockDim.x / Exec::kLanes;
}

}  // namespace gids
