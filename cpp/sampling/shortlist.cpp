// The three ways: plain, in vectors of eight (AVX2) and of sixteen (AVX-512).
#include "sampling/shortlist.hpp"

#ifdef __x86_64__
#include <immintrin.h>
#endif

#include <algorithm>
#include <bit>

namespace gids {
namespace {

// What of a long list is below the limit is rare, and it pays to look whether there is any; in a short one it is not,
// and a branch that cannot be foreseen costs more than storing for nothing.
constexpr int64_t kLongList = 4096;

uint32_t plain_bits(const LaborKey& key, uint32_t name) {
    const bool moved = key.threshold != 0 && labor_mix(key.phase, name) < key.threshold;
    return labor_mix(moved ? key.next : key.now, name);
}

void collect_plain(const LaborKey& key, const uint32_t* names, int64_t count, int64_t begin, uint32_t limit,
                   Shortlist& found) {
    for (int64_t i = 0; i < count && !found.full(); ++i) {
        const uint32_t bits = plain_bits(key, names[i]);
        const auto at = static_cast<size_t>(found.size);
        found.bits[at] = bits;
        found.index[at] = static_cast<uint32_t>(begin + i);
        found.size += bits <= limit;
    }
}

void order_plain(const Shortlist& found, int64_t count, int64_t first, int64_t* out) {
    std::array<uint64_t, Shortlist::kRoom> values;
    for (size_t i = 0; i < static_cast<size_t>(found.size); ++i)
        values[i] = uint64_t{found.bits[i]} << 32 | found.index[i];
    std::partial_sort(values.begin(), values.begin() + count, values.begin() + found.size);
    for (int64_t i = 0; i < count; ++i)
        out[i] = first + static_cast<int64_t>(static_cast<uint32_t>(values[static_cast<size_t>(i)]));
}

#ifdef __x86_64__

constexpr int64_t kRanked = 32;  // edges whose ranks are counted side by side

using Keys = std::array<uint64_t, Shortlist::kRoom + kRanked>;
using Ranks = std::array<uint64_t, Shortlist::kRoom + kRanked>;

// ranks[i]: how many come before the i-th.
void place_by_rank(const Shortlist& found, const Ranks& ranks, int64_t count, int64_t first, int64_t* out) {
    std::array<uint32_t, Shortlist::kRoom> places;
    for (size_t i = 0; i < static_cast<size_t>(found.size); ++i) places[ranks[i]] = found.index[i];
    for (int64_t i = 0; i < count; ++i) out[i] = first + places[static_cast<size_t>(i)];
}

// For each of the 256 choices of 8 lanes: the chosen ones, in order.
constexpr auto kCompress = [] {
    std::array<std::array<uint8_t, 8>, 256> table{};
    for (size_t mask = 0; mask < table.size(); ++mask)
        for (size_t lane = 0, at = 0; lane < 8; ++lane)
            if (mask >> lane & 1) table[mask][at++] = static_cast<uint8_t>(lane);
    return table;
}();

#define GIDS_AVX2 __attribute__((target("avx2,popcnt")))

GIDS_AVX2 inline __m256i all_of_8(uint32_t value) { return _mm256_set1_epi32(static_cast<int>(value)); }

GIDS_AVX2 inline __m256i load_8(const uint32_t* from) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
}

GIDS_AVX2 inline __m256i mix_8(RandomKey key, __m256i x) {
    x = _mm256_add_epi32(x, all_of_8(key.k0));
    x = _mm256_mullo_epi32(_mm256_xor_si256(x, _mm256_srli_epi32(x, 16)), all_of_8(0x85EBCA6Bu));
    x = _mm256_xor_si256(_mm256_xor_si256(x, _mm256_srli_epi32(x, 13)), all_of_8(key.k1));
    x = _mm256_mullo_epi32(x, all_of_8(0xC2B2AE35u));
    return _mm256_xor_si256(x, _mm256_srli_epi32(x, 16));
}

template <bool kMoves>
GIDS_AVX2 inline __m256i bits_of_8(const LaborKey& key, __m256i names) {
    const __m256i now = mix_8(key.now, names);
    if constexpr (!kMoves) return now;
    // threshold is at least 1 here: moved if the phase is at most this
    const __m256i last = all_of_8(static_cast<uint32_t>(key.threshold) - 1);
    const __m256i phase = mix_8(key.phase, names);
    const __m256i moved = _mm256_cmpeq_epi32(_mm256_min_epu32(phase, last), phase);
    return _mm256_blendv_epi8(now, mix_8(key.next, names), moved);
}

GIDS_AVX2 inline uint32_t at_most_8(__m256i x, __m256i most) {
    const __m256i small = _mm256_cmpeq_epi32(_mm256_min_epu32(x, most), x);
    return static_cast<uint32_t>(_mm256_movemask_ps(_mm256_castsi256_ps(small)));
}

template <bool kMoves>
GIDS_AVX2 void collect_8(const LaborKey& key, const uint32_t* names, int64_t count, int64_t begin, uint32_t limit,
                         Shortlist& found) {
    const __m256i most = all_of_8(limit);
    const __m256i lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    auto size = static_cast<size_t>(found.size);
    int64_t i = 0;
    for (; i + 8 <= count && size <= Shortlist::kRoom; i += 8) {
        const __m256i bits = bits_of_8<kMoves>(key, load_8(names + i));
        const uint32_t within = at_most_8(bits, most);
        if (count >= kLongList && within == 0) continue;
        const __m256i chosen =
            _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(kCompress[within].data())));
        const __m256i index = _mm256_add_epi32(all_of_8(static_cast<uint32_t>(begin + i)), lanes);
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(&found.bits[size]), _mm256_permutevar8x32_epi32(bits, chosen));
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(&found.index[size]), _mm256_permutevar8x32_epi32(index, chosen));
        size += static_cast<size_t>(std::popcount(within));
    }
    found.size = static_cast<int64_t>(size);
    collect_plain(key, names + i, count - i, begin + i, limit, found);
}

