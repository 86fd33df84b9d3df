// ShaDow: a bounded neighbourhood is sampled, and the block has every edge of the graph between its nodes.
#include <algorithm>

#include "sampling/neighbor.hpp"

namespace gids {

Sampled sample_shadow(Topology& topology, const NeighborOptions& options, const SampleRequest& request,
                      ThreadPool* pool) {
    NeighborOptions walk = options;
    walk.edge_ids = false;
    Sampled sample = sample_neighbors(topology, walk, request, pool);
    std::vector<NodeSet> sets;
    sets.reserve(topology.num_nodes.size());
    SampledBlock block;
    for (size_t t = 0; t < topology.num_nodes.size(); ++t) {
        sets.emplace_back(topology.tables, topology.num_nodes[t]);
        Array<int64_t> ids(sample.nodes[t].size());
        std::copy(sample.nodes[t].begin(), sample.nodes[t].end(), ids.begin());
        sets[t].add(ids.data(), ids.size());
    }
    block.num_dst = block.num_src = sizes(sets);
    for (size_t r = 0; r < topology.relations.size(); ++r) {
        const Relation& relation = topology.relations[r];
        const auto dst = static_cast<size_t>(relation.dst_type);
        EdgeList edges =
            find_edges(topology, relation, sets[dst].nodes(), block.num_dst[dst], kAllEdges, options.edge_ids, pool);
        drop_excluded(request.excluded_of(r), sets[dst].nodes(), edges);
        sets[static_cast<size_t>(relation.src_type)].find(edges.src.data(), edges.num_edges());
        filter_edges(edges, [&](int64_t, int64_t e) { return edges.src[e] >= 0; });
        if (options.edge_ids) name_edges(relation, edges.positions.data(), edges.num_edges());
        block.parts.push_back({std::move(edges.indptr), std::move(edges.src), std::move(edges.positions), {}});
    }
    sample.blocks.clear();
    sample.blocks.push_back(std::move(block));
    return sample;
}

}  // namespace gids
