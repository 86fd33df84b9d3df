// Variates in vectors where the processor has them; importance sampling by whole layers.
#include "sampling/labor.hpp"

#ifdef __x86_64__
#include <immintrin.h>
#endif

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>

#include "sampling/neighbor.hpp"

namespace gids {
namespace {

constexpr int64_t kBlock = 64;        // sources whose names are looked up together
constexpr int64_t kCandidates = 128;  // edges that are ordered by comparing each with each

// Edges whose variates are small, as (variate, index in the list) in one number: its order is theirs.
struct Shortlist {
    std::array<int64_t, kCandidates + 8> values;
    int64_t size = 0;

    bool full() const { return size > kCandidates; }
    void add(uint32_t bits, int64_t index) {
        values[static_cast<size_t>(size++)] =
            static_cast<int64_t>(static_cast<uint64_t>(bits ^ 0x80000000u) << 32 | static_cast<uint64_t>(index));
    }
};

// Adds those of `count` edges from `begin` on whose variate is at most `limit`; names are below 2^32. Ends early where
// there are too many.
void collect_plain(const LaborKey& key, const uint32_t* names, int64_t count, int64_t begin, uint32_t limit,
                   Shortlist& found) {
    for (int64_t i = 0; i < count && !found.full(); ++i) {
        const bool moved = key.threshold != 0 && labor_mix(key.phase, names[i]) < key.threshold;
        const uint32_t bits = labor_mix(moved ? key.next : key.now, names[i]);
        if (bits <= limit) found.add(bits, begin + i);
    }
}

// Writes the first `count` in order: each goes to where as many are before it.
void order_plain(Shortlist& found, int64_t count, int64_t first, int64_t* out) {
    std::sort(found.values.begin(), found.values.begin() + found.size);
    for (int64_t i = 0; i < count; ++i)
        out[i] = first + static_cast<int64_t>(static_cast<uint32_t>(found.values[static_cast<size_t>(i)]));
}

#ifdef __x86_64__
__attribute__((target("avx2"))) inline __m256i mix_avx2(RandomKey key, __m256i x) {
    x = _mm256_add_epi32(x, _mm256_set1_epi32(static_cast<int>(key.k0)));
    x = _mm256_mullo_epi32(_mm256_xor_si256(x, _mm256_srli_epi32(x, 16)),
                           _mm256_set1_epi32(static_cast<int>(0x85EBCA6Bu)));
    x = _mm256_xor_si256(_mm256_xor_si256(x, _mm256_srli_epi32(x, 13)), _mm256_set1_epi32(static_cast<int>(key.k1)));
    x = _mm256_mullo_epi32(x, _mm256_set1_epi32(static_cast<int>(0xC2B2AE35u)));
    return _mm256_xor_si256(x, _mm256_srli_epi32(x, 16));
}

__attribute__((target("avx2"))) void collect_avx2(const LaborKey& key, const uint32_t* names, int64_t count,
                                                  int64_t begin, uint32_t limit, Shortlist& found) {
    const __m256i most = _mm256_set1_epi32(static_cast<int>(limit));
    // threshold is at least 1 where it is used: moved if the phase is at most this
    const __m256i last_moved = _mm256_set1_epi32(static_cast<int>(static_cast<uint32_t>(key.threshold) - 1));
    int64_t i = 0;
    for (; i + 8 <= count && !found.full(); i += 8) {
        const __m256i node = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(names + i));
        __m256i x = mix_avx2(key.now, node);
        if (key.threshold != 0) {
            const __m256i phase = mix_avx2(key.phase, node);
            const __m256i moved = _mm256_cmpeq_epi32(_mm256_min_epu32(phase, last_moved), phase);
            x = _mm256_blendv_epi8(x, mix_avx2(key.next, node), moved);
        }
        const __m256i small = _mm256_cmpeq_epi32(_mm256_min_epu32(x, most), x);
        auto within = static_cast<uint32_t>(_mm256_movemask_ps(_mm256_castsi256_ps(small)));
        if (within == 0) continue;
        alignas(32) std::array<uint32_t, 8> bits;
        _mm256_store_si256(reinterpret_cast<__m256i*>(bits.data()), x);
        for (; within != 0; within &= within - 1) {
            const int lane = std::countr_zero(within);
            found.add(bits[static_cast<size_t>(lane)], begin + i + lane);
        }
    }
    collect_plain(key, names + i, count - i, begin + i, limit, found);
}

__attribute__((target("avx2"))) void order_avx2(Shortlist& found, int64_t count, int64_t first, int64_t* out) {
    for (int64_t i = found.size; i % 4 != 0; ++i) found.values[static_cast<size_t>(i)] = INT64_MAX;
    for (int64_t i = 0; i < found.size; ++i) {
        const int64_t value = found.values[static_cast<size_t>(i)];
        const __m256i own = _mm256_set1_epi64x(value);
        __m256i before = _mm256_setzero_si256();
        for (int64_t j = 0; j < found.size; j += 4) {
            const auto* others = reinterpret_cast<const __m256i*>(&found.values[static_cast<size_t>(j)]);
            before = _mm256_sub_epi64(before, _mm256_cmpgt_epi64(own, _mm256_loadu_si256(others)));
        }
        alignas(32) std::array<int64_t, 4> sums;
        _mm256_store_si256(reinterpret_cast<__m256i*>(sums.data()), before);
        const int64_t rank = sums[0] + sums[1] + sums[2] + sums[3];
        if (rank < count) out[rank] = first + static_cast<int64_t>(static_cast<uint32_t>(value));
    }
}

const bool kWide = __builtin_cpu_supports("avx2") != 0;
const auto shortlist = kWide ? collect_avx2 : collect_plain;
const auto order = kWide ? order_avx2 : order_plain;
#else
const auto shortlist = collect_plain;
const auto order = order_plain;
#endif

// Finds the edges of a list whose variates are at most `limit`; false where that cannot be done in one go: too many, or
// names of more than 32 bits.
template <class Index>
bool find_candidates(const LaborKey& key, const Index* indices, int64_t degree, uint32_t limit, Shortlist& found) {
    if constexpr (sizeof(Index) == 4) {
        if (key.origins == nullptr) {
            shortlist(key, reinterpret_cast<const uint32_t*>(indices), degree, 0, limit, found);
            return !found.full();
        }
    }
    std::array<uint32_t, kBlock> names;
    for (int64_t begin = 0; begin < degree && !found.full(); begin += kBlock) {
        const int64_t count = std::min(kBlock, degree - begin);
        uint64_t all = 0;
        for (int64_t i = 0; i < count; ++i) {
            const uint64_t name = labor_name(key, static_cast<uint64_t>(indices[begin + i]));
            all |= name;
            names[static_cast<size_t>(i)] = static_cast<uint32_t>(name);
        }
        if (all >> 32 != 0) return false;
        shortlist(key, names.data(), count, begin, limit, found);
    }
    return !found.full();
}

}  // namespace