GIDS_AVX2 void collect_avx2(const LaborKey& key, const uint32_t* names, int64_t count, int64_t begin, uint32_t limit,
                            Shortlist& found) {
    key.threshold != 0 ? collect_8<true>(key, names, count, begin, limit, found)
                       : collect_8<false>(key, names, count, begin, limit, found);
}

// Every edge goes to where as many are before it. What is compared are signed numbers.
GIDS_AVX2 void order_avx2(const Shortlist& found, int64_t count, int64_t first, int64_t* out) {
    Keys keys;
    Ranks ranks;
    const auto size = static_cast<size_t>(found.size);
    const auto at = [](auto& array, size_t i) { return reinterpret_cast<__m256i*>(&array[i]); };
    for (size_t i = 0; i < size; ++i) keys[i] = uint64_t{found.bits[i] ^ 0x80000000u} << 32 | found.index[i];
    for (size_t from = 0; from < size; from += kRanked / 2) {
        const __m256i own0 = _mm256_loadu_si256(at(keys, from)), own1 = _mm256_loadu_si256(at(keys, from + 4));
        const __m256i own2 = _mm256_loadu_si256(at(keys, from + 8)), own3 = _mm256_loadu_si256(at(keys, from + 12));
        __m256i rank0 = _mm256_setzero_si256(), rank1 = rank0, rank2 = rank0, rank3 = rank0;
        for (size_t i = 0; i < size; ++i) {
            const __m256i other = _mm256_set1_epi64x(static_cast<int64_t>(keys[i]));
            rank0 = _mm256_sub_epi64(rank0, _mm256_cmpgt_epi64(own0, other));
            rank1 = _mm256_sub_epi64(rank1, _mm256_cmpgt_epi64(own1, other));
            rank2 = _mm256_sub_epi64(rank2, _mm256_cmpgt_epi64(own2, other));
            rank3 = _mm256_sub_epi64(rank3, _mm256_cmpgt_epi64(own3, other));
        }
        _mm256_storeu_si256(at(ranks, from), rank0);
        _mm256_storeu_si256(at(ranks, from + 4), rank1);
        _mm256_storeu_si256(at(ranks, from + 8), rank2);
        _mm256_storeu_si256(at(ranks, from + 12), rank3);
    }
    place_by_rank(found, ranks, count, first, out);
}

