// The layer loop of neighbour sampling. In memory, choosing, gathering and numbering are one pass over pieces that stay
// in the cache; from disk they are three passes with one read between them.
#include "sampling/neighbor.hpp"

#include <algorithm>
#include <span>
#include <string>

#include "errors.hpp"
#include "sample.cuh"
#include "sampling/labor.hpp"
#include "sampling/pipeline.hpp"

namespace gids {
namespace {

constexpr int64_t kListsAhead = 4;    // destinations between prefetch and use of a list that is looked at whole
constexpr int64_t kNodesBehind = 16;  // destinations between choosing an edge and reading its source

// How a layer draws from a relation, and the edges of its first destinations, as far as they are known. LABOR looks at
// whole lists, and the destinations of a layer are the first ones of the next: while a list is at hand, it chooses for
// all layers that will ask for it.
struct Layer {
    Draw draw{};
    LaborKey labor{};  // draw.labor, where there is one
    std::vector<int64_t> indptr;
    Array<int64_t> positions;

    int64_t known() const { return indptr.empty() ? 0 : static_cast<int64_t>(indptr.size()) - 1; }
};

// The layer that is sampled and those after it; none after it where layers do not share lists.
using Layers = std::span<Layer>;

// Makes room for what the layers after the first choose for destinations that it sees first.
void make_room(Layers layers, const Frontier& frontier, int64_t num_dst) {
    const int64_t known = layers.front().known();
    for (Layer& layer : layers.subspan(1)) {
        if (layer.indptr.empty()) layer.indptr.push_back(0);
        for (int64_t i = known; i < num_dst; ++i) {
            const int64_t eligible = layer.draw.weighted ? frontier.positive[i] : frontier.degree[i];
            layer.indptr.push_back(layer.indptr.back() + sampled_count(eligible, layer.draw.fanout, false));
        }
        layer.positions.reserve(layer.indptr.back());
        layer.positions.set_size(layer.indptr.back());
    }
}

// Chooses the edges of destinations [begin, end) and gathers their sources a little later. positions and out begin at
// the first edge of `begin` and may be the same array: each position is read before it is overwritten.
template <class Index>
void choose_and_gather(const Chooser& chooser, Layers layers, const Index* indices, int64_t begin, int64_t end,
                       int64_t* positions, int64_t* out) {
    const Layer& layer = layers.front();
    const int64_t known = layer.known();
    const int64_t* indptr = chooser.indptr();
    const int64_t origin = indptr[begin];
    std::vector<double> scratch;
    int64_t gathered = 0;
    const auto gather_until = [&](int64_t until) {
        for (; gathered < until; ++gathered) out[gathered] = static_cast<int64_t>(indices[positions[gathered]]);
    };
    for (int64_t i = begin; i < end; ++i) {
        const int64_t from = indptr[i] - origin;
        if (i + kListsAhead < end && i + kListsAhead >= known) chooser.prefetch_list(i + kListsAhead);
        if (i < known) {
            const int64_t* chosen = layer.positions.data() + layer.indptr[static_cast<size_t>(i)];
            std::copy(chosen, chosen + (indptr[i + 1] - indptr[i]), positions + from);
        } else {
            chooser.choose(i, positions + from, scratch);
            for (Layer& later : layers.subspan(1)) {
                const int64_t at = later.indptr[static_cast<size_t>(i)];
                chooser.choose_for(later.labor, i, later.indptr[static_cast<size_t>(i) + 1] - at,
                                   later.positions.data() + at, scratch);
            }
        }
        for (int64_t e = from; e < indptr[i + 1] - origin; ++e) __builtin_prefetch(&indices[positions[e]]);
        if (i - begin >= kNodesBehind) gather_until(indptr[i - kNodesBehind + 1] - origin);
    }
    gather_until(indptr[end] - origin);
}

// Nodes whose edges are drawn: the first of a set, which may move while others are added to it, or a list of their own.
class Destinations {
public:
    Destinations(const NodeSet& set, int64_t count) : set_(&set), count_(count) {}
    explicit Destinations(const Array<int64_t>& list) : list_(list.data()), count_(list.size()) {}

