// Force-included before device code when it is built for the CPU lane by lane (-DGIDS_SIMT): gives g++ the CUDA
// keywords and builtins that kernels/ uses. Lanes are fibers that switch at every atomic and collective, by seed.
#pragma once

#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)

struct uint3 {
    unsigned x, y, z;
};
struct dim3 {
    unsigned x = 1, y = 1, z = 1;
};

namespace simt {

enum class Collective : int { kSync, kBallot, kShuffle, kMatch };

struct LaneId {
    uint3 thread, block;
    dim3 block_size, grid_size;
};

const LaneId& self();
void yield();          // a point where another lane may run
bool spurious();       // should this weak compare-exchange fail for no reason?
void block_barrier();  // __syncthreads
uint64_t block_count(bool vote);
// Rendezvous of the lanes in mask. Returns: kSync 0; kBallot the votes; kShuffle the value of lane `source`.
uint64_t warp_collective(Collective kind, uint32_t mask, uint64_t value, int source);
void* block_shared(const void* site, std::size_t bytes, std::size_t alignment);
// What an atomic load sees, and what an atomic store or exchange leaves, under weak memory (weak.hpp). is_weak() false,
// as under ThreadSanitizer: every load sees the latest store.
bool is_weak();
uint64_t weak_load(const void* at, uint64_t newest, std::memory_order order);
void weak_store(const void* at, uint64_t old, uint64_t value, std::memory_order order);
void weak_update(const void* at, uint64_t old, uint64_t value, std::memory_order order);

using Thunk = void (*)(void** arguments);
struct Registration {
    Registration(const char* name, Thunk thunk, const std::size_t* sizes, const bool* pointers, int count);
};

template <class... Arguments, std::size_t... I>
void call(void (*kernel)(Arguments...), void** arguments, std::index_sequence<I...>) {
    kernel(*static_cast<std::remove_reference_t<Arguments>*>(arguments[I])...);
}
template <class... Arguments>
void unpack(void (*kernel)(Arguments...), void** arguments) {
    call(kernel, arguments, std::index_sequence_for<Arguments...>{});
}
template <auto Kernel>
void thunk(void** arguments) {
    unpack(Kernel, arguments);
}
template <class... Arguments>
struct Sizes {
    static constexpr std::size_t kValues[sizeof...(Arguments) + 1] = {sizeof(Arguments)..., 0};
    static constexpr bool kPointers[sizeof...(Arguments) + 1] = {std::is_pointer_v<Arguments>..., false};
};
template <class... Arguments>
Registration registration(const char* name, Thunk thunk, void (*)(Arguments...)) {
    using Of = Sizes<Arguments...>;
    return Registration(name, thunk, Of::kValues, Of::kPointers, sizeof...(Arguments));
}

// std::atomic_ref with a chance for other lanes to run before each operation, and weak memory if it is on.
template <class T>
class atomic_ref {
public:
    explicit atomic_ref(T& value) : ref_(value), address_(&value) {}
    T load(std::memory_order order = std::memory_order_seq_cst) const {
        yield();
        const T newest = ref_.load(order);
        return is_weak() ? value_of(weak_load(address_, bits_of(newest), order)) : newest;
    }
    void store(T value, std::memory_order order = std::memory_order_seq_cst) const {
        yield();
        if (!is_weak()) return ref_.store(value, order);
        weak_store(address_, bits_of(ref_.exchange(value, order)), bits_of(value), order);
    }
    T exchange(T value, std::memory_order order = std::memory_order_seq_cst) const {
        return update(
            order, [&] { return ref_.exchange(value, order); }, [&](T) { return value; });
    }
    T fetch_add(T value, std::memory_order order = std::memory_order_seq_cst) const {
        return update(
            order, [&] { return ref_.fetch_add(value, order); }, [&](T old) { return old + value; });
    }
    T fetch_sub(T value, std::memory_order order = std::memory_order_seq_cst) const {
        return update(
            order, [&] { return ref_.fetch_sub(value, order); }, [&](T old) { return old - value; });
    }
    T fetch_or(T value, std::memory_order order = std::memory_order_seq_cst) const {
        return update(
            order, [&] { return ref_.fetch_or(value, order); }, [&](T old) { return old | value; });
    }
    T fetch_and(T value, std::memory_order order = std::memory_order_seq_cst) const {
        return update(
            order, [&] { return ref_.fetch_and(value, order); }, [&](T old) { return old & value; });
    }
    T fetch_min(T value, std::memory_order order = std::memory_order_seq_cst) const {
        return choose(order, [&](T seen) { return value < seen ? value : seen; });
    }
    T fetch_max(T value, std::memory_order order = std::memory_order_seq_cst) const {
        return choose(order, [&](T seen) { return seen < value ? value : seen; });
    }
    bool compare_exchange_strong(T& expected, T value, std::memory_order success, std::memory_order failure) const {
        yield();
        const bool done = ref_.compare_exchange_strong(expected, value, success, failure);
        if (is_weak()) {
            if (done) weak_update(address_, bits_of(expected), bits_of(value), success);
            else weak_update(address_, bits_of(expected), bits_of(expected), failure);
        }
        return done;
    }
    bool compare_exchange_strong(T& expected, T value, std::memory_order order = std::memory_order_seq_cst) const {
        return compare_exchange_strong(expected, value, order, failure_of(order));
    }
    bool compare_exchange_weak(T& expected, T value, std::memory_order success, std::memory_order failure) const {
        if (spurious()) return expected = load(failure), false;
        return compare_exchange_strong(expected, value, success, failure);
    }
    bool compare_exchange_weak(T& expected, T value, std::memory_order order = std::memory_order_seq_cst) const {
        return compare_exchange_weak(expected, value, order, failure_of(order));
    }

private:
    static constexpr std::memory_order failure_of(std::memory_order order) {
        return order == std::memory_order_acq_rel   ? std::memory_order_acquire
               : order == std::memory_order_release ? std::memory_order_relaxed
                                                    : order;
    }
    static uint64_t bits_of(T value) {
        uint64_t bits = 0;
        std::memcpy(&bits, &value, sizeof(T));
        return bits;
    }
    static T value_of(uint64_t bits) {
        T value;
        std::memcpy(&value, &bits, sizeof(T));
        return value;
    }
    template <class Act, class Result>
    T update(std::memory_order order, Act act, Result result) const {
        yield();
        const T old = act();
        if (is_weak()) weak_update(address_, bits_of(old), bits_of(static_cast<T>(result(old))), order);
        return old;
    }
    template <class Result>
    T choose(std::memory_order order, Result result) const {
        return update(
            order,
            [&] {
                T seen = ref_.load(std::memory_order_relaxed);
                while (!ref_.compare_exchange_weak(seen, result(seen), order, std::memory_order_relaxed)) {
                }
                return seen;
            },
            result);
    }
    std::atomic_ref<T> ref_;
    T* address_;
};

template <class T>
T shuffle(uint32_t mask, T value, int source) {
    static_assert(sizeof(T) <= 8 && std::is_trivially_copyable_v<T>);
    uint64_t bits = 0;
    std::memcpy(&bits, &value, sizeof(T));
    bits = warp_collective(Collective::kShuffle, mask, bits, source);
    std::memcpy(&value, &bits, sizeof(T));
    return value;
}

inline int lane_id() {
    const LaneId& id = self();
    return static_cast<int>((id.thread.x + id.block_size.x * (id.thread.y + id.block_size.y * id.thread.z)) & 31u);
}

}  // namespace simt

