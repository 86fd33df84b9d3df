// lru at batch granularity: the row unused for the most batches goes first. Ages past kOldest count as equal.
#pragma once

#include "next_use.cuh"

namespace gids {

struct LruPolicy {
    static constexpr uint32_t kOldest = 65535;
    uint32_t group_end;

    GIDS_DEVICE uint32_t classes() const { return kOldest + 1; }
    GIDS_DEVICE uint32_t resident(SlotState s, int64_t) const { return age(s); }
    GIDS_DEVICE uint32_t miss(SlotState s, int64_t) const { return age(s); }

private:
    GIDS_DEVICE uint32_t age(SlotState s) const {
        const uint32_t batches = group_end - 1 - s.last;
        return batches < kOldest ? batches : kOldest;
    }
};

}  // namespace gids
