// LABOR on the CPU: the variates of many sources at once, and the variant that weighs sources by how many they serve.
#pragma once

#include <cstdint>
#include <vector>

#include "labor.cuh"
#include "sampling/edges.hpp"
#include "sampling/sample.hpp"

namespace gids {

// choose_labor() of one thread, with the variates of several sources computed side by side.
template <class Index>
void choose_labor_fast(const LaborKey& key, int64_t first, int64_t degree, int64_t eligible, int64_t count,
                       const Index* indices, const float* weights, std::vector<double>& scratch, int64_t* out);

// Keeps every in-edge with a chance of its own (Poisson): c of its destination times pi of its source, where `rounds`
// rounds have raised pi to the largest c that asks for the source. Edges carry weights that sum to 1 per destination.
BlockPart sample_by_importance(const Topology& topology, const Relation& relation, const Draw& draw, int64_t rounds,
                               bool edge_ids, const ExcludedEdges& excluded, const int64_t* nodes, int64_t num_dst,
                               NodeSet& sources, ThreadPool* pool);

}  // namespace gids
