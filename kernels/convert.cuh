// Widening of half precision to float32, in integer arithmetic so that CPU and GPU agree to the bit, NaN payloads and
// subnormals included.
#pragma once

#include "exec.cuh"

namespace gids {

enum class Conversion : int32_t { kNone = 0, kFloat16ToFloat32 = 1, kBfloat16ToFloat32 = 2 };

// Bits of the float32 with the same value as this float16.
GIDS_DEVICE uint32_t widen_float16(uint16_t half) {
    const uint32_t sign = static_cast<uint32_t>(half & 0x8000u) << 16;
    const uint32_t exponent = (half >> 10) & 0x1fu;
    uint32_t fraction = half & 0x3ffu;
    if (exponent == 0x1fu) return sign | 0x7f800000u | fraction << 13;
    if (exponent != 0) return sign | (exponent + 112u) << 23 | fraction << 13;
    if (fraction == 0) return sign;
    uint32_t scaled = 113u;
    while ((fraction & 0x400u) == 0) {
        fraction <<= 1;
        --scaled;
    }
    return sign | scaled << 23 | (fraction & 0x3ffu) << 13;
}

GIDS_DEVICE uint32_t widen_bfloat16(uint16_t half) { return static_cast<uint32_t>(half) << 16; }

// Values of one row, spread over the lanes of the group. `from` need not be aligned: rows may begin at any byte.
template <class Exec>
GIDS_DEVICE void widen_row(Exec exec, Conversion conversion, const uint8_t* from, uint32_t* to, int64_t values) {
    for (int64_t i = exec.lane(); i < values; i += Exec::kLanes) {
        const auto half = static_cast<uint16_t>(from[2 * i] | static_cast<uint32_t>(from[2 * i + 1]) << 8);
        to[i] = conversion == Conversion::kFloat16ToFloat32 ? widen_float16(half) : widen_bfloat16(half);
    }
}

}  // namespace gids
