// Execution types: the one place that knows whether device code runs as a CPU thread, as a group of CUDA lanes, or
// as a group of emulated lanes (GIDS_SIMT, tests only). Device functions take an execution value first and are
// otherwise the same source everywhere.
#pragma once

#if defined(__CUDACC__) || defined(__CUDACC_RTC__)
#include <cuda/atomic>
#include <cuda/std/cstdint>
#define GIDS_DEVICE __device__ __forceinline__
namespace gids {
using int8_t = cuda::std::int8_t;
using int32_t = cuda::std::int32_t;
using int64_t = cuda::std::int64_t;
using uint8_t = cuda::std::uint8_t;
using uint16_t = cuda::std::uint16_t;
using uint32_t = cuda::std::uint32_t;
using uint64_t = cuda::std::uint64_t;
template <class T>
using atomic_ref = cuda::atomic_ref<T, cuda::thread_scope_device>;
using cuda::std::memory_order_acq_rel;
using cuda::std::memory_order_acquire;
using cuda::std::memory_order_relaxed;
using cuda::std::memory_order_release;
}  // namespace gids
#define GIDS_HAVE_LANES 1
#else
#include <atomic>
#include <cstdint>
#define GIDS_DEVICE inline
namespace gids {
using std::int32_t;
using std::int64_t;
using std::int8_t;
using std::uint16_t;
using std::uint32_t;
using std::uint64_t;
using std::uint8_t;
template <class T>
#ifdef GIDS_SIMT
using atomic_ref = simt::atomic_ref<T>;
#else
using atomic_ref = std::atomic_ref<T>;
#endif
using std::memory_order_acq_rel;
using std::memory_order_acquire;
using std::memory_order_relaxed;
using std::memory_order_release;
}  // namespace gids
#ifdef GIDS_SIMT  // the test harness supplies threadIdx, __shfl_sync, __ballot_sync, __syncwarp, ...
#define GIDS_HAVE_LANES 1
#endif
#endif

// GIDS_ROLLED: before a loop that a CUDA compiler should not unroll; where it moves memory, unrolling only costs
// registers and compile time.
#if defined(__CUDACC__) || defined(__CUDACC_RTC__)
#define GIDS_ROLLED _Pragma("unroll 1")
#else
#define GIDS_ROLLED
#endif

namespace gids {

// One CPU thread is the whole group: votes and shuffles cost nothing.
struct Serial {
    static constexpr int kLanes = 1;
    GIDS_DEVICE int lane() const { return 0; }
    GIDS_DEVICE void sync() const {}
    GIDS_DEVICE bool any(bool vote) const { return vote; }
    GIDS_DEVICE uint32_t ballot(bool vote) const { return vote ? 1u : 0u; }
    template <class T>
    GIDS_DEVICE T shuffle(T value, int) const {
        return value;
    }
};

#ifdef GIDS_HAVE_LANES
// GIDS_SHARED(type, name, count): an array that the lanes of one block share; uninitialised. Emulated blocks run at
// the same time on one CPU thread, so there the array is looked up by the address of a per-site marker.
#ifdef GIDS_SIMT
#define GIDS_SHARED(type, name, count)     \
    static const char name##_site = 0;     \
    type* const name = static_cast<type*>( \
        simt::block_shared(&name##_site, sizeof(type) * static_cast<std::size_t>(count), alignof(type)))
#else
#define GIDS_SHARED(type, name, count) __shared__ type name[count]
#endif

// `Lanes` consecutive lanes of a warp work as one group. All of them must reach every collective call.
template <int Lanes>
struct Group {
    static_assert(Lanes == 1 || Lanes == 2 || Lanes == 4 || Lanes == 8 || Lanes == 16 || Lanes == 32,
                  "a group is a power of two of lanes within one warp");
    static constexpr int kLanes = Lanes;
    GIDS_DEVICE int lane() const { return static_cast<int>(threadIdx.x) & (Lanes - 1); }
    GIDS_DEVICE uint32_t mask() const {
        if constexpr (Lanes == 32) return 0xffffffffu;
        else return ((1u << Lanes) - 1u) << first_lane();
    }
    GIDS_DEVICE void sync() const { __syncwarp(mask()); }
    GIDS_DEVICE bool any(bool vote) const { return __any_sync(mask(), vote) != 0; }
    GIDS_DEVICE uint32_t ballot(bool vote) const { return __ballot_sync(mask(), vote) >> first_lane(); }
    template <class T>
    GIDS_DEVICE T shuffle(T value, int source) const {
        return __shfl_sync(mask(), value, source, Lanes);
    }

private:
    GIDS_DEVICE uint32_t first_lane() const { return threadIdx.x & 31u & ~static_cast<unsigned>(Lanes - 1); }
};
#endif

// memcpy, by the name that each compiler knows.
GIDS_DEVICE void copy_bytes(void* to, const void* from, uint64_t bytes) {
#if defined(__CUDACC__) || defined(__CUDACC_RTC__)
    memcpy(to, from, bytes);
#else
    __builtin_memcpy(to, from, bytes);
#endif
}

// Bits of a word that are set.
GIDS_DEVICE int64_t count_bits64(uint64_t word) {
#if defined(__CUDA_ARCH__)
    return __popcll(word);
#else
    return __builtin_popcountll(word);
#endif
}

// High 64 bits of a product: maps a 64-bit random number onto [0, bound) with a bias below bound / 2^64.
GIDS_DEVICE uint64_t multiply_high(uint64_t a, uint64_t b) {
#if defined(__CUDA_ARCH__)
    return __umul64hi(a, b);
#else
    return static_cast<uint64_t>((static_cast<unsigned __int128>(a) * b) >> 64);
#endif
}

}  // namespace gids
