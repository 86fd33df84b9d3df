// A cache for pieces of neighbour lists: sets of eight, a second chance for what was used, any number of threads.
#pragma once

#include <cstddef>
#include <cstdint>

#include "sampling/buffer.hpp"

namespace gids {

class GranuleCache {
public:
    // What one granule costs beside its bytes.
    static constexpr int64_t kOverheadBytes = 9;  // its key, and an eighth of its set's state

    // bytes: the memory of it all; 0 makes a cache that never has anything.
    GranuleCache(int64_t bytes, int64_t granule_bytes);

    int64_t capacity() const { return num_sets_ * kWays; }
    size_t bytes() const { return keys_.capacity_bytes() + data_.capacity_bytes() + states_.capacity_bytes(); }

    void prefetch(int64_t granule) const;
    // Copies the granule to `out` and returns true, where it is there.
    bool find(int64_t granule, std::byte* out);
    void insert(int64_t granule, const std::byte* data);

private:
    static constexpr int64_t kWays = 8;

    struct State {
        uint8_t locked;  // one byte: held for a few copied cache lines, and sets are many
        uint8_t used;    // one bit per way: found since the hand passed
        uint8_t hand;    // the way that is looked at next for a victim
    };
    class Lock;

    int64_t set_of(int64_t granule) const;

    const int64_t granule_bytes_;
    const int64_t num_sets_;
    Array<int64_t> keys_;  // kWays per set; -1 where free
    Array<State> states_;
    Array<std::byte> data_;
};

}  // namespace gids
