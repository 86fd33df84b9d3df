// random: every row read enters, over a slot drawn at random (BaM's eviction). The baseline.
#pragma once

#include "next_use.cuh"
#include "philox.cuh"

namespace gids {

// Uniform over `classes` for one slot and one group: a counter-based draw, so threads and order do not matter.
GIDS_DEVICE uint32_t random_class(RandomKey key, uint32_t group_end, int64_t slot, uint32_t classes) {
    const RandomBlock block = philox(key, static_cast<uint32_t>(slot), static_cast<uint32_t>(slot >> 32), group_end, 0);
    return static_cast<uint32_t>((static_cast<uint64_t>(block.w[0]) * classes) >> 32);
}

struct RandomPolicy {
    static constexpr uint32_t kDraws = 65536;
    RandomKey key;
    uint32_t group_end;

    GIDS_DEVICE uint32_t classes() const { return kDraws + 1; }
    GIDS_DEVICE uint32_t resident(SlotState, int64_t slot) const {
        return 1 + random_class(key, group_end, slot, kDraws);
    }
    GIDS_DEVICE uint32_t miss(SlotState, int64_t) const { return 0; }
};

}  // namespace gids