// The smallest variates of a list are nearly always below a bound that its length tells: what is above it is passed by
// in a few instructions for eight edges, and the rest is few.
template <class Index>
void choose_labor_fast(const LaborKey& key, int64_t first, int64_t degree, int64_t eligible, int64_t count,
                       const Index* indices, const float* weights, std::vector<double>& scratch, int64_t* out) {
    const double expected = static_cast<double>(count) + 4 + 3 * std::sqrt(static_cast<double>(count));
    if (count != eligible && weights == nullptr && count > 0 && expected < kCandidates / 2.0 && degree >> 32 == 0) {
        const double share = expected / static_cast<double>(degree);
        const auto limit = static_cast<uint32_t>(share < 1 ? share * 0x1p32 : 0x1p32 - 1);
        Shortlist found;
        if (find_candidates(key, indices, degree, limit, found) && found.size >= count) {
            order(found, count, first, out);
            return;
        }
    }
    scratch.resize(static_cast<size_t>(std::max<int64_t>(count, 1)));
    choose_labor(Serial{}, key, first, degree, eligible, count, indices, weights, scratch.data(), out);
}

template void choose_labor_fast(const LaborKey&, int64_t, int64_t, int64_t, int64_t, const int32_t*, const float*,
                                std::vector<double>&, int64_t*);