    const int64_t* nodes() const { return set_ != nullptr ? set_->nodes() : list_; }
    int64_t count() const { return count_; }

private:
    const NodeSet* set_ = nullptr;
    const int64_t* list_ = nullptr;
    int64_t count_;
};

BlockPart sample_in_memory(const Topology& topology, const Relation& relation, Layers layers, bool edge_ids,
                           const Destinations& destinations, NodeSet& sources, ThreadPool* pool) {
    const Draw& draw = layers.front().draw;
    const int64_t num_dst = destinations.count();
    BlockPart part{Array<int64_t>(num_dst + 1), {}, {}, {}};
    const Frontier frontier = count_edges(relation, destinations.nodes(), num_dst, draw, pool, part.indptr.data());
    const int64_t num_edges = part.indptr[num_dst];
    part.src = Array<int64_t>(num_edges);
    if (edge_ids) part.edge_ids = Array<int64_t>(num_edges);
    sources.expect(num_edges);  // from here on destinations.nodes() does not move, even where it is the same set
    const Chooser chooser(relation, frontier, destinations.nodes(), part.indptr.data(), draw);
    make_room(layers, frontier, num_dst);
    const std::vector<int64_t> bounds = cut_pieces(part.indptr);
    const auto edges_of = [&](int64_t piece) {
        const int64_t from = part.indptr[bounds[static_cast<size_t>(piece)]];
        return std::pair(from, part.indptr[bounds[static_cast<size_t>(piece) + 1]] - from);
    };
    produce_in_parallel_consume_in_order(
        pool, static_cast<int64_t>(bounds.size()) - 1,
        [&](int64_t piece) {
            const auto [from, count] = edges_of(piece);
            const int64_t begin = bounds[static_cast<size_t>(piece)];
            const int64_t end = bounds[static_cast<size_t>(piece) + 1];
            int64_t* out = part.src.data() + from;
            int64_t* positions = edge_ids ? part.edge_ids.data() + from : out;
            if (relation.indices32 != nullptr)
                choose_and_gather(chooser, layers, relation.indices32, begin, end, positions, out);
            else choose_and_gather(chooser, layers, relation.indices64, begin, end, positions, out);
            check_neighbors(relation, out, count, topology.num_sources(relation));
            if (edge_ids) name_edges(relation, positions, count);
        },
        [&](int64_t piece) {
            const auto [from, count] = edges_of(piece);
            sources.add(part.src.data() + from, count);
        });
    return part;
}

BlockPart sample_listed(const Topology& topology, const Relation& relation, const Draw& draw, bool edge_ids,
                        const ExcludedEdges& excluded, const Destinations& destinations, NodeSet& sources,
                        ThreadPool* pool) {
    EdgeList edges = find_edges(topology, relation, destinations.nodes(), destinations.count(), draw, edge_ids, pool);
    drop_excluded(excluded, destinations.nodes(), edges);
    sources.expect(edges.num_edges());
    sources.add(edges.src.data(), edges.num_edges());
    if (edge_ids) name_edges(relation, edges.positions.data(), edges.num_edges());
    return {std::move(edges.indptr), std::move(edges.src), std::move(edges.positions), {}};
}

// Choosing and gathering are one pass over lists in memory.
bool is_fused(const Relation& relation, const Draw& draw, const ExcludedEdges& excluded) {
    return relation.in_memory() && excluded.empty() && !(draw.weighted && !relation.weights);
}

BlockPart sample_part(const Topology& topology, const Relation& relation, Layers layers, bool edge_ids,
                      const ExcludedEdges& excluded, const Destinations& destinations, NodeSet& sources,
                      ThreadPool* pool) {
    const Draw& draw = layers.front().draw;
    return is_fused(relation, draw, excluded)
               ? sample_in_memory(topology, relation, layers, edge_ids, destinations, sources, pool)
               : sample_listed(topology, relation, draw, edge_ids, excluded, destinations, sources, pool);
}

// The layers of a relation, in the order of the hops.
std::vector<Layer> layers_of(const Topology& topology, const NeighborOptions& options, const SampleRequest& request,
                             size_t r) {
    const auto src = static_cast<size_t>(topology.relations[r].src_type);
    const size_t num_layers = options.fanouts.size();
    std::vector<Layer> layers(num_layers);
    for (size_t hop = 0; hop < num_layers; ++hop) {
        const int64_t fanout = options.fanouts[num_layers - 1 - hop][r];
        layers[hop].draw = {fanout, options.replace && fanout >= 0, options.weighted,
                            request.key.layer(options.first_hop + hop, r, Stream::kNeighbors)};
        if (!options.labor) continue;
        layers[hop].labor =
            labor_key(request.key.seed, request.key.epoch, request.key.batch, options.labor->batch_dependency,
                      static_cast<uint32_t>(options.labor->layer_dependency ? 0 : hop), static_cast<uint32_t>(src),
                      topology.origins_of(src));
        layers[hop].draw.labor = &layers[hop].labor;
    }
    return layers;
}

}  // namespace

void drop_excluded(const ExcludedEdges& excluded, const int64_t* nodes, EdgeList& edges) {
    if (excluded.empty()) return;
    filter_edges(edges, [&](int64_t i, int64_t e) {
        return !contains_pair(excluded.data(), static_cast<int64_t>(excluded.size()), {nodes[i], edges.src[e]});
    });
}

Sampled sample_neighbors(Topology& topology, const NeighborOptions& options, const SampleRequest& request,
                         ThreadPool* pool) {
    Sampled sample;
    std::vector<NodeSet> sets = number_seeds(topology, request.seeds, sample);
    const size_t num_layers = options.fanouts.size();
    sample.blocks.resize(num_layers);
    std::vector<std::vector<Layer>> layers;
    for (size_t r = 0; r < topology.relations.size(); ++r) layers.push_back(layers_of(topology, options, request, r));
    for (size_t hop = 0; hop < num_layers; ++hop) {
        SampledBlock& block = sample.blocks[num_layers - 1 - hop];
        block.num_dst = sizes(sets);
        for (size_t r = 0; r < topology.relations.size(); ++r) {
            const Relation& relation = topology.relations[r];
            const auto dst = static_cast<size_t>(relation.dst_type);
            const Draw& draw = layers[r][hop].draw;
            const ExcludedEdges& excluded = request.excluded_of(r);
            NodeSet& sources = sets[static_cast<size_t>(relation.src_type)];
            if (options.labor && options.labor->importance > 0) {
                block.parts.push_back(sample_by_importance(topology, relation, draw, options.labor->importance,
                                                           options.edge_ids, excluded, sets[dst].nodes(),
                                                           block.num_dst[dst], sources, pool));
                continue;
            }
            const bool shared = options.labor && is_fused(relation, draw, excluded);
            const Layers from_here = Layers(layers[r]).subspan(hop, shared ? std::dynamic_extent : 1);
            block.parts.push_back(sample_part(topology, relation, from_here, options.edge_ids, excluded,
                                              Destinations(sets[dst], block.num_dst[dst]), sources, pool));
        }
        block.num_src = sizes(sets);
    }
    for (NodeSet& set : sets) sample.nodes.push_back(set.take_nodes());
    return sample;
}

Sampled expand_nodes(Topology& topology, const HopOptions& options, const SampleKey& key, const Seeds& nodes,
                     const Seeds& places, ThreadPool* pool) {
    Sampled sample;
    std::vector<NodeSet> sets = number_seeds(topology, nodes, sample);
    std::vector<Array<int64_t>> expanded;
    SampledBlock block;
    for (size_t t = 0; t < sets.size(); ++t) {
        const auto known = static_cast<int64_t>(nodes[t].size());
        if (sets[t].size() != known)
            throw ConfigError("nodes of " + topology.node_types[t] + " must be distinct (got " +
                              std::to_string(known - sets[t].size()) + " of " + std::to_string(known) + " again)");
        Array<int64_t>& list = expanded.emplace_back(static_cast<int64_t>(places[t].size()));
        for (int64_t i = 0; i < list.size(); ++i) {
            const int64_t place = places[t][static_cast<size_t>(i)];
            if (place < 0 || place >= known)
                throw ConfigError("places of " + topology.node_types[t] + " must be in [0, " + std::to_string(known) +
                                  ") (got " + std::to_string(place) + ")");
            list[i] = nodes[t][static_cast<size_t>(place)];
        }
        block.num_dst.push_back(list.size());
    }
    for (size_t r = 0; r < topology.relations.size(); ++r) {
        const Relation& relation = topology.relations[r];
        const int64_t fanout = options.fanouts[r];
        Layer layer;
        layer.draw = {fanout, options.replace && fanout >= 0, options.weighted, key.layer(0, r, Stream::kNeighbors)};
        const Destinations destinations(expanded[static_cast<size_t>(relation.dst_type)]);
        block.parts.push_back(sample_part(topology, relation, Layers(&layer, 1), true, {}, destinations,
                                          sets[static_cast<size_t>(relation.src_type)], pool));
    }
    block.num_src = sizes(sets);
    sample.blocks.push_back(std::move(block));
    for (NodeSet& set : sets) sample.nodes.push_back(set.take_nodes());
    return sample;
}

}  // namespace gids
