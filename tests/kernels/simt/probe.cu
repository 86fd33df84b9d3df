// Kernels that test the lane-by-lane machine itself, good ones and ones with a planted fault. Never shipped.
#include "entry.cuh"
#include "exec.cuh"

using gids::atomic_ref;
using gids::int64_t;
using gids::memory_order_acquire;
using gids::memory_order_relaxed;
using gids::memory_order_release;
using gids::uint32_t;
using gids::uint64_t;

extern "C" {

__global__ void probe_ids(uint32_t* out) {
    const uint32_t block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
    const uint32_t thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
    out[block * blockDim.x * blockDim.y * blockDim.z + thread] = block * 10000 + thread;
}
GIDS_REGISTER(probe_ids)

__global__ void probe_block_sum(const int64_t* in, int64_t* out) {
    GIDS_SHARED(int64_t, part, 1024);
    part[threadIdx.x] = in[blockIdx.x * blockDim.x + threadIdx.x];
    __syncthreads();
    for (unsigned step = blockDim.x / 2; step > 0; step /= 2) {
        if (threadIdx.x < step) part[threadIdx.x] += part[threadIdx.x + step];
        __syncthreads();
    }
    if (threadIdx.x == 0) out[blockIdx.x] = part[0];
}
GIDS_REGISTER(probe_block_sum)

__global__ void probe_warp(const uint32_t* in, uint32_t* ballots, uint32_t* broadcast, uint32_t* sums) {
    const gids::Group<8> group;
    const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    ballots[i] = group.ballot((in[i] & 1u) != 0);
    broadcast[i] = group.shuffle(in[i], 3);
    uint32_t sum = in[i];
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    sums[i] = sum;
}
GIDS_REGISTER(probe_warp)

// Every lane takes a ticket; the order is the interleaving.
__global__ void probe_tickets(uint32_t* counter, uint32_t* ticket_of) {
    const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    ticket_of[i] = atomic_ref<uint32_t>(*counter).fetch_add(1u, memory_order_relaxed);
}
GIDS_REGISTER(probe_tickets)

// Lane 0 of each warp writes plainly and publishes; the others read. `order` 1: release/acquire; 0: relaxed, a race.
__global__ void probe_publish(uint32_t* data, uint32_t* flag, uint32_t* out, int order) {
    const unsigned warp = (blockIdx.x * blockDim.x + threadIdx.x) / 32;
    if (threadIdx.x % 32 == 0) {
        data[warp] = 7 + warp;
        atomic_ref<uint32_t>(flag[warp]).store(1u, order ? memory_order_release : memory_order_relaxed);
    } else {
        while (atomic_ref<uint32_t>(flag[warp]).load(order ? memory_order_acquire : memory_order_relaxed) == 0) {
        }
        out[blockIdx.x * blockDim.x + threadIdx.x] = data[warp];
    }
}
GIDS_REGISTER(probe_publish)

// Lane 0 sets x, then y; lane 32 waits for y and notes x, and how often a location went back to an older value. `order`
// 1: release/acquire, x is always seen; 0: relaxed, it need not be.
__global__ void probe_messages(uint32_t* x, uint32_t* y, uint32_t* seen, uint32_t* went_back, int order) {
    if (threadIdx.x == 0) {
        for (uint32_t n = 1; n <= 5; ++n) atomic_ref<uint32_t>(*x).store(n, memory_order_relaxed);
        atomic_ref<uint32_t>(*y).store(1u, order ? memory_order_release : memory_order_relaxed);
    }
    if (threadIdx.x == 32) {
        uint32_t before = 0;
        while (atomic_ref<uint32_t>(*y).load(order ? memory_order_acquire : memory_order_relaxed) == 0) {
            const uint32_t now = atomic_ref<uint32_t>(*x).load(memory_order_relaxed);
            if (now < before) ++*went_back;
            before = now;
        }
        *seen = atomic_ref<uint32_t>(*x).load(memory_order_relaxed);
    }
}
GIDS_REGISTER(probe_messages)

// A neighbour exchange through shared memory; `barrier` 0 leaves out the barrier, a race, 2 puts a vote there, which
// meets but orders nothing.
__global__ void probe_exchange(uint32_t* out, int barrier) {
    GIDS_SHARED(uint32_t, cell, 1024);
    cell[threadIdx.x] = threadIdx.x;
    if (barrier == 1) __syncthreads();
    if (barrier == 2) __any_sync(0xffffffffu, 1);
    out[blockIdx.x * blockDim.x + threadIdx.x] = cell[threadIdx.x ^ 1u];
}
GIDS_REGISTER(probe_exchange)

// Planted misuse of collectives, by number.
__global__ void probe_misuse(int fault, uint32_t* out) {
    if (fault == 1 && threadIdx.x == 5) return;
    if (fault == 2 && threadIdx.x % 2 == 0) __syncwarp();
    if (fault == 2 && threadIdx.x % 2 == 1) __any_sync(0xffffffffu, 1);
    if (fault == 3) out[threadIdx.x] = __shfl_sync(0x0000ffffu << (threadIdx.x & 16u), 1u, 0);
    if (fault == 4 && threadIdx.x == 0)
        while (true) __syncwarp(0x3u);
    __syncthreads();
}
GIDS_REGISTER(probe_misuse)
}
