// The beginning of every sample.
#include "sampling/sample.hpp"

#include <algorithm>
#include <string>

#include "errors.hpp"

namespace gids {

std::vector<NodeSet> number_seeds(Topology& topology, const Seeds& seeds, Sampled& sample) {
    std::vector<NodeSet> sets;
    sets.reserve(topology.num_nodes.size());
    for (size_t t = 0; t < topology.num_nodes.size(); ++t) {
        sets.emplace_back(topology.tables, topology.num_nodes[t]);
        for (const int64_t seed : seeds[t])
            if (seed < 0 || seed >= topology.num_nodes[t])
                throw ConfigError("seeds of " + topology.node_types[t] + " must be in [0, " +
                                  std::to_string(topology.num_nodes[t]) + ") (got " + std::to_string(seed) + ")");
        Array<int64_t> rows(static_cast<int64_t>(seeds[t].size()));
        std::copy(seeds[t].begin(), seeds[t].end(), rows.data());
        sets[t].add(rows.data(), rows.size());
        sample.seed_rows.push_back(std::move(rows));
    }
    return sets;
}

std::vector<int64_t> sizes(const std::vector<NodeSet>& sets) {
    std::vector<int64_t> result;
    result.reserve(sets.size());
    for (const NodeSet& set : sets) result.push_back(set.size());
    return result;
}

}  // namespace gids
