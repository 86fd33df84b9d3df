// Edges whose sources have small variates, found and ordered side by side: LABOR's time goes into looking at whole
// lists.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "labor.cuh"

namespace gids {

// Variates that are small and where they stand in the list, in the order of the list.
struct Shortlist {
    static constexpr int64_t kRoom = 128;  // beyond this, it is no shortlist
    static constexpr int64_t kLanes = 64;  // the most that are added at once

    std::array<uint32_t, kRoom + kLanes> bits;
    std::array<uint32_t, kRoom + kLanes> index;
    int64_t size = 0;

    bool full() const { return size > kRoom; }
};

// One way to do it; all give the same.
struct ShortlistWay {
    std::string name;
    // Adds those of `count` sources, named below 2^32, whose variate is at most `limit`; the first of them stands at
    // `begin` in its list. Ends early where there are too many.
    void (*collect)(const LaborKey& key, const uint32_t* names, int64_t count, int64_t begin, uint32_t limit,
                    Shortlist& found);
    // Writes first + index of the `count` smallest, in order; equal ones in the order of the list. found.size >= count,
    // and `found` is not full.
    void (*order)(const Shortlist& found, int64_t count, int64_t first, int64_t* out);
};

// The ways that this processor has, the fastest first.
const std::vector<ShortlistWay>& shortlist_ways();

}  // namespace gids
