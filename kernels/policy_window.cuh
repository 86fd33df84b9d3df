// window(W) and belady: what is needed soonest stays; what the window does not need goes first and need not enter.
#pragma once

#include "next_use.cuh"
#include "use_level.cuh"

namespace gids {

// Rows with no use in the window are ranked by how often they are used.
struct WindowPolicy {
    uint32_t group_end;  // first batch after the group
    uint32_t ahead;      // batches known after the group; belady knows the superbatch

    GIDS_DEVICE uint32_t classes() const { return ahead + kUseLevels; }
    GIDS_DEVICE uint32_t resident(SlotState s, int64_t) const { return rank(s); }
    GIDS_DEVICE uint32_t miss(SlotState s, int64_t) const { return rank(s); }

private:
    GIDS_DEVICE uint32_t rank(SlotState s) const {
        return s.next != kNever ? s.next - group_end : ahead + (kUseLevels - 1 - use_level(s.uses));
    }
};

}  // namespace gids
