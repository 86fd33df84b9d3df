// The layer loop of neighbour sampling. Work is blocked so that every random access was prefetched before it is made.
#include "sampling/neighbor.hpp"

#include <algorithm>

#include "errors.hpp"
#include "sample.cuh"
#include "sampling/pipeline.hpp"

namespace gids {
namespace {

constexpr int64_t kPieceEdges = 4096;  // edges that one thread produces at a time: 32 KiB of ids
constexpr int64_t kCountAhead = 32;    // destinations between prefetch and use of an offset
constexpr int64_t kNodesBehind = 16;   // destinations between choosing an edge and reading its source

// Destinations of one relation and layer with what was learnt about them in the counting pass.
struct Frontier {
    Array<int64_t> first;  // position of the first in-edge
    Array<int64_t> degree;
    int64_t size() const { return first.size(); }
};

void for_pieces(ThreadPool* pool, int64_t count, int64_t grain, auto body) {
    if (pool == nullptr || count <= grain) {
        if (count > 0) body(int64_t{0}, count);
        return;
    }
    pool->parallel_for(count, grain, body);
}

Frontier count_edges(const Relation& relation, const int64_t* nodes, int64_t num_dst, int64_t fanout, bool replace,
                     ThreadPool* pool, int64_t* indptr) {
    Frontier frontier{Array<int64_t>(num_dst), Array<int64_t>(num_dst)};
    for_pieces(pool, num_dst, 8192, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
            if (i + kCountAhead < end) __builtin_prefetch(&relation.indptr[nodes[i + kCountAhead]]);
            const int64_t first = relation.indptr[nodes[i]];
            const int64_t degree = relation.indptr[nodes[i] + 1] - first;
            frontier.first[i] = first;
            frontier.degree[i] = degree;
            indptr[i + 1] = sampled_count(degree, fanout, replace);
        }
    });
    indptr[0] = 0;
    for (int64_t i = 0; i < num_dst; ++i) indptr[i + 1] += indptr[i];
    return frontier;
}

// Destination ranges of about kPieceEdges edges each.
std::vector<int64_t> cut_pieces(const Array<int64_t>& indptr) {
    const int64_t num_dst = indptr.size() - 1;
    std::vector<int64_t> bounds{0};
    while (bounds.back() < num_dst) {
        const int64_t goal = indptr[bounds.back()] + kPieceEdges;
        const int64_t end =
            std::upper_bound(indptr.begin() + bounds.back() + 1, indptr.end(), goal) - indptr.begin() - 1;
        bounds.push_back(std::max(end, bounds.back() + 1));
    }
    return bounds;
}

[[noreturn]] void reject_neighbor(const Relation& relation, int64_t num_src) {
    throw DatasetError("indices of " + relation.name + " must be in [0, " + std::to_string(num_src) +
                       "): a sampled neighbour is not");
}

void check_neighbors(const Relation& relation, const int64_t* nodes, int64_t count, int64_t num_src) {
    bool bad = false;
    for (int64_t i = 0; i < count; ++i) bad |= static_cast<uint64_t>(nodes[i]) >= static_cast<uint64_t>(num_src);
    if (bad) reject_neighbor(relation, num_src);
}

struct Layer {
    const Relation& relation;
    const Frontier& frontier;
    const int64_t* nodes;
    const Array<int64_t>& indptr;
    RandomKey key;
    bool replace;

    void choose(int64_t i, int64_t* positions) const {
        choose_uniform(Serial{}, key, static_cast<uint64_t>(nodes[i]), frontier.first[i], frontier.degree[i],
                       indptr[i + 1] - indptr[i], replace, positions);
    }

    // positions and out begin at the first edge of destination `begin`.
    template <class Index>
    void choose_and_gather(const Index* indices, int64_t begin, int64_t end, int64_t* positions, int64_t* out) const {
        const int64_t origin = indptr[begin];
        int64_t gathered = 0;
        for (int64_t i = begin; i < end; ++i) {
            const int64_t from = indptr[i] - origin;
            const int64_t to = indptr[i + 1] - origin;
            choose(i, positions + from);
            for (int64_t e = from; e < to; ++e) __builtin_prefetch(&indices[positions[e]]);
            const int64_t until = i - begin >= kNodesBehind ? indptr[i - kNodesBehind + 1] - origin : 0;
            for (; gathered < until; ++gathered) out[gathered] = static_cast<int64_t>(indices[positions[gathered]]);
        }
        for (const int64_t total = indptr[end] - origin; gathered < total; ++gathered)
            out[gathered] = static_cast<int64_t>(indices[positions[gathered]]);
    }
};