#define threadIdx (simt::self().thread)
#define blockIdx (simt::self().block)
#define blockDim (simt::self().block_size)
#define gridDim (simt::self().grid_size)
#define warpSize 32

inline void __syncthreads() { simt::block_barrier(); }
inline int __syncthreads_count(int vote) { return static_cast<int>(simt::block_count(vote != 0)); }
inline int __syncthreads_or(int vote) { return simt::block_count(vote != 0) != 0; }
inline void __syncwarp(uint32_t mask = 0xffffffffu) { simt::warp_collective(simt::Collective::kSync, mask, 0, 0); }
inline uint32_t __ballot_sync(uint32_t mask, int vote) {
    return static_cast<uint32_t>(simt::warp_collective(simt::Collective::kBallot, mask, vote != 0, 0));
}
inline int __any_sync(uint32_t mask, int vote) { return __ballot_sync(mask, vote) != 0; }
inline int __all_sync(uint32_t mask, int vote) { return __ballot_sync(mask, vote) == mask; }
template <class T>
uint32_t __match_any_sync(uint32_t mask, T value) {
    static_assert(sizeof(T) <= 8);
    uint64_t bits = 0;
    std::memcpy(&bits, &value, sizeof(T));
    return static_cast<uint32_t>(simt::warp_collective(simt::Collective::kMatch, mask, bits, 0));
}
template <class T>
T __shfl_sync(uint32_t mask, T value, int source, int width = 32) {
    const int lane = simt::lane_id();
    return simt::shuffle(mask, value, (lane & ~(width - 1)) | (source & (width - 1)));
}
template <class T>
T __shfl_xor_sync(uint32_t mask, T value, int bits, int width = 32) {
    const int lane = simt::lane_id();
    const int source = lane ^ bits;
    return simt::shuffle(mask, value, source < ((lane & ~(width - 1)) + width) ? source : lane);
}
template <class T>
T __shfl_up_sync(uint32_t mask, T value, unsigned delta, int width = 32) {
    const int lane = simt::lane_id();
    const int source = lane - static_cast<int>(delta);
    return simt::shuffle(mask, value, source >= (lane & ~(width - 1)) ? source : lane);
}
template <class T>
T __shfl_down_sync(uint32_t mask, T value, unsigned delta, int width = 32) {
    const int lane = simt::lane_id();
    const int source = lane + static_cast<int>(delta);
    return simt::shuffle(mask, value, source < ((lane & ~(width - 1)) + width) ? source : lane);
}
inline int __popc(unsigned value) { return std::popcount(value); }
inline int __popcll(unsigned long long value) { return std::popcount(value); }
inline int __ffs(int value) { return __builtin_ffs(value); }
inline int __ffsll(long long value) { return __builtin_ffsll(value); }
inline int __clz(int value) { return std::countl_zero(static_cast<unsigned>(value)); }
inline int __clzll(long long value) { return std::countl_zero(static_cast<unsigned long long>(value)); }

// Relaxed, as CUDA's own.
template <class T>
T atomicAdd(T* address, std::type_identity_t<T> value) {
    return simt::atomic_ref<T>(*address).fetch_add(value, std::memory_order_relaxed);
}
template <class T>
T atomicMax(T* address, std::type_identity_t<T> value) {
    return simt::atomic_ref<T>(*address).fetch_max(value, std::memory_order_relaxed);
}
template <class T>
T atomicMin(T* address, std::type_identity_t<T> value) {
    return simt::atomic_ref<T>(*address).fetch_min(value, std::memory_order_relaxed);
}
template <class T>
T atomicExch(T* address, std::type_identity_t<T> value) {
    return simt::atomic_ref<T>(*address).exchange(value, std::memory_order_relaxed);
}
template <class T>
T atomicCAS(T* address, std::type_identity_t<T> expected, std::type_identity_t<T> value) {
    simt::atomic_ref<T>(*address).compare_exchange_strong(expected, value, std::memory_order_relaxed);
    return expected;
}