#define GIDS_AVX512 __attribute__((target("avx512f,popcnt")))

GIDS_AVX512 inline __m512i all_of_16(uint32_t value) { return _mm512_set1_epi32(static_cast<int>(value)); }

GIDS_AVX512 inline __m512i mix_16(RandomKey key, __m512i x) {
    x = _mm512_add_epi32(x, all_of_16(key.k0));
    x = _mm512_mullo_epi32(_mm512_xor_si512(x, _mm512_srli_epi32(x, 16)), all_of_16(0x85EBCA6Bu));
    x = _mm512_xor_si512(_mm512_xor_si512(x, _mm512_srli_epi32(x, 13)), all_of_16(key.k1));
    x = _mm512_mullo_epi32(x, all_of_16(0xC2B2AE35u));
    return _mm512_xor_si512(x, _mm512_srli_epi32(x, 16));
}

template <bool kMoves>
GIDS_AVX512 inline __m512i bits_of_16(const LaborKey& key, __m512i names) {
    const __m512i now = mix_16(key.now, names);
    if constexpr (!kMoves) return now;
    const __m512i last = all_of_16(static_cast<uint32_t>(key.threshold) - 1);  // as in bits_of_8
    const __mmask16 moved = _mm512_cmple_epu32_mask(mix_16(key.phase, names), last);
    return _mm512_mask_blend_epi32(moved, now, mix_16(key.next, names));
}

// Adds the chosen of sixteen edges; returns how many there are then.
GIDS_AVX512 inline size_t add_16(__m512i bits, __mmask16 within, int64_t index, Shortlist& found, size_t size) {
    const __m512i lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const __m512i indices = _mm512_add_epi32(all_of_16(static_cast<uint32_t>(index)), lanes);
    // To a register and from there to memory: storing chosen lanes only is slow on some processors.
    _mm512_storeu_si512(&found.bits[size], _mm512_maskz_compress_epi32(within, bits));
    _mm512_storeu_si512(&found.index[size], _mm512_maskz_compress_epi32(within, indices));
    return size + static_cast<size_t>(std::popcount(static_cast<uint32_t>(within)));
}

template <bool kMoves>
GIDS_AVX512 void collect_16(const LaborKey& key, const uint32_t* names, int64_t count, int64_t begin, uint32_t limit,
                            Shortlist& found) {
    const __m512i most = all_of_16(limit);
    auto size = static_cast<size_t>(found.size);
    int64_t i = 0;
    for (; i + 64 <= count && size <= Shortlist::kRoom; i += 64) {
        const __m512i bits0 = bits_of_16<kMoves>(key, _mm512_loadu_si512(names + i));
        const __m512i bits1 = bits_of_16<kMoves>(key, _mm512_loadu_si512(names + i + 16));
        const __m512i bits2 = bits_of_16<kMoves>(key, _mm512_loadu_si512(names + i + 32));
        const __m512i bits3 = bits_of_16<kMoves>(key, _mm512_loadu_si512(names + i + 48));
        const __mmask16 within0 = _mm512_cmple_epu32_mask(bits0, most);
        const __mmask16 within1 = _mm512_cmple_epu32_mask(bits1, most);
        const __mmask16 within2 = _mm512_cmple_epu32_mask(bits2, most);
        const __mmask16 within3 = _mm512_cmple_epu32_mask(bits3, most);
        if (count >= kLongList && (within0 | within1 | within2 | within3) == 0) continue;
        size = add_16(bits0, within0, begin + i, found, size);
        size = add_16(bits1, within1, begin + i + 16, found, size);
        size = add_16(bits2, within2, begin + i + 32, found, size);
        size = add_16(bits3, within3, begin + i + 48, found, size);
    }
    for (; i < count && size <= Shortlist::kRoom; i += 16) {
        const auto there = static_cast<__mmask16>(count - i >= 16 ? 0xFFFF : (1u << (count - i)) - 1);
        const __m512i bits = bits_of_16<kMoves>(key, _mm512_maskz_loadu_epi32(there, names + i));
        size = add_16(bits, _mm512_mask_cmple_epu32_mask(there, bits, most), begin + i, found, size);
    }
    found.size = static_cast<int64_t>(size);
}

