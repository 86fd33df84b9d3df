// Counting sort of edges by destination: the inner step of building CSC from an edge list.
#pragma once

#include <cstdint>
#include <string>

#include "errors.hpp"

namespace gids {

// Groups `count` keys of [0, num_groups): order[offsets[g]..offsets[g + 1]] are the positions with key g, in input
// order. offsets has num_groups + 1 entries. A key out of range is an error that names its position.
template <class Key>
void group_by_key(const Key* keys, int64_t count, int64_t num_groups, int64_t* offsets, int64_t* order) {
    for (int64_t g = 0; g <= num_groups; ++g) offsets[g] = 0;
    for (int64_t i = 0; i < count; ++i) {
        const int64_t key = static_cast<int64_t>(keys[i]);
        if (key < 0 || key >= num_groups)
            throw ConfigError("key must be in [0, " + std::to_string(num_groups) + ") (got " + std::to_string(key) +
                              " at position " + std::to_string(i) + ")");
        ++offsets[key + 1];
    }
    for (int64_t g = 0; g < num_groups; ++g) offsets[g + 1] += offsets[g];
    // offsets[g] serves as the next free place of group g; afterwards it is the group's end, so shift back by one.
    for (int64_t i = 0; i < count; ++i) order[offsets[keys[i]]++] = i;
    for (int64_t g = num_groups; g > 0; --g) offsets[g] = offsets[g - 1];
    offsets[0] = 0;
}

}  // namespace gids