BlockPart sample_relation(const Topology& topology, const Relation& relation, const NeighborOptions& options,
                          int64_t fanout, RandomKey key, const NodeSet& destinations, int64_t num_dst, NodeSet& sources,
                          ThreadPool* pool) {
    const bool replace = options.replace && fanout >= 0;
    const int64_t num_src = topology.num_nodes[static_cast<size_t>(relation.src_type)];
    BlockPart part{Array<int64_t>(num_dst + 1), {}, {}};
    const Frontier frontier =
        count_edges(relation, destinations.nodes(), num_dst, fanout, replace, pool, part.indptr.data());
    const int64_t edges = part.indptr[num_dst];
    part.src = Array<int64_t>(edges);
    sources.expect(edges);  // from here on destinations.nodes() does not move, even where it is the same set
    const Layer layer{relation, frontier, destinations.nodes(), part.indptr, key, replace};
    const bool in_memory = !relation.read;
    if (options.edge_ids || !in_memory) part.edge_ids = Array<int64_t>(edges);

    const std::vector<int64_t> bounds = cut_pieces(part.indptr);
    const int64_t pieces = static_cast<int64_t>(bounds.size()) - 1;
    const auto number = [&](int64_t p) {
        const int64_t begin = part.indptr[bounds[static_cast<size_t>(p)]];
        sources.add(part.src.data() + begin, part.indptr[bounds[static_cast<size_t>(p) + 1]] - begin);
    };
    if (in_memory) {
        produce_in_parallel_consume_in_order(
            pool, pieces,
            [&](int64_t p) {
                const int64_t begin = bounds[static_cast<size_t>(p)];
                const int64_t end = bounds[static_cast<size_t>(p) + 1];
                const int64_t from = part.indptr[begin];
                const int64_t count = part.indptr[end] - from;
                int64_t* out = part.src.data() + from;
                // Without edge ids the positions share the array of the sources: each is read before it is overwritten.
                int64_t* positions = options.edge_ids ? part.edge_ids.data() + from : out;
                if (relation.indices32 != nullptr)
                    layer.choose_and_gather(relation.indices32, begin, end, positions, out);
                else layer.choose_and_gather(relation.indices64, begin, end, positions, out);
                check_neighbors(relation, out, count, num_src);
                if (options.edge_ids && relation.edge_ids != nullptr)
                    for (int64_t e = 0; e < count; ++e) positions[e] = relation.edge_ids[positions[e]];
            },
            number);
        return part;
    }
    for_pieces(pool, pieces, 1, [&](int64_t begin, int64_t end) {
        for (int64_t i = bounds[static_cast<size_t>(begin)]; i < bounds[static_cast<size_t>(end)]; ++i)
            layer.choose(i, part.edge_ids.data() + part.indptr[i]);
    });
    relation.read(part.edge_ids.data(), edges, part.src.data());
    check_neighbors(relation, part.src.data(), edges, num_src);
    for (int64_t p = 0; p < pieces; ++p) number(p);
    if (!options.edge_ids) part.edge_ids = {};
    return part;
}

}  // namespace

NeighborSample sample_neighbors(Topology& topology, const NeighborOptions& options, SampleKey key,
                                const std::vector<std::span<const int64_t>>& seeds, ThreadPool* pool) {
    const size_t num_types = topology.num_nodes.size();
    NeighborSample sample;
    std::vector<NodeSet> sets;
    sets.reserve(num_types);
    for (size_t t = 0; t < num_types; ++t) {
        sets.emplace_back(topology.tables, topology.num_nodes[t]);
        const auto given = seeds[t];
        for (const int64_t seed : given)
            if (seed < 0 || seed >= topology.num_nodes[t])
                throw ConfigError("seeds of " + topology.node_types[t] + " must be in [0, " +
                                  std::to_string(topology.num_nodes[t]) + ") (got " + std::to_string(seed) + ")");
        Array<int64_t> rows(static_cast<int64_t>(given.size()));
        std::copy(given.begin(), given.end(), rows.data());
        sets[t].add(rows.data(), rows.size());
        sample.seed_rows.push_back(std::move(rows));
    }
    const size_t num_layers = options.fanouts.size();
    sample.blocks.resize(num_layers);
    for (size_t hop = 0; hop < num_layers; ++hop) {
        SampledBlock& block = sample.blocks[num_layers - 1 - hop];
        const auto& fanouts = options.fanouts[num_layers - 1 - hop];
        for (const NodeSet& set : sets) block.num_dst.push_back(set.size());
        for (size_t r = 0; r < topology.relations.size(); ++r) {
            const Relation& relation = topology.relations[r];
            const auto dst = static_cast<size_t>(relation.dst_type);
            const RandomKey layer_key = random_key(key.seed, key.epoch, key.batch, static_cast<uint32_t>(hop),
                                                   static_cast<uint32_t>(r), Stream::kNeighbors);
            block.parts.push_back(sample_relation(topology, relation, options, fanouts[r], layer_key, sets[dst],
                                                  block.num_dst[dst], sets[static_cast<size_t>(relation.src_type)],
                                                  pool));
        }
        for (const NodeSet& set : sets) block.num_src.push_back(set.size());
    }
    for (NodeSet& set : sets) sample.nodes.push_back(set.take_nodes());
    return sample;
}

}  // namespace gids
