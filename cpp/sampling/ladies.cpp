// LADIES: all in-edges of a layer compete, a fixed number of source nodes is kept, and their edges are reweighted.
#include "ladies.cuh"

#include <algorithm>

#include "errors.hpp"
#include "sampling/neighbor.hpp"
#include "weighted.cuh"

namespace gids {
namespace {

// The in-edges of one relation with the part of its destination that each carries. A layer may have far more of them
// than are kept, so they are held once: edges.src has candidates, whose set knows the nodes.
struct Candidates {
    EdgeList edges;               // src: number of the source among the candidates of its type
    Array<uint64_t> parts;        // by edge; empty where all are 1
    std::vector<uint64_t> whole;  // by destination: sum of the parts

    uint64_t part(int64_t edge) const { return parts.size() > 0 ? parts[edge] : 1; }
};

Candidates collect(const Topology& topology, const Relation& relation, const int64_t* nodes, int64_t num_dst,
                   bool edge_ids, bool weighted, const ExcludedEdges& excluded, NodeSet& candidates, ThreadPool* pool) {
    Candidates found;
    found.edges = find_edges(topology, relation, nodes, num_dst, kAllEdges, edge_ids || weighted, pool);
    drop_excluded(excluded, nodes, found.edges);
    const int64_t num_edges = found.edges.num_edges();
    candidates.expect(num_edges);
    candidates.add(found.edges.src.data(), num_edges);
    found.whole.resize(static_cast<size_t>(num_dst));
    Array<float> weights;
    if (weighted) {
        found.parts = Array<uint64_t>(num_edges);
        weights = Array<float>(num_edges);
        const int64_t* positions = found.edges.positions.data();
        if (relation.weights != nullptr)
            for (int64_t e = 0; e < num_edges; ++e) weights[e] = relation.weights[positions[e]];
        else if (num_edges > 0) relation.read_weights(positions, num_edges, weights.data());
    }
    for (int64_t i = 0; i < num_dst; ++i) {
        const int64_t from = found.edges.indptr[i];
        const int64_t degree = found.edges.indptr[i + 1] - from;
        uint64_t whole = static_cast<uint64_t>(degree);
        if (weighted && degree > 0) {
            const float* list = weights.data() + from;
            const float largest = largest_weight(Serial{}, list, degree);
            for (int64_t e = 0; e < degree; ++e) found.parts[from + e] = fixed_weight(list[e], largest);
            whole = fixed_sum(Serial{}, list, degree, largest);
        }
        found.whole[static_cast<size_t>(i)] = whole;
    }
    return found;
}

void add_masses(const Candidates& found, int bits, const Array<uint64_t>& masses) {
    for (int64_t i = 0; i < found.edges.num_dst(); ++i)
        for (int64_t e = found.edges.indptr[i]; e < found.edges.indptr[i + 1]; ++e)
            if (found.part(e) > 0)
                masses[found.edges.src[e]] += edge_mass(found.part(e), found.whole[static_cast<size_t>(i)], bits);
}

// Marks the earliest `size` candidates and returns how many they are. Equal times go by the id that a node had first.
int64_t choose_candidates(const NodeSet& candidates, const int64_t* origins, const Array<uint64_t>& masses,
                          int64_t size, RandomKey key, std::vector<bool>& kept) {
    struct Racer {
        double time;
        int64_t node;
        int64_t number;
        bool operator<(const Racer& other) const {
            return time < other.time || (time == other.time && node < other.node);
        }
    };
    const Array<Racer> racers(masses.size());
    int64_t racing = 0;
    for (int64_t c = 0; c < masses.size(); ++c) {
        if (masses[c] == 0) continue;
        const int64_t own = candidates.nodes()[c], node = origins != nullptr ? origins[own] : own;
        racers[racing++] = {candidate_time(key, static_cast<uint64_t>(node), masses[c]), node, c};
    }
    const int64_t chosen = std::min(size, racing);
    std::nth_element(racers.begin(), racers.begin() + chosen, racers.begin() + racing);
    for (int64_t i = 0; i < chosen; ++i) kept[static_cast<size_t>(racers[i].number)] = true;
    return chosen;
}

BlockPart keep_edges(const Relation& relation, const Candidates& found, const NodeSet& candidates,
                     const std::vector<bool>& kept, const Array<uint64_t>& masses, uint64_t total_mass, int64_t chosen,
                     bool edge_ids, NodeSet& sources) {
    const EdgeList& edges = found.edges;
    const int64_t num_dst = edges.num_dst();
    const auto keeps = [&](int64_t e) { return kept[static_cast<size_t>(edges.src[e])] && found.part(e) > 0; };
    BlockPart part{Array<int64_t>(num_dst + 1), {}, {}, {}};
    part.indptr[0] = 0;
    for (int64_t i = 0; i < num_dst; ++i) {
        int64_t count = 0;
        for (int64_t e = edges.indptr[i]; e < edges.indptr[i + 1]; ++e) count += keeps(e);
        part.indptr[i + 1] = part.indptr[i] + count;
    }
    const int64_t size = part.indptr[num_dst];
    part.src = Array<int64_t>(size);
    part.weights = Array<float>(size);
    if (edge_ids) part.edge_ids = Array<int64_t>(size);
    std::vector<double> row;
    int64_t next = 0;
    for (int64_t i = 0; i < num_dst; ++i) {
        double sum = 0.0;
        row.clear();
        for (int64_t e = edges.indptr[i]; e < edges.indptr[i + 1]; ++e) {
            if (!keeps(e)) continue;
            const int64_t c = edges.src[e];
            row.push_back(
                importance(found.part(e), found.whole[static_cast<size_t>(i)], masses[c], total_mass, chosen));
            sum += row.back();
            part.src[next] = candidates.nodes()[c];
            if (edge_ids) part.edge_ids[next] = edges.positions[e];
            ++next;
        }
        for (size_t j = 0; j < row.size(); ++j)
            part.weights[part.indptr[i] + static_cast<int64_t>(j)] = static_cast<float>(row[j] / sum);
    }
    sources.add(part.src.data(), size);
    if (edge_ids) name_edges(relation, part.edge_ids.data(), size);
    return part;
}

}  // namespace

Sampled sample_ladies(Topology& topology, const LadiesOptions& options, const SampleRequest& request,
                      ThreadPool* pool) {
    Sampled sample;
    std::vector<NodeSet> sets = number_seeds(topology, request.seeds, sample);
    const size_t num_layers = options.sizes.size();
    const size_t num_types = sets.size();
    sample.blocks.resize(num_layers);
    for (size_t hop = 0; hop < num_layers; ++hop) {
        SampledBlock& block = sample.blocks[num_layers - 1 - hop];
        block.num_dst = sizes(sets);
        std::vector<NodeSet> candidates;
        candidates.reserve(num_types);
        for (size_t t = 0; t < num_types; ++t) candidates.emplace_back(topology.tables, topology.num_nodes[t]);
        std::vector<Candidates> found;
        int64_t rows = 0;
        for (size_t r = 0; r < topology.relations.size(); ++r) {
            const Relation& relation = topology.relations[r];
            const auto dst = static_cast<size_t>(relation.dst_type);
            found.push_back(collect(topology, relation, sets[dst].nodes(), block.num_dst[dst], options.edge_ids,
                                    options.weighted, request.excluded_of(r),
                                    candidates[static_cast<size_t>(relation.src_type)], pool));
            rows += block.num_dst[dst];
        }
        std::vector<Array<uint64_t>> masses(num_types);
        std::vector<std::vector<bool>> kept(num_types);
        std::vector<uint64_t> total(num_types, 0);
        std::vector<int64_t> chosen(num_types, 0);
        for (size_t t = 0; t < num_types; ++t) {
            masses[t] = Array<uint64_t>(candidates[t].size());
            std::fill(masses[t].begin(), masses[t].end(), 0);
            kept[t].resize(static_cast<size_t>(masses[t].size()), false);
        }
        for (size_t r = 0; r < found.size(); ++r)
            add_masses(found[r], mass_bits(rows), masses[static_cast<size_t>(topology.relations[r].src_type)]);
        for (size_t t = 0; t < num_types; ++t) {
            for (const uint64_t mass : masses[t]) total[t] += mass;
            chosen[t] =
                choose_candidates(candidates[t], topology.origins_of(t), masses[t], options.sizes[num_layers - 1 - hop],
                                  request.key.layer(hop, t, Stream::kLayer), kept[t]);
            // Destinations are among the sources in any case, so the edges between them are kept too.
            Array<int64_t> own(block.num_dst[t]);
            std::copy_n(sets[t].nodes(), own.size(), own.data());
            candidates[t].find(own.data(), own.size());
            for (const int64_t c : own)
                if (c >= 0) kept[t][static_cast<size_t>(c)] = true;
        }
        for (size_t r = 0; r < found.size(); ++r) {
            const auto src = static_cast<size_t>(topology.relations[r].src_type);
            block.parts.push_back(keep_edges(topology.relations[r], found[r], candidates[src], kept[src], masses[src],
                                             total[src], std::max<int64_t>(chosen[src], 1), options.edge_ids,
                                             sets[src]));
            found[r] = {};  // as much memory again as all that is kept
        }
        block.num_src = sizes(sets);
    }
    for (NodeSet& set : sets) sample.nodes.push_back(set.take_nodes());
    return sample;
}

}  // namespace gids
