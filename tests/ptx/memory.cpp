// Loads, stores and atomics: addresses, alignment, and what is told to the rules, the counters and the race finder.
#include <cstring>

#include "machine.hpp"

namespace ptx {
namespace {

constexpr uint64_t kLowestAddress = 4096;

int host_order(Order order) {
    switch (order) {
        case Order::kAcquire:
            return __ATOMIC_ACQUIRE;
        case Order::kRelease:
            return __ATOMIC_RELEASE;
        case Order::kAcqRel:
            return __ATOMIC_ACQ_REL;
        case Order::kSeqCst:
            return __ATOMIC_SEQ_CST;
        default:
            return __ATOMIC_RELAXED;
    }
}

template <class T>
uint64_t load(const char* at, Order order) {
    const T* from = reinterpret_cast<const T*>(at);
    if (order == Order::kWeak || order == Order::kNonCoherent) return *const_cast<const volatile T*>(from);
    return order == Order::kAcquire ? __atomic_load_n(from, __ATOMIC_ACQUIRE) : __atomic_load_n(from, __ATOMIC_RELAXED);
}

template <class T>
void store(char* at, uint64_t value, Order order) {
    T* to = reinterpret_cast<T*>(at);
    if (order == Order::kWeak) *const_cast<volatile T*>(to) = static_cast<T>(value);
    else if (order == Order::kRelease) __atomic_store_n(to, static_cast<T>(value), __ATOMIC_RELEASE);
    else __atomic_store_n(to, static_cast<T>(value), __ATOMIC_RELAXED);
}

uint64_t load_element(const char* at, const Instruction& i) {
    switch (i.element_bytes) {
        case 1:
            return i.is_signed
                       ? static_cast<uint64_t>(static_cast<int64_t>(static_cast<int8_t>(load<uint8_t>(at, i.order))))
                       : load<uint8_t>(at, i.order);
        case 2:
            return i.is_signed
                       ? static_cast<uint64_t>(static_cast<int64_t>(static_cast<int16_t>(load<uint16_t>(at, i.order))))
                       : load<uint16_t>(at, i.order);
        case 4:
            return i.is_signed
                       ? static_cast<uint64_t>(static_cast<int64_t>(static_cast<int32_t>(load<uint32_t>(at, i.order))))
                       : load<uint32_t>(at, i.order);
        default:
            return load<uint64_t>(at, i.order);
    }
}

void store_element(char* at, uint64_t value, const Instruction& i) {
    switch (i.element_bytes) {
        case 1:
            return store<uint8_t>(at, value, i.order);
        case 2:
            return store<uint16_t>(at, value, i.order);
        case 4:
            return store<uint32_t>(at, value, i.order);
        default:
            return store<uint64_t>(at, value, i.order);
    }
}

template <class T>
T combine(Atomic op, T old, T operand) {
    switch (op) {
        case Atomic::kAdd:
            return static_cast<T>(static_cast<std::make_unsigned_t<T>>(old) +
                                  static_cast<std::make_unsigned_t<T>>(operand));
        case Atomic::kAnd:
            return old & operand;
        case Atomic::kOr:
            return old | operand;
        case Atomic::kXor:
            return old ^ operand;
        case Atomic::kMin:
            return operand < old ? operand : old;
        case Atomic::kMax:
            return old < operand ? operand : old;
        default:
            return operand;
    }
}

// `operand` is what to combine, or for a compare-and-swap what to compare with; `wanted` then takes its place.
template <class T>
uint64_t atomic(char* at, const Instruction& i, uint64_t operand, uint64_t wanted) {
    T* to = reinterpret_cast<T*>(at);
    const int order = host_order(i.order);
    T old = __atomic_load_n(to, __ATOMIC_RELAXED);
    if (i.atomic == Atomic::kCompareSwap) {
        old = static_cast<T>(operand);
        // acq_rel on success is never weaker than what was asked; x86 has no weaker exchange.
        __atomic_compare_exchange_n(to, &old, static_cast<T>(wanted), false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
        return static_cast<uint64_t>(old);
    }
    while (!__atomic_compare_exchange_n(to, &old, combine<T>(i.atomic, old, static_cast<T>(operand)), true,
                                        order == __ATOMIC_RELAXED ? __ATOMIC_RELAXED : __ATOMIC_ACQ_REL,
                                        __ATOMIC_RELAXED)) {
    }
    return static_cast<uint64_t>(old);
}

uint64_t atomic_element(char* at, const Instruction& i, uint64_t operand, uint64_t wanted) {
    if (i.element_bytes == 4)
        return i.is_signed ? atomic<int32_t>(at, i, operand, wanted) : atomic<uint32_t>(at, i, operand, wanted);
    return i.is_signed ? atomic<int64_t>(at, i, operand, wanted) : atomic<uint64_t>(at, i, operand, wanted);
}

}  // namespace

bool Machine::within_reach(const Warp& warp, uint64_t address, uint64_t bytes) {
    const auto within = [&](uint64_t begin, uint64_t end) { return address >= begin && address + bytes <= end; };
    const auto shared = reinterpret_cast<uint64_t>(warp.block->shared.data());
    if (within(shared, shared + entry_.shared_bytes)) return true;
    for (const auto& [begin, end] : entry_.globals)
        if (within(begin, end)) return true;
    for (const auto& [begin, end] : reached_)
        if (within(begin, end)) return true;
    uint64_t begin = 0, end = 0;
    if (options_.reach.find(address, bytes, options_.reach.device, &begin, &end) == 0) return false;
    reached_.emplace_back(begin, end);
    return true;
}

char* Machine::resolve(Warp& warp, const Instruction& i, int lane, uint64_t address) {
    const auto bytes = static_cast<uint64_t>(i.access_bytes());
    if (address % bytes != 0)
        fail(warp, lane, i,
             "address must be a multiple of " + std::to_string(bytes) + " (got " + std::to_string(address) + ")");
    switch (i.space) {
        case Space::kParam:
            if (address + bytes > parameters_.size()) fail(warp, lane, i, "reads behind the parameters");
            return parameters_.data() + address;
        case Space::kShared:
            if (address + bytes > entry_.shared_bytes)
                fail(warp, lane, i,
                     "shared memory has " + std::to_string(entry_.shared_bytes) + " bytes (got address " +
                         std::to_string(address) + ")");
            return warp.block->shared.data() + address;
        case Space::kLocal:
            if (address + bytes > entry_.local_bytes)
                fail(warp, lane, i, "local memory has " + std::to_string(entry_.local_bytes) + " bytes");
            return warp.local.data() + entry_.local_bytes * static_cast<std::size_t>(lane) + address;
        default:
            if (address < kLowestAddress) fail(warp, lane, i, "address " + std::to_string(address) + " is no memory");
            if (options_.reach.find != nullptr && !within_reach(warp, address, bytes))
                fail(warp, lane, i,
                     std::to_string(bytes) + " bytes at address " + std::to_string(address) +
                         " are not all within memory that kernels of device " + std::to_string(options_.reach.device) +
                         " may use now");
            return reinterpret_cast<char*>(address);
    }
}

void Machine::access(Warp& warp, const Instruction& i, uint32_t mask) {
    uint64_t address[kLanes];
    char* memory[kLanes];
    const uint64_t* from = warp.rows.data() + i.sources[0] * kLanes;
    each_lane(mask, [&](int lane) {
        address[lane] = from[lane] + static_cast<uint64_t>(i.offset);
        memory[lane] = resolve(warp, i, lane, address[lane]);
    });
    const bool outside = i.space == Space::kGlobal || i.space == Space::kGeneric;
    if (counters_.enabled()) {
        // Generic addresses may be of the block's shared memory: where one lane's is, all are.
        const auto shared = reinterpret_cast<uint64_t>(warp.block->shared.data());
        bool in_shared = false;
        each_lane(mask, [&](int lane) { in_shared = address[lane] - shared < entry_.shared_bytes; });
        counters_.memory(i, mask, address, regions_, in_shared);
        if (!regions_.empty()) counters_.chain(i, warp.first_lane, mask, address, regions_);
    }
    each_lane(mask, [&](int lane) {
        if (outside && !regions_.empty()) {
            const std::string broken = regions_.check(i, address[lane], fences_[warp.first_lane + lane]);
            if (!broken.empty()) fail(warp, lane, i, broken);
        }
        if (races_ && (outside || i.space == Space::kShared)) {
            const std::string race =
                races_->access(i, warp.first_lane + lane, reinterpret_cast<uint64_t>(memory[lane]));
            if (!race.empty()) fail(warp, lane, i, race);
        }
        const auto value = [&](std::size_t n) { return warp.rows[i.sources[n] * kLanes + lane]; };
        const auto write = [&](std::size_t n, uint64_t v) {
            warp.rows[i.destinations[n] * kLanes + lane] = v & i.destination_masks[n];
        };
        if (i.kind == Kind::kAtomic) {
            const uint64_t old = atomic_element(memory[lane], i, value(1), i.sources.size() > 2 ? value(2) : 0);
            if (!i.destinations.empty()) write(0, old);
            return;
        }
        for (int n = 0; n < i.elements; ++n) {
            char* at = memory[lane] + n * i.element_bytes;
            if (i.kind == Kind::kLoad) write(static_cast<std::size_t>(n), load_element(at, i));
            else store_element(at, value(static_cast<std::size_t>(n) + 1), i);
        }
    });
}

}  // namespace ptx
