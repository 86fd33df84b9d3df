// Fused gather: out[i] = address_space[location[i]], converted to the type that the model wants on the way.
#pragma once

#include "exec.cuh"

namespace gids {

// [0, C) cache slots, [C, C + H) host buffer, [C + H, C + H + G) rows read for this group. Rows are packed.
struct AddressSpace {
    const uint8_t* cache;
    const uint8_t* host;
    const uint8_t* group;
    int64_t capacity;
    int64_t host_rows;
    int64_t group_rows;
    int64_t row_bytes;

    GIDS_DEVICE bool holds(int64_t location) const {
        return location >= 0 && location < capacity + host_rows + group_rows;
    }
    GIDS_DEVICE const uint8_t* row(int64_t location) const {
        if (location < capacity) return cache + location * row_bytes;
        location -= capacity;
        if (location < host_rows) return host + location * row_bytes;
        return group + (location - host_rows) * row_bytes;
    }
};

// Storage types of 16-bit floats; arithmetic on them is done in float.
struct Float16 {
    uint16_t bits;
};
struct BFloat16 {
    uint16_t bits;
};

GIDS_DEVICE float float_of_bits(uint32_t bits) {
    float value;
    copy_bytes(&value, &bits, sizeof value);
    return value;
}
GIDS_DEVICE uint32_t bits_of_float(float value) {
    uint32_t bits;
    copy_bytes(&bits, &value, sizeof bits);
    return bits;
}

GIDS_DEVICE float load_value(BFloat16 value) { return float_of_bits(static_cast<uint32_t>(value.bits) << 16); }
GIDS_DEVICE float load_value(Float16 value) {
    const uint32_t sign = static_cast<uint32_t>(value.bits & 0x8000u) << 16;
    const uint32_t rest = value.bits & 0x7fffu;
    if (rest >= 0x7c00u) return float_of_bits(sign | 0x7f800000u | (rest & 0x3ffu) << 13);  // infinity and NaN
    // A multiplication by 2^112 moves the exponent's bias from 15 to 127, and normalises subnormals, without rounding.
    return float_of_bits(bits_of_float(float_of_bits(rest << 13) * float_of_bits(0x77800000u)) | sign);
}
template <class T>
GIDS_DEVICE T load_value(T value) {
    return value;
}

// Round to nearest, ties to even, as torch does.
GIDS_DEVICE void store_value(BFloat16& out, float value) {
    const uint32_t bits = bits_of_float(value);
    const bool is_nan = (bits & 0x7fffffffu) > 0x7f800000u;
    out.bits = is_nan ? 0x7fc0u : static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}
GIDS_DEVICE void store_value(Float16& out, float value) {
    const uint32_t bits = bits_of_float(value);
    const uint32_t sign = (bits >> 16) & 0x8000u;
    const uint32_t rest = bits & 0x7fffffffu;
    uint32_t half;
    if (rest > 0x7f800000u) half = 0x7e00u;        // NaN
    else if (rest >= 0x47800000u) half = 0x7c00u;  // 2^16 and above: infinity
    else if (rest < 0x38800000u)                   // subnormal: the adder rounds it
        half = bits_of_float(float_of_bits(rest) + 0.5f) - 0x3f000000u;
    else half = (rest - 0x38000000u + 0xfffu + ((rest >> 13) & 1u)) >> 13;  // may carry into infinity
    out.bits = static_cast<uint16_t>(sign | half);
}
GIDS_DEVICE void store_value(float& out, float value) { out = value; }
GIDS_DEVICE void store_value(double& out, double value) { out = value; }

// Conversions between float and double. NaN goes by its bits: a CPU keeps sign and payload, a GPU's instruction gives
// the same NaN for every one.
template <class T>
GIDS_DEVICE float to_float(T value) {
    return static_cast<float>(value);
}
GIDS_DEVICE float to_float(double value) {
    uint64_t bits;
    copy_bytes(&bits, &value, sizeof bits);
    const auto high = static_cast<uint32_t>(bits >> 32);
    if ((bits & ~(1ull << 63)) <= 0x7ffull << 52) return static_cast<float>(value);
    return float_of_bits((high & 0x80000000u) | 0x7fc00000u | (static_cast<uint32_t>(bits >> 29) & 0x3fffffu));
}
template <class T>
GIDS_DEVICE double to_double(T value) {
    return static_cast<double>(value);
}
GIDS_DEVICE double to_double(float value) {
    const uint64_t bits = bits_of_float(value);
    if ((bits & 0x7fffffffu) <= 0x7f800000u) return static_cast<double>(value);
    const uint64_t wide = (bits & 0x80000000u) << 32 | 0x7ff8ull << 48 | (bits & 0x3fffffu) << 29;
    double out;
    copy_bytes(&out, &wide, sizeof out);
    return out;
}

template <class To, class From, class Exec>
GIDS_DEVICE void convert_row(const Exec& exec, To* out, const From* in, int64_t dim) {
    GIDS_ROLLED for (int64_t k = exec.lane(); k < dim; k += Exec::kLanes) {
        if constexpr (sizeof(To) == 8) store_value(out[k], to_double(load_value(in[k])));
        else store_value(out[k], to_float(load_value(in[k])));
    }
}

struct alignas(16) Words16 {
    uint64_t first, second;
};

template <class Word, class Exec>
GIDS_DEVICE void copy_words(const Exec& exec, uint8_t* out, const uint8_t* in, int64_t bytes) {
    GIDS_ROLLED for (int64_t k = exec.lane(); k < bytes / static_cast<int64_t>(sizeof(Word));
                     k += Exec::kLanes) reinterpret_cast<Word*>(out)[k] = reinterpret_cast<const Word*>(in)[k];
}

// Copies a row in the widest words that its address and length allow: 16 bytes a lane are the most that a GPU moves at
// once, and what its memory needs to run at speed.
template <class Exec>
GIDS_DEVICE void copy_row(const Exec& exec, uint8_t* out, const uint8_t* in, int64_t bytes) {
    if constexpr (Exec::kLanes == 1) {
        copy_bytes(out, in, static_cast<uint64_t>(bytes));
    } else {
        const uint64_t shape =
            reinterpret_cast<uint64_t>(out) | reinterpret_cast<uint64_t>(in) | static_cast<uint64_t>(bytes);
        if (shape % 16 == 0) copy_words<Words16>(exec, out, in, bytes);
        else if (shape % 8 == 0) copy_words<uint64_t>(exec, out, in, bytes);
        else if (shape % 4 == 0) copy_words<uint32_t>(exec, out, in, bytes);
        else copy_words<uint8_t>(exec, out, in, bytes);
    }
}

}  // namespace gids