template void choose_labor_fast(const LaborKey&, int64_t, int64_t, int64_t, int64_t, const int64_t*, const float*,
                                std::vector<double>&, int64_t*);

BlockPart sample_by_importance(const Topology& topology, const Relation& relation, const Draw& draw, int64_t rounds,
                               bool edge_ids, const ExcludedEdges& excluded, const int64_t* nodes, int64_t num_dst,
                               NodeSet& sources, ThreadPool* pool) {
    EdgeList edges = find_edges(topology, relation, nodes, num_dst, kAllEdges, edge_ids, pool);
    drop_excluded(excluded, nodes, edges);
    TablePool tables;
    NodeSet candidates(tables, topology.num_sources(relation));
    candidates.add(edges.src.data(), edges.num_edges());
    std::vector<double> pi(static_cast<size_t>(candidates.size()), 1.0), largest(pi.size()),
        scales(static_cast<size_t>(num_dst));
    const auto pi_of = [&](int64_t e) { return pi[static_cast<size_t>(edges.src[e])]; };
    for (int64_t round = 0;; ++round) {
        for_pieces(pool, num_dst, 256, [&](int64_t begin, int64_t end) {
            for (int64_t i = begin; i < end; ++i) {
                const int64_t from = edges.indptr[i];
                scales[static_cast<size_t>(i)] =
                    labor_scale(edges.indptr[i + 1] - from, draw.fanout, [&](int64_t e) { return pi_of(from + e); });
            }
        });
        if (round == rounds) break;
        std::fill(largest.begin(), largest.end(), 0.0);
        for (int64_t i = 0; i < num_dst; ++i)
            for (int64_t e = edges.indptr[i]; e < edges.indptr[i + 1]; ++e) {
                double& most = largest[static_cast<size_t>(edges.src[e])];
                most = std::max(most, scales[static_cast<size_t>(i)]);
            }
        for (size_t t = 0; t < pi.size(); ++t) pi[t] *= largest[t] > 0.0 ? largest[t] : 1.0;
    }
    BlockPart part{Array<int64_t>(num_dst + 1), {}, {}, Array<float>(edges.num_edges())};
    part.indptr[0] = 0;
    int64_t kept = 0;
    for (int64_t i = 0; i < num_dst; ++i) {
        const int64_t from = kept;
        double sum = 0.0;
        for (int64_t e = edges.indptr[i]; e < edges.indptr[i + 1]; ++e) {
            const int64_t node = candidates.nodes()[edges.src[e]];
            const double chance = labor_chance(scales[static_cast<size_t>(i)], pi_of(e));
            if (!labor_keeps(labor_bits(*draw.labor, static_cast<uint64_t>(node)), chance)) continue;
            sum += 1.0 / chance;
            part.weights[kept] = static_cast<float>(1.0 / chance);
            edges.src[kept] = node;  // behind what is still to be looked at
            if (edge_ids) edges.positions[kept] = edges.positions[e];
            ++kept;
        }
        for (int64_t e = from; e < kept; ++e)
            part.weights[e] = static_cast<float>(static_cast<double>(part.weights[e]) / sum);
        part.indptr[i + 1] = kept;
    }
    edges.src.set_size(kept);
    edges.src.fit();
    part.weights.set_size(kept);
    part.weights.fit();
    if (edge_ids) {
        edges.positions.set_size(kept);
        edges.positions.fit();
        name_edges(relation, edges.positions.data(), kept);
        part.edge_ids = std::move(edges.positions);
    }
    sources.expect(kept);
    sources.add(edges.src.data(), kept);
    part.src = std::move(edges.src);
    return part;
}

}  // namespace gids
