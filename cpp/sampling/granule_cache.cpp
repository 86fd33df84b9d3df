// GranuleCache: one lock and at most eight comparisons per look-up.
#include "sampling/granule_cache.hpp"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <thread>

#include "exec.cuh"
#include "unique.cuh"

namespace gids {

class GranuleCache::Lock {
public:
    explicit Lock(State& state) : flag_(state.locked) {
        // acquire: what the last holder wrote to the set is seen
        while (flag_.exchange(1, std::memory_order_acquire) != 0) std::this_thread::yield();
    }
    ~Lock() { flag_.store(0, std::memory_order_release); }  // release: what was written is seen by the next holder
    Lock(const Lock&) = delete;
    Lock& operator=(const Lock&) = delete;

private:
    std::atomic_ref<uint8_t> flag_;
};

GranuleCache::GranuleCache(int64_t bytes, int64_t granule_bytes)
    : granule_bytes_(granule_bytes),
      num_sets_(bytes / (kWays * (granule_bytes + kOverheadBytes))),
      keys_(num_sets_ * kWays),
      states_(num_sets_),
      data_(num_sets_ * kWays * granule_bytes) {
    std::fill(keys_.begin(), keys_.end(), -1);
    std::fill(states_.begin(), states_.end(), State{0, 0, 0});
}

int64_t GranuleCache::set_of(int64_t granule) const {
    return static_cast<int64_t>(
        multiply_high(hash_node(static_cast<uint64_t>(granule)), static_cast<uint64_t>(num_sets_)));
}

void GranuleCache::prefetch(int64_t granule) const {
    if (num_sets_ > 0) __builtin_prefetch(&keys_[set_of(granule) * kWays]);
}

bool GranuleCache::find(int64_t granule, std::byte* out) {
    if (num_sets_ == 0) return false;
    const int64_t set = set_of(granule);
    const Lock lock(states_[set]);
    for (int64_t way = set * kWays; way < (set + 1) * kWays; ++way) {
        if (keys_[way] != granule) continue;
        states_[set].used |= static_cast<uint8_t>(1u << (way % kWays));
        std::memcpy(out, data_.data() + way * granule_bytes_, static_cast<size_t>(granule_bytes_));
        return true;
    }
    return false;
}

void GranuleCache::insert(int64_t granule, const std::byte* data) {
    if (num_sets_ == 0) return;
    const int64_t set = set_of(granule);
    const Lock lock(states_[set]);
    State& state = states_[set];
    for (int64_t way = set * kWays; way < (set + 1) * kWays; ++way)
        if (keys_[way] == granule) return;
    while (state.used >> state.hand & 1) {
        state.used &= static_cast<uint8_t>(~(1u << state.hand));
        state.hand = static_cast<uint8_t>((state.hand + 1) % kWays);
    }
    const int64_t victim = set * kWays + state.hand;
    state.hand = static_cast<uint8_t>((state.hand + 1) % kWays);
    keys_[victim] = granule;
    std::memcpy(data_.data() + victim * granule_bytes_, data, static_cast<size_t>(granule_bytes_));
}

}  // namespace gids
