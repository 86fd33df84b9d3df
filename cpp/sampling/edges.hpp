// Two steps that every sampler shares: choose edge positions, then resolve them to source nodes, wherever those are.
#pragma once

#include <cstdint>
#include <vector>

#include "labor.cuh"
#include "sampling/buffer.hpp"
#include "sampling/request.hpp"
#include "sampling/topology.hpp"
#include "thread_pool.hpp"

namespace gids {

// How one node's edges are chosen.
struct Draw {
    int64_t fanout;  // -1: all
    bool replace;
    bool weighted;
    RandomKey key;
    const LaborKey* labor = nullptr;  // by variates of the sources, see labor.cuh; key is then not used
};

constexpr Draw kAllEdges{-1, false, false, {0, 0}};

// In-edges of destination i are [indptr[i], indptr[i + 1]).
struct EdgeList {
    Array<int64_t> indptr;
    Array<int64_t> positions;  // empty unless asked for
    Array<int64_t> src;        // node ids

    int64_t num_dst() const { return indptr.size() - 1; }
    int64_t num_edges() const { return indptr[num_dst()]; }
};

// What was learnt about the destinations while counting.
struct Frontier {
    Array<int64_t> first;  // position of the first in-edge
    Array<int64_t> degree;
    Array<int64_t> positive;  // edges of positive weight; empty where weights play no role
};

// Fills indptr[0 .. num_dst] and returns what choosing needs. Weights must be in memory.
Frontier count_edges(const Relation& relation, const int64_t* nodes, int64_t num_dst, const Draw& draw,
                     ThreadPool* pool, int64_t* indptr);

// Destination ranges [bounds[p], bounds[p + 1]) of about 4096 edges each.
std::vector<int64_t> cut_pieces(const Array<int64_t>& indptr);

// Chooses the positions of one destination at a time, from what was counted.
class Chooser {
public:
    Chooser(const Relation& relation, const Frontier& frontier, const int64_t* nodes, const int64_t* indptr,
            const Draw& draw)
        : relation_(relation), frontier_(frontier), nodes_(nodes), indptr_(indptr), draw_(draw) {}

    void choose(int64_t i, int64_t* out, std::vector<double>& scratch) const;
    // `count` of them by these variates of the sources, whatever the draw's own are.
    void choose_for(const LaborKey& labor, int64_t i, int64_t count, int64_t* out, std::vector<double>& scratch) const;
    // Before a list is looked at whole, which only LABOR does.
    void prefetch_list(int64_t i) const;
    const int64_t* indptr() const { return indptr_; }

private:
    const Relation& relation_;
    const Frontier& frontier_;
    const int64_t* nodes_;
    const int64_t* indptr_;
    Draw draw_;
};

// Chooses and resolves the edges of all destinations.
EdgeList find_edges(const Topology& topology, const Relation& relation, const int64_t* nodes, int64_t num_dst,
                    const Draw& draw, bool positions, ThreadPool* pool);

// Keeps the edges for which keep(destination, edge) holds, in place.
template <class Keep>
void filter_edges(EdgeList& edges, const Keep& keep) {
    int64_t kept = 0;
    int64_t from = 0;
    for (int64_t i = 0; i < edges.num_dst(); ++i) {
        const int64_t to = edges.indptr[i + 1];
        for (int64_t e = from; e < to; ++e) {
            if (!keep(i, e)) continue;
            edges.src[kept] = edges.src[e];
            if (edges.positions.size() > 0) edges.positions[kept] = edges.positions[e];
            ++kept;
        }
        edges.indptr[i + 1] = kept;
        from = to;
    }
    const bool positions = edges.positions.size() > 0;
    edges.src.set_size(kept);
    edges.src.fit();
    if (!positions) return;
    edges.positions.set_size(kept);
    edges.positions.fit();
}

// Replaces edge positions by edge ids where the relation has them.
void name_edges(const Relation& relation, int64_t* positions, int64_t count);

// Throws DatasetError where a neighbour is not a node.
void check_neighbors(const Relation& relation, const int64_t* nodes, int64_t count, int64_t num_src);

}  // namespace gids
