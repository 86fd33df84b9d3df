// The queue and hand of the sieve policy.
#pragma once

#include <cstdint>
#include <vector>

#include "policy_sieve.cuh"
#include "thread_pool.hpp"

namespace gids {

class SieveQueue {
public:
    void clear();

    // Removes and returns `wanted` slots (at most as many as there are), in the order in which the hand takes them.
    std::vector<int64_t> evict(ThreadPool& pool, std::vector<SlotState>& slots, int64_t wanted);
    // Slots join at the newest end, in order.
    void append(const std::vector<int64_t>& slots);

    int64_t size() const { return static_cast<int64_t>(queue_.size()); }
    int64_t bytes() const { return static_cast<int64_t>(queue_.capacity() * sizeof(int64_t)); }

private:
    std::vector<int64_t> queue_;  // slots, oldest first
    int64_t hand_ = 0;            // 0 <= hand_ < queue_.size(), or 0
};

}  // namespace gids
