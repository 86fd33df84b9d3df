// The smallest variates of one list; importance sampling by whole layers.
#include "sampling/labor.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>

#include "sampling/neighbor.hpp"
#include "sampling/shortlist.hpp"

namespace gids {
namespace {

constexpr int64_t kBlock = 256;  // sources whose names are looked up together

// Finds the edges of a list whose variates are at most `limit`; false where that cannot be done in one go: too many, or
// names of more than 32 bits.
template <class Index>
bool find_candidates(const LaborKey& key, const Index* indices, int64_t degree, uint32_t limit, Shortlist& found) {
    const auto collect = shortlist_ways().front().collect;
    if constexpr (sizeof(Index) == 4) {
        if (key.origins == nullptr) {
            collect(key, reinterpret_cast<const uint32_t*>(indices), degree, 0, limit, found);
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
        collect(key, names.data(), count, begin, limit, found);
    }
    return !found.full();
}

}  // namespace

// The smallest variates of a list are nearly always below a bound that its length tells: what is above it is passed by
// in a few instructions for many edges, and the rest is few. Where too few are below it, twice the bound.
template <class Index>
void choose_labor_fast(const LaborKey& key, int64_t first, int64_t degree, int64_t eligible, int64_t count,
                       const Index* indices, const float* weights, std::vector<double>& scratch, int64_t* out) {
    if (count != eligible && weights == nullptr && count > 0 && degree >> 32 == 0) {
        double expected = static_cast<double>(count) + 2.5 * std::sqrt(static_cast<double>(count));
        Shortlist found;
        for (; expected < Shortlist::kRoom / 2.0; expected *= 2) {
            const double share = expected / static_cast<double>(degree);
            const auto limit = static_cast<uint32_t>(share < 1 ? share * 0x1p32 : 0x1p32 - 1);
            found.size = 0;
            if (!find_candidates(key, indices, degree, limit, found)) break;
            if (found.size < count) continue;
            shortlist_ways().front().order(found, count, first, out);
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
