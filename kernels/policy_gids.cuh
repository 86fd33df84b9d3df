// gids, the paper's two levels (section 3.4): a row that the window will reuse is in USE and stays; any other is safe
// to evict, and the victim is random among those. Where every line is in USE the paper waits; here the row is not
// cached.
#pragma once

#include "policy_random.cuh"

namespace gids {

struct GidsPolicy {
    static constexpr uint32_t kDraws = 65536;
    RandomKey key;
    uint32_t group_end;

    GIDS_DEVICE uint32_t classes() const { return kDraws + 1; }
    // The reuse counter of the paper is above zero exactly while a next use is known.
    GIDS_DEVICE uint32_t resident(SlotState s, int64_t slot) const {
        return s.next != kNever ? 0 : 1 + random_class(key, group_end, slot, kDraws);
    }
    GIDS_DEVICE uint32_t miss(SlotState, int64_t) const { return 0; }
};

}  // namespace gids
