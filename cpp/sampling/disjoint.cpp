// A tree of its own for every seed: nodes are known as (seed, node), so that each may have a time, and no two seeds
// share what they saw. With times, only edges that existed at the seed's time can be chosen.
#include <algorithm>

#include "errors.hpp"
#include "sample.cuh"
#include "sampling/neighbor.hpp"

namespace gids {
namespace {

constexpr int64_t kSliceEdges = 1 << 20;  // edges whose sources and times are looked at together

// Edges of a list that a seed may see, as indices into the list.
class Eligible {
public:
    Eligible(const DisjointOptions& options, const int64_t* seed_times) : options_(options), times_(seed_times) {}

    void find(const int64_t* edge_times, int64_t degree, int64_t tree) {
        found_.clear();
        for (int64_t i = 0; i < degree; ++i) {
            if (options_.by != TimeOf::kNothing) {
                const int64_t now = times_[tree];
                if (edge_times[i] > now) continue;  // the future
                if (options_.window >= 0 && now - edge_times[i] >= options_.window) continue;
            }
            found_.push_back(i);
        }
    }
    int64_t size() const { return static_cast<int64_t>(found_.size()); }
    int64_t operator[](int64_t i) const { return found_[static_cast<size_t>(i)]; }
    // The latest first; of equal times, the later edge first.
    void sort_by_time(const int64_t* edge_times, int64_t count) {
        std::partial_sort(found_.begin(), found_.begin() + count, found_.end(), [&](int64_t a, int64_t b) {
            return edge_times[a] > edge_times[b] || (edge_times[a] == edge_times[b] && a > b);
        });
    }

private:
    const DisjointOptions& options_;
    const int64_t* times_;
    std::vector<int64_t> found_;
};

// Times of the edges of a slice, or nothing where they play no role.
Array<int64_t> times_of(const Topology& topology, const Relation& relation, const EdgeList& edges, TimeOf by) {
    const int64_t count = edges.num_edges();
    Array<int64_t> times(by == TimeOf::kNothing ? 0 : count);
    if (by == TimeOf::kNode) {
        const int64_t* of_nodes = topology.times_of(static_cast<size_t>(relation.src_type));
        for (int64_t e = 0; e < count; ++e) times[e] = of_nodes[edges.src[e]];
    } else if (by == TimeOf::kEdge && count > 0) {
        if (relation.read_times) relation.read_times(edges.positions.data(), count, times.data());
        else
            for (int64_t e = 0; e < count; ++e) times[e] = relation.times[edges.positions[e]];
    }
    return times;
}

}  // namespace

Sampled sample_disjoint(Topology& topology, const DisjointOptions& options, const SampleRequest& request,
                        ThreadPool* pool) {
    Sampled sample;
    std::vector<NodeSet> sets;
    const size_t num_types = topology.num_nodes.size();
    int64_t num_trees = 0;
    for (const auto& seeds : request.seeds) num_trees += static_cast<int64_t>(seeds.size());
    if (options.by != TimeOf::kNothing && static_cast<int64_t>(request.times.size()) != num_trees)
        throw ConfigError("seeds must each have a time (got " + std::to_string(request.times.size()) + " for " +
                          std::to_string(num_trees) + " seeds)");
    sets.reserve(num_types);
    int64_t tree = 0;
    for (size_t t = 0; t < num_types; ++t) {
        const int64_t nodes = topology.num_nodes[t];
        if (num_trees > 0 && nodes > INT64_MAX / 2 / num_trees)
            throw ConfigError("seeds times nodes must stay below 2^62");
        sets.emplace_back(topology.tables, std::max<int64_t>(nodes * num_trees, 1));
        Array<int64_t> rows(static_cast<int64_t>(request.seeds[t].size()));
        for (size_t i = 0; i < request.seeds[t].size(); ++i) {
            const int64_t seed = request.seeds[t][i];
            if (seed < 0 || seed >= nodes)
                throw ConfigError("seeds of " + topology.node_types[t] + " must be in [0, " + std::to_string(nodes) +
                                  ") (got " + std::to_string(seed) + ")");
            rows[static_cast<int64_t>(i)] = tree++ * nodes + seed;
        }
        sets[t].add(rows.data(), rows.size());
        sample.seed_rows.push_back(std::move(rows));
    }
    const size_t num_layers = options.fanouts.size();
    sample.blocks.resize(num_layers);
    Eligible eligible(options, request.times.data());
    Array<int64_t> chosen;
    for (size_t hop = 0; hop < num_layers; ++hop) {
        SampledBlock& block = sample.blocks[num_layers - 1 - hop];
        block.num_dst = sizes(sets);
        for (size_t r = 0; r < topology.relations.size(); ++r) {
            const Relation& relation = topology.relations[r];
            const auto dst = static_cast<size_t>(relation.dst_type);
            const auto src = static_cast<size_t>(relation.src_type);
            const int64_t num_dst = block.num_dst[dst], nodes = topology.num_nodes[dst];
            const int64_t fanout = options.fanouts[num_layers - 1 - hop][r];
            const RandomKey key = request.key.layer(options.first_hop + hop, r, Stream::kNeighbors);
            EdgeList found{Array<int64_t>(num_dst + 1), {}, {}};
            found.indptr[0] = 0;
            Array<int64_t> slice;
            for (int64_t begin = 0, end = 0; begin < num_dst; begin = end) {
                int64_t total = 0;
                const int64_t* known = sets[dst].nodes();
                slice.set_size(0);
                for (end = begin; end < num_dst && (end == begin || total < kSliceEdges); ++end) {
                    if (slice.size() == slice.capacity()) slice.reserve(2 * slice.size() + 64);
                    slice.set_size(end - begin + 1);
                    slice[end - begin] = known[end] % nodes;
                    total += relation.range(slice[end - begin]).degree;
                }
                if (fanout == 0) total = 0;
                EdgeList all = fanout == 0
                                   ? EdgeList{Array<int64_t>(end - begin + 1), {}, {}}
                                   : find_edges(topology, relation, slice.data(), end - begin, kAllEdges, true, pool);
                if (fanout == 0) std::fill(all.indptr.begin(), all.indptr.end(), 0);
                else drop_excluded(request.excluded_of(r), slice.data(), all);
                const Array<int64_t> times = times_of(topology, relation, all, options.by);
                for (int64_t i = begin; i < end; ++i) {
                    const int64_t from = all.indptr[i - begin], own = known[i] / nodes;
                    const int64_t* list_times = times.size() > 0 ? times.data() + from : nullptr;
                    eligible.find(list_times, all.indptr[i - begin + 1] - from, own);
                    const bool replace = options.replace && fanout >= 0;
                    const int64_t count = sampled_count(eligible.size(), fanout, replace);
                    chosen.reserve(count);
                    if (options.last) {
                        eligible.sort_by_time(list_times, count);
                        for (int64_t k = 0; k < count; ++k) chosen[k] = k;
                    } else if (count > 0) {
                        const uint64_t name = relation.random_name(slice[i - begin]) +
                                              static_cast<uint64_t>(own) * static_cast<uint64_t>(nodes);
                        choose_uniform(Serial{}, key, name, 0, eligible.size(), count, replace, chosen.data());
                    }
                    const int64_t at = found.indptr[i];
                    for (auto* array : {&found.positions, &found.src}) {
                        array->set_size(at);
                        if (at + count > array->capacity()) array->reserve(std::max(at + count, 2 * at));
                    }
                    for (int64_t k = 0; k < count; ++k) {
                        const int64_t e = from + eligible[chosen[k]];
                        found.positions[at + k] = all.positions[e];
                        found.src[at + k] = own * topology.num_nodes[src] + all.src[e];
                    }
                    found.indptr[i + 1] = at + count;
                }
            }
            const int64_t count = found.num_edges();
            found.positions.set_size(count);
            found.src.set_size(count);
            sets[src].expect(count);
            sets[src].add(found.src.data(), count);
            if (options.edge_ids) name_edges(relation, found.positions.data(), count);
            else found.positions = {};
            block.parts.push_back({std::move(found.indptr), std::move(found.src), std::move(found.positions), {}});
        }
        block.num_src = sizes(sets);
    }
    for (size_t t = 0; t < num_types; ++t) {
        Array<int64_t> nodes = sets[t].take_nodes();
        Array<int64_t> trees(nodes.size());
        for (int64_t i = 0; i < nodes.size(); ++i) {
            trees[i] = nodes[i] / topology.num_nodes[t];
            nodes[i] %= topology.num_nodes[t];
        }
        sample.nodes.push_back(std::move(nodes));
        sample.trees.push_back(std::move(trees));
    }
    return sample;
}

}  // namespace gids
