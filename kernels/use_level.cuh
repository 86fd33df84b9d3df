// How often a row is used, in levels: 4 to a doubling, 0 is never. Counted while it is cached, or known beforehand.
#pragma once

#include "exec.cuh"

namespace gids {

constexpr uint32_t kUseLevels = 128;

GIDS_DEVICE uint32_t use_level(uint32_t uses) {
    if (uses < 4) return uses;
    uint32_t top = 31;
    while (!(uses >> top)) --top;
    return 4 * (top - 1) + ((uses >> (top - 2)) & 3u);
}

// The least uses of a level; levels past the last that 32 bits reach count as that.
GIDS_DEVICE uint32_t uses_at_level(uint32_t level) {
    if (level < 4) return level;
    const uint32_t top = level / 4 + 1;
    return top > 31 ? 0xffffffffu : (4 + level % 4) << (top - 2);
}

}  // namespace gids
