// Register-to-register instructions: one handler per opcode, by its full text. Rounding is the hardware's own; the
// build forbids contraction, as NVRTC's --fmad=false does.
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>
#include <unordered_map>

#include "module.hpp"

namespace ptx {
namespace {

template <class T>
T value_of(uint64_t bits) {
    if constexpr (std::is_same_v<T, float>) return std::bit_cast<float>(static_cast<uint32_t>(bits));
    else if constexpr (std::is_same_v<T, double>) return std::bit_cast<double>(bits);
    else return static_cast<T>(bits);
}

template <class T>
uint64_t bits_of(T value) {
    if constexpr (std::is_same_v<T, float>) {
        // A single-precision result that is not a number is this one on every GPU, whatever the operands carried.
        return std::isnan(value) ? 0x7fffffffu : std::bit_cast<uint32_t>(value);
    } else if constexpr (std::is_same_v<T, double>) {
        // In double precision PTX promises no payload: one that no CPU makes, so that nobody relies on it.
        return std::isnan(value) ? 0x7ff8'0000'dead'beefull : std::bit_cast<uint64_t>(value);
    } else return static_cast<uint64_t>(static_cast<int64_t>(value));
}

template <class D, class S, auto F>
void unary(const Instruction& i, uint64_t* rows, uint32_t mask) {
    uint64_t* d = rows + i.destinations[0] * kLanes;
    const uint64_t* a = rows + i.sources[0] * kLanes;
    const uint64_t keep = i.destination_masks[0];
    each_lane(mask, [&](int l) { d[l] = bits_of<D>(F(value_of<S>(a[l]))) & keep; });
}

template <class D, class S, auto F>
void binary(const Instruction& i, uint64_t* rows, uint32_t mask) {
    uint64_t* d = rows + i.destinations[0] * kLanes;
    const uint64_t* a = rows + i.sources[0] * kLanes;
    const uint64_t* b = rows + i.sources[1] * kLanes;
    const uint64_t keep = i.destination_masks[0];
    each_lane(mask, [&](int l) { d[l] = bits_of<D>(F(value_of<S>(a[l]), value_of<S>(b[l]))) & keep; });
}

template <class T, bool Left>
void shift(const Instruction& i, uint64_t* rows, uint32_t mask) {
    constexpr uint64_t kWidth = sizeof(T) * 8;
    uint64_t* d = rows + i.destinations[0] * kLanes;
    const uint64_t* a = rows + i.sources[0] * kLanes;
    const uint64_t* b = rows + i.sources[1] * kLanes;
    const uint64_t keep = i.destination_masks[0];
    each_lane(mask, [&](int l) {
        const uint64_t by = b[l] & 0xffffffffu;  // the amount is 32 bits, and clamped
        const T value = value_of<T>(a[l]);
        T result = 0;
        if (by < kWidth) result = static_cast<T>(Left ? static_cast<T>(value << by) : static_cast<T>(value >> by));
        else if (!Left && value < 0) result = static_cast<T>(-1);
        d[l] = bits_of<T>(result) & keep;
    });
}

// Up to four operands as raw bits.
template <auto F>
void raw(const Instruction& i, uint64_t* rows, uint32_t mask) {
    uint64_t* d = rows + i.destinations[0] * kLanes;
    const uint64_t keep = i.destination_masks[0];
    each_lane(mask, [&](int l) {
        uint64_t operands[4] = {};
        for (std::size_t n = 0; n < i.sources.size(); ++n) operands[n] = rows[i.sources[n] * kLanes + l];
        d[l] = F(operands) & keep;
    });
}

template <class T>
uint64_t insert_bits(const uint64_t* o) {  // bfi: o[0] into o[1] at o[2], o[3] bits
    constexpr unsigned kWidth = sizeof(T) * 8;
    const unsigned at = o[2] & 0xff, count = o[3] & 0xff;
    if (at >= kWidth || count == 0) return o[1];
    const unsigned room = kWidth - at;
    const unsigned used = count < room ? count : room;
    const uint64_t field = (used == 64 ? ~uint64_t{0} : (uint64_t{1} << used) - 1) << at;
    return (o[1] & ~field) | (o[0] << at & field);
}

uint64_t permute_bytes(const uint64_t* o) {  // prmt
    const uint64_t bytes = (o[0] & 0xffffffffu) | o[1] << 32;
    uint64_t out = 0;
    for (int n = 0; n < 4; ++n) {
        const unsigned selector = o[2] >> (4 * n) & 0xf;
        uint64_t byte = bytes >> (8 * (selector & 7)) & 0xff;
        if ((selector & 8) != 0) byte = (byte & 0x80) != 0 ? 0xff : 0;
        out |= byte << (8 * n);
    }
    return out;
}

uint64_t reverse_bits(uint64_t value) {
    uint64_t out = 0;
    for (int n = 0; n < 32; ++n) out |= (value >> n & 1) << (31 - n);
    return out;
}

template <class To, class From>
To truncate(From value) {  // cvt.rzi: saturates; not a number becomes 0
    if (std::isnan(value)) return 0;
    const From whole = std::trunc(value);
    if (whole <= static_cast<From>(std::numeric_limits<To>::min())) return std::numeric_limits<To>::min();
    if (whole >= static_cast<From>(std::numeric_limits<To>::max())) return std::numeric_limits<To>::max();
    return static_cast<To>(whole);
}

template <class T>
T divide(T a, T b) {
    if (b == 0) throw Error("an integer is divided by 0");
    if constexpr (std::is_signed_v<T>)
        if (b == -1) return static_cast<T>(-static_cast<std::make_unsigned_t<T>>(a));
    return a / b;
}

template <class T>
T multiply_low(T a, T b) {
    return static_cast<T>(static_cast<std::make_unsigned_t<T>>(a) * std::make_unsigned_t<T>{1} *
                          static_cast<std::make_unsigned_t<T>>(b));
}

using Table = std::unordered_map<std::string, Compute>;

template <class T>
void integer(Table& table, const std::string& type) {
    using U = std::make_unsigned_t<T>;
    table["add." + type] = binary<T, T, [](T a, T b) { return static_cast<T>(static_cast<U>(a) + static_cast<U>(b)); }>;
    table["sub." + type] = binary<T, T, [](T a, T b) { return static_cast<T>(static_cast<U>(a) - static_cast<U>(b)); }>;
    table["mul.lo." + type] = binary<T, T, multiply_low<T>>;
    table["div." + type] = binary<T, T, divide<T>>;
    table["rem." + type] =
        binary<T, T, [](T a, T b) { return static_cast<T>(a - multiply_low<T>(divide<T>(a, b), b)); }>;
    table["min." + type] = binary<T, T, [](T a, T b) { return a < b ? a : b; }>;
    table["max." + type] = binary<T, T, [](T a, T b) { return a < b ? b : a; }>;
    table["shr." + type] = shift<T, false>;
    table["mad.lo." + type] = raw<[](const uint64_t* o) { return o[0] * o[1] + o[2]; }>;
    if (std::is_signed_v<T>)
        table["neg." + type] = unary<T, T, [](T a) { return static_cast<T>(U{0} - static_cast<U>(a)); }>;
}

template <class T, class Wide>
void widening(Table& table, const std::string& type) {
    table["mul.wide." + type] = binary<Wide, T, [](T a, T b) { return static_cast<Wide>(static_cast<Wide>(a) * b); }>;
}

template <class T>
void compare(Table& table, const std::string& type) {
    table["setp.eq." + type] = binary<uint64_t, T, [](T a, T b) -> uint64_t { return a == b; }>;
    table["setp.ne." + type] = binary<uint64_t, T, [](T a, T b) -> uint64_t { return a < b || b < a; }>;
    if (type[0] == 'b') return;
    table["setp.lt." + type] = binary<uint64_t, T, [](T a, T b) -> uint64_t { return a < b; }>;
    table["setp.le." + type] = binary<uint64_t, T, [](T a, T b) -> uint64_t { return a <= b; }>;
    table["setp.gt." + type] = binary<uint64_t, T, [](T a, T b) -> uint64_t { return (a > b); }>;
    table["setp.ge." + type] = binary<uint64_t, T, [](T a, T b) -> uint64_t { return (a >= b); }>;
}

template <class T>
void floating(Table& table, const std::string& type) {
    compare<T>(table, type);
    // The unordered forms hold when an operand is not a number.
    table["setp.equ." + type] = binary<uint64_t, T, [](T a, T b) -> uint64_t { return !(a < b || a > b); }>;
    table["setp.neu." + type] = binary<uint64_t, T, [](T a, T b) -> uint64_t { return !(a == b); }>;
    table["setp.ltu." + type] = binary<uint64_t, T, [](T a, T b) -> uint64_t { return !(a >= b); }>;
    table["setp.leu." + type] = binary<uint64_t, T, [](T a, T b) -> uint64_t { return !(a > b); }>;
    table["setp.gtu." + type] = binary<uint64_t, T, [](T a, T b) -> uint64_t { return !(a <= b); }>;
    table["setp.geu." + type] = binary<uint64_t, T, [](T a, T b) -> uint64_t { return !(a < b); }>;
    // Only the forms that say how they round: without ".rn" ptxas may contract them.
    table["add.rn." + type] = binary<T, T, [](T a, T b) { return a + b; }>;
    table["sub.rn." + type] = binary<T, T, [](T a, T b) { return a - b; }>;
    table["mul.rn." + type] = binary<T, T, [](T a, T b) { return a * b; }>;
    table["div.rn." + type] = binary<T, T, [](T a, T b) { return a / b; }>;
    table["fma.rn." + type] = raw<[](const uint64_t* o) {
        return bits_of<T>(std::fma(value_of<T>(o[0]), value_of<T>(o[1]), value_of<T>(o[2])));
    }>;
    table["min." + type] = binary<T, T, [](T a, T b) { return std::fmin(a, b); }>;
    table["max." + type] = binary<T, T, [](T a, T b) { return std::fmax(a, b); }>;
    table["neg." + type] = unary<T, T, [](T a) { return -a; }>;
    table["abs." + type] = unary<T, T, [](T a) { return std::fabs(a); }>;
}

template <class From>
void convert_from(Table& table, const std::string& from) {
    const auto integers = [&]<class To>(To, const std::string& to) {
        table["cvt." + to + "." + from] = unary<To, From, [](From a) { return static_cast<To>(a); }>;
    };
    integers(uint8_t{}, "u8"), integers(int8_t{}, "s8"), integers(uint16_t{}, "u16"), integers(int16_t{}, "s16");
    integers(uint32_t{}, "u32"), integers(int32_t{}, "s32"), integers(uint64_t{}, "u64"), integers(int64_t{}, "s64");
    table["cvt.rn.f32." + from] = unary<float, From, [](From a) { return static_cast<float>(a); }>;
    table["cvt.rn.f64." + from] = unary<double, From, [](From a) { return static_cast<double>(a); }>;
}

template <class From>
void convert_float(Table& table, const std::string& from) {
    table["cvt.rzi.u32." + from] = unary<uint32_t, From, truncate<uint32_t, From>>;
    table["cvt.rzi.s32." + from] = unary<int32_t, From, truncate<int32_t, From>>;
    table["cvt.rzi.u64." + from] = unary<uint64_t, From, truncate<uint64_t, From>>;
    table["cvt.rzi.s64." + from] = unary<int64_t, From, truncate<int64_t, From>>;
}

Table make_table() {
    Table table;
    integer<int16_t>(table, "s16"), integer<uint16_t>(table, "u16"), integer<int32_t>(table, "s32");
    integer<uint32_t>(table, "u32"), integer<int64_t>(table, "s64"), integer<uint64_t>(table, "u64");
    widening<int16_t, int32_t>(table, "s16"), widening<uint16_t, uint32_t>(table, "u16");
    widening<int32_t, int64_t>(table, "s32"), widening<uint32_t, uint64_t>(table, "u32");
    table["mul.hi.s32"] =
        binary<int32_t, int32_t, [](int32_t a, int32_t b) { return static_cast<int32_t>(int64_t{a} * b >> 32); }>;
    table["mul.hi.u32"] =
        binary<uint32_t, uint32_t, [](uint32_t a, uint32_t b) { return static_cast<uint32_t>(uint64_t{a} * b >> 32); }>;
    table["mul.hi.s64"] = binary<int64_t, int64_t, [](int64_t a, int64_t b) {
        return static_cast<int64_t>(static_cast<__int128>(a) * b >> 64);
    }>;
    table["mul.hi.u64"] = binary<uint64_t, uint64_t, [](uint64_t a, uint64_t b) {
        return static_cast<uint64_t>(static_cast<unsigned __int128>(a) * b >> 64);
    }>;
    compare<int16_t>(table, "s16"), compare<uint16_t>(table, "u16"), compare<int32_t>(table, "s32");
    compare<uint32_t>(table, "u32"), compare<int64_t>(table, "s64"), compare<uint64_t>(table, "u64");
    compare<uint16_t>(table, "b16"), compare<uint32_t>(table, "b32"), compare<uint64_t>(table, "b64");
    floating<float>(table, "f32"), floating<double>(table, "f64");
    for (const char* type : {"b16", "b32", "b64", "pred"}) {
        const std::string t = type;
        table["and." + t] = raw<[](const uint64_t* o) { return o[0] & o[1]; }>;
        table["or." + t] = raw<[](const uint64_t* o) { return o[0] | o[1]; }>;
        table["xor." + t] = raw<[](const uint64_t* o) { return o[0] ^ o[1]; }>;
        table["not." + t] = raw<[](const uint64_t* o) { return ~o[0]; }>;
    }
    table["shl.b16"] = shift<uint16_t, true>, table["shl.b32"] = shift<uint32_t, true>;
    table["shl.b64"] = shift<uint64_t, true>;
    table["bfi.b32"] = raw<insert_bits<uint32_t>>, table["bfi.b64"] = raw<insert_bits<uint64_t>>;
    table["prmt.b32"] = raw<permute_bytes>;
    table["brev.b32"] = raw<[](const uint64_t* o) { return reverse_bits(o[0]); }>;
    table["clz.b32"] = unary<uint32_t, uint32_t, [](uint32_t a) { return static_cast<uint32_t>(std::countl_zero(a)); }>;
    table["clz.b64"] = unary<uint32_t, uint64_t, [](uint64_t a) { return static_cast<uint32_t>(std::countl_zero(a)); }>;
    table["popc.b32"] = unary<uint32_t, uint32_t, [](uint32_t a) { return static_cast<uint32_t>(std::popcount(a)); }>;
    table["popc.b64"] = unary<uint32_t, uint64_t, [](uint64_t a) { return static_cast<uint32_t>(std::popcount(a)); }>;
    // The shift that brings the highest set bit to the top; all ones when there is none.
    table["bfind.shiftamt.u32"] =
        unary<uint32_t, uint32_t, [](uint32_t a) { return a == 0 ? ~0u : static_cast<uint32_t>(std::countl_zero(a)); }>;
    for (const char* type : {"pred", "b16", "u16", "s16", "b32", "u32", "s32", "f32", "b64", "u64", "s64", "f64"}) {
        table[std::string("mov.") + type] = raw<[](const uint64_t* o) { return o[0]; }>;
        table[std::string("selp.") + type] = raw<[](const uint64_t* o) { return o[2] != 0 ? o[0] : o[1]; }>;
    }
    convert_from<uint8_t>(table, "u8"), convert_from<int8_t>(table, "s8"), convert_from<uint16_t>(table, "u16");
    convert_from<int16_t>(table, "s16"), convert_from<uint32_t>(table, "u32"), convert_from<int32_t>(table, "s32");
    convert_from<uint64_t>(table, "u64"), convert_from<int64_t>(table, "s64");
    convert_float<float>(table, "f32"), convert_float<double>(table, "f64");
    table["cvt.f64.f32"] = unary<double, float, [](float a) { return static_cast<double>(a); }>;
    table["cvt.rn.f32.f64"] = unary<float, double, [](double a) { return static_cast<float>(a); }>;
    // Generic addresses of global memory are the addresses themselves.
    table["cvta.global.u64"] = table["cvta.to.global.u64"] = table["mov.u64"];
    return table;
}

}  // namespace

Compute find_compute(const std::string& opcode) {
    static const Table table = make_table();
    const auto found = table.find(opcode);
    return found == table.end() ? nullptr : found->second;
}

Compute pack_compute(int parts) {
    return parts != 2 ? nullptr : raw<[](const uint64_t* o) { return (o[0] & 0xffffffffu) | o[1] << 32; }>;
}

Compute unpack_compute(int parts) {
    return parts != 2 ? nullptr : +[](const Instruction& i, uint64_t* rows, uint32_t mask) {
        each_lane(mask, [&](int l) {
            const uint64_t from = rows[i.sources[0] * kLanes + l];
            rows[i.destinations[0] * kLanes + l] = from & i.destination_masks[0];
            rows[i.destinations[1] * kLanes + l] = from >> 32;
        });
    };
}

}  // namespace ptx
