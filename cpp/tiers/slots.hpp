// Rows of several groups in one memory: from the place in a group to the place in memory.
#pragma once

#include <cstdint>
#include <span>

namespace gids {

// Every location at or past `base` becomes base + slot[location - base].
void place_rows(std::span<int64_t> location, int64_t base, std::span<const int32_t> slot);

}  // namespace gids
