// Rows of several groups in one memory: when each row was used for the last time, and where it lies.
#pragma once

#include <cstdint>
#include <span>

namespace gids {

// For every location at or past `base`, last_use[location - base] = batch.
void note_last_use(std::span<const int64_t> location, int64_t base, int16_t batch, std::span<int16_t> last_use);

// Every location at or past `base` becomes base + slot[location - base].
void place_rows(std::span<int64_t> location, int64_t base, std::span<const int32_t> slot);

}  // namespace gids
