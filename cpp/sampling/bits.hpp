// Integers of any width from 0 to 57 bits in a byte array: one unaligned load each.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>

namespace gids {

// Bytes behind the last value that a load may touch.
constexpr int64_t kBitsPadding = 8;

inline uint64_t load_bits(const uint8_t* bytes, uint64_t bit, int width) {
    uint64_t word;
    std::memcpy(&word, bytes + (bit >> 3), sizeof(word));
    return word >> (bit & 7) & ((uint64_t{1} << width) - 1);
}

// The bits at that place must be 0.
inline void store_bits(uint8_t* bytes, uint64_t bit, uint64_t value) {
    uint64_t word;
    std::memcpy(&word, bytes + (bit >> 3), sizeof(word));
    word |= value << (bit & 7);
    std::memcpy(bytes + (bit >> 3), &word, sizeof(word));
}

inline int bits_for(uint64_t largest) { return std::bit_width(largest); }

}  // namespace gids
