// place_rows: one pass over a batch, checked before anything is written out of bounds.
#include "tiers/slots.hpp"

#include <string>

#include "errors.hpp"

namespace gids {

namespace {

[[noreturn]] void refuse(int64_t location, int64_t end) {
    throw ConfigError("location must be in [0, " + std::to_string(end) + ") (got " + std::to_string(location) + ")");
}

}  // namespace

void place_rows(std::span<int64_t> location, int64_t base, std::span<const int32_t> slot) {
    const auto rows = static_cast<int64_t>(slot.size());
    for (int64_t& at : location) {
        if (at < base) continue;
        if (at - base >= rows) refuse(at, base + rows);
        at = base + slot[static_cast<size_t>(at - base)];
    }
}

}  // namespace gids
