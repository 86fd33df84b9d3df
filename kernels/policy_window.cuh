// window(W) and belady: what is needed soonest stays; what the window does not need goes first and need not enter.
#pragma once

#include "next_use.cuh"

namespace gids {

struct WindowPolicy {
    uint32_t group_end;  // first batch after the group
    uint32_t ahead;      // batches known after the group; belady knows the superbatch

    GIDS_DEVICE uint32_t classes() const { return ahead + 1; }
    GIDS_DEVICE uint32_t resident(SlotState s, int64_t) const { return distance(s); }
    GIDS_DEVICE uint32_t miss(SlotState s, int64_t) const { return distance(s); }

private:
    GIDS_DEVICE uint32_t distance(SlotState s) const { return s.next == kNever ? ahead : s.next - group_end; }
};

}  // namespace gids