GIDS_AVX512 void collect_avx512(const LaborKey& key, const uint32_t* names, int64_t count, int64_t begin,
                                uint32_t limit, Shortlist& found) {
    key.threshold != 0 ? collect_16<true>(key, names, count, begin, limit, found)
                       : collect_16<false>(key, names, count, begin, limit, found);
}

GIDS_AVX512 inline __m512i wide_8(const uint32_t* from) {
    return _mm512_cvtepu32_epi64(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
}

GIDS_AVX512 inline __m512i keys_8(const Shortlist& found, size_t from) {
    return _mm512_or_si512(_mm512_slli_epi64(wide_8(&found.bits[from]), 32), wide_8(&found.index[from]));
}

GIDS_AVX512 inline __m512i count_8(__m512i rank, __m512i other, __m512i own) {
    return _mm512_mask_add_epi64(rank, _mm512_cmplt_epu64_mask(other, own), rank, _mm512_set1_epi64(1));
}

GIDS_AVX512 void order_avx512(const Shortlist& found, int64_t count, int64_t first, int64_t* out) {
    Keys keys;
    Ranks ranks;
    const auto size = static_cast<size_t>(found.size);
    for (size_t i = 0; i < size; i += 8) _mm512_storeu_si512(&keys[i], keys_8(found, i));
    for (size_t from = 0; from < size; from += kRanked) {
        const __m512i own0 = _mm512_loadu_si512(&keys[from]), own1 = _mm512_loadu_si512(&keys[from + 8]);
        const __m512i own2 = _mm512_loadu_si512(&keys[from + 16]), own3 = _mm512_loadu_si512(&keys[from + 24]);
        __m512i rank0 = _mm512_setzero_si512(), rank1 = rank0, rank2 = rank0, rank3 = rank0;
        for (size_t i = 0; i < size; ++i) {
            const __m512i other = _mm512_set1_epi64(static_cast<int64_t>(keys[i]));
            rank0 = count_8(rank0, other, own0);
            rank1 = count_8(rank1, other, own1);
            rank2 = count_8(rank2, other, own2);
            rank3 = count_8(rank3, other, own3);
        }
        _mm512_storeu_si512(&ranks[from], rank0);
        _mm512_storeu_si512(&ranks[from + 8], rank1);
        _mm512_storeu_si512(&ranks[from + 16], rank2);
        _mm512_storeu_si512(&ranks[from + 24], rank3);
    }
    place_by_rank(found, ranks, count, first, out);
}

#endif

}  // namespace

const std::vector<ShortlistWay>& shortlist_ways() {
    static const std::vector<ShortlistWay> ways = [] {
        std::vector<ShortlistWay> all;
#ifdef __x86_64__
        if (__builtin_cpu_supports("avx512f")) all.push_back({"avx512", collect_avx512, order_avx512});
        if (__builtin_cpu_supports("avx2")) all.push_back({"avx2", collect_avx2, order_avx2});
#endif
        all.push_back({"plain", collect_plain, order_plain});
        return all;
    }();
    return ways;
}

}  // namespace gids
