// Counting, choosing and resolving edges. Random accesses are prefetched a fixed distance ahead.
#include "sampling/edges.hpp"

#include <algorithm>
#include <cstddef>

#include "errors.hpp"
#include "sample.cuh"
#include "sampling/labor.hpp"
#include "weighted.cuh"

namespace gids {
namespace {

constexpr int64_t kPieceEdges = 4096;       // edges that one thread handles at a time: 32 KiB of ids
constexpr int64_t kCountAhead = 32;         // destinations between prefetch and use of an offset
constexpr int64_t kGatherAhead = 64;        // edges between prefetch and use of a neighbour
constexpr int64_t kReadEdges = 4 << 20;     // neighbours asked of the reader at a time
constexpr int64_t kListBytes = 4096;        // of a list, fetched ahead: the processor sees the rest coming
constexpr int64_t kWindow = 64;             // destinations whose hot lists are looked up together
constexpr int64_t kCold = INT64_MIN;        // not among the hot lists
constexpr int64_t kSliceWeights = 4 << 20;  // weights read from disk at a time

template <class Index>
void gather(const Index* indices, const int64_t* positions, int64_t count, int64_t* out) {
    for (int64_t e = 0; e < count; ++e) {
        if (e + kGatherAhead < count) __builtin_prefetch(&indices[positions[e + kGatherAhead]]);
        out[e] = static_cast<int64_t>(indices[positions[e]]);
    }
}

// What to add to an edge position of each node to find it in the hot lists; kCold where it is not there. In steps over
// a few nodes at a time, so that each step's memory is on its way while the one before runs.
void find_hot(const Relation& relation, const HotLists& hot, const int64_t* nodes, int64_t count, int64_t* shifts) {
    for (int64_t i = 0; i < count; ++i) {
        hot.prefetch(nodes[i]);
        relation.prefetch_range(nodes[i]);
    }
    for (int64_t i = 0; i < count; ++i) {
        shifts[i] = hot.contains(nodes[i]) ? hot.rank(nodes[i]) : kCold;
        if (shifts[i] != kCold) hot.prefetch_start(shifts[i]);
    }
    for (int64_t i = 0; i < count; ++i)
        if (shifts[i] != kCold) shifts[i] = hot.start_of_rank(shifts[i]) - relation.range(nodes[i]).first;
}

// Copies what hot lists have and reads the rest in few large requests: one pass over the file serves a whole layer, as
// far as the reader has memory for it. positions and edges.src may be the same array.
void resolve_on_disk(const Relation& relation, const int64_t* nodes, const int64_t* positions, EdgeList& edges) {
    const HotLists* hot = relation.hot_lists();
    if (hot == nullptr) {
        if (edges.num_edges() > 0) relation.read(positions, edges.num_edges(), edges.src.data());
        return;
    }
    // What hot lists have is put aside and what they have not moves together, so that it is read in place: memory for a
    // second copy of a layer's positions would come on top of what the topology was given.
    Array<int64_t> aside;
    Array<int64_t> shifts(std::min(edges.num_dst(), kReadEdges));
    for (int64_t begin = 0, end = 0; begin < edges.num_dst(); begin = end) {
        const auto is_cold = [&](int64_t i) { return shifts[i - begin] == kCold; };
        int64_t cold = 0;
        for (end = begin; end < edges.num_dst() && end - begin < kReadEdges && cold < kReadEdges;) {
            const int64_t window = std::min({end + kWindow, edges.num_dst(), begin + kReadEdges});
            find_hot(relation, *hot, nodes + end, window - end, shifts.data() + (end - begin));
            for (; end < window; ++end)
                if (is_cold(end)) cold += edges.indptr[end + 1] - edges.indptr[end];
        }
        int64_t* const together = edges.src.data() + edges.indptr[begin];
        aside.reserve(edges.indptr[end] - edges.indptr[begin] - cold);
        int64_t* next = together;
        int64_t* put = aside.data();
        for (int64_t first = begin; first < end; first += kWindow) {
            const int64_t last = std::min(first + kWindow, end);
            for (int64_t i = first; i < last; ++i)
                if (!is_cold(i))
                    for (int64_t e = edges.indptr[i]; e < edges.indptr[i + 1]; ++e)
                        hot->prefetch_value(positions[e] + shifts[i - begin]);
            for (int64_t i = first; i < last; ++i) {
                const int64_t from = edges.indptr[i], to = edges.indptr[i + 1];
                if (is_cold(i)) next = std::copy(positions + from, positions + to, next);
                else
                    for (int64_t e = from; e < to; ++e) *put++ = hot->value(positions[e] + shifts[i - begin]);
            }
        }
        if (cold > 0) relation.read(together, cold, together);
        for (int64_t i = end; i-- > begin;) {  // from the end on: what is together lies before where it belongs
            const int64_t to = edges.indptr[i + 1], degree = to - edges.indptr[i];
            int64_t*& value = is_cold(i) ? next : put;
            std::copy_backward(value - degree, value, edges.src.data() + to);
            value -= degree;
        }
    }
}

// Weights are on disk: whole lists are read slice by slice, and edges are chosen while their weights are at hand.
void choose_with_read_weights(const Relation& relation, const int64_t* nodes, const Draw& draw, EdgeList& edges) {
    const int64_t num_dst = edges.num_dst();
    std::vector<double> times;
    Array<int64_t> wanted;
    Array<float> weights;
    edges.indptr[0] = 0;
    for (int64_t begin = 0, end = 0; begin < num_dst; begin = end) {
        int64_t total = 0;
        for (end = begin; end < num_dst && (end == begin || total < kSliceWeights); ++end)
            total += relation.range(nodes[end]).degree;
        wanted.reserve(total);
        weights.reserve(total);
        int64_t at = 0;
        for (int64_t i = begin; i < end; ++i) {
            const auto [first, degree] = relation.range(nodes[i]);
            for (int64_t p = first; p < first + degree; ++p) wanted[at++] = p;
        }
        if (total > 0) relation.read_weights(wanted.data(), total, weights.data());
        const float* list = weights.data();
        for (int64_t i = begin; i < end; ++i) {
            const auto [first, degree] = relation.range(nodes[i]);
            const int64_t positive = count_positive(Serial{}, list, degree);
            const int64_t count = sampled_count(positive, draw.fanout, draw.replace);
            const int64_t from = edges.indptr[i];
            edges.positions.set_size(from);
            edges.positions.reserve(from + count);
            times.resize(static_cast<size_t>(std::max<int64_t>(count, 1)));
            choose_weighted(Serial{}, draw.key, relation.random_name(nodes[i]), first, degree, positive, count,
                            draw.replace, list, times.data(), edges.positions.data() + from);
            edges.indptr[i + 1] = from + count;
            list += degree;
        }
    }
    edges.positions.set_size(edges.num_edges());
}

// Edges are chosen by their sources, and those are on disk: whole lists are read slice by slice.
EdgeList choose_from_lists(const Topology& topology, const Relation& relation, const int64_t* nodes, int64_t num_dst,
                           const Draw& draw) {
    EdgeList edges{Array<int64_t>(num_dst + 1), {}, {}};
    std::vector<double> scratch;
    Array<float> weights;
    Array<int64_t> chosen;
    edges.indptr[0] = 0;
    for (int64_t begin = 0, end = 0; begin < num_dst; begin = end) {
        int64_t total = 0;
        for (end = begin; end < num_dst && (end == begin || total < kSliceWeights); ++end)
            total += relation.range(nodes[end]).degree;
        const EdgeList all = find_edges(topology, relation, nodes + begin, end - begin, kAllEdges, true, nullptr);
        if (draw.weighted && total > 0) {
            weights.reserve(total);
            if (relation.weights == nullptr) relation.read_weights(all.positions.data(), total, weights.data());
            else
                for (int64_t e = 0; e < total; ++e) weights[e] = relation.weights[all.positions[e]];
        }
        for (int64_t i = begin; i < end; ++i) {
            const int64_t from = all.indptr[i - begin];
            const int64_t degree = all.indptr[i - begin + 1] - from;
            const float* list = draw.weighted ? weights.data() + from : nullptr;
            const int64_t eligible = draw.weighted ? count_positive(Serial{}, list, degree) : degree;
            const int64_t count = sampled_count(eligible, draw.fanout, false);
            chosen.reserve(count);
            choose_labor_fast(*draw.labor, from, degree, eligible, count, all.src.data() + from, list, scratch,
                              chosen.data());
            const int64_t at = edges.indptr[i];
            for (auto* array : {&edges.positions, &edges.src}) {
                array->set_size(at);
                if (at + count > array->capacity()) array->reserve(std::max(at + count, 2 * at));
            }
            for (int64_t k = 0; k < count; ++k) {
                edges.positions[at + k] = all.positions[chosen[k]];
                edges.src[at + k] = all.src[chosen[k]];
            }
            edges.indptr[i + 1] = at + count;
        }
    }
    edges.positions.set_size(edges.num_edges());
    edges.src.set_size(edges.num_edges());
    edges.src.fit();
    return edges;
}

}  // namespace

Frontier count_edges(const Relation& relation, const int64_t* nodes, int64_t num_dst, const Draw& draw,
                     ThreadPool* pool, int64_t* indptr) {
    Frontier frontier{Array<int64_t>(num_dst), Array<int64_t>(num_dst), {}};
    if (draw.weighted) frontier.positive = Array<int64_t>(num_dst);
    for_pieces(pool, num_dst, 8192, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
            if (i + kCountAhead < end) relation.prefetch_range(nodes[i + kCountAhead]);
            const auto [first, degree] = relation.range(nodes[i]);
            frontier.first[i] = first;
            frontier.degree[i] = degree;
            int64_t eligible = degree;
            if (draw.weighted)
                eligible = frontier.positive[i] = count_positive(Serial{}, relation.weights + first, degree);
            indptr[i + 1] = sampled_count(eligible, draw.fanout, draw.replace);
        }
    });
    indptr[0] = 0;
    for (int64_t i = 0; i < num_dst; ++i) indptr[i + 1] += indptr[i];
    return frontier;
}

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

void Chooser::prefetch_list(int64_t i) const {
    if (draw_.labor == nullptr) return;
    const int64_t first = frontier_.first[i];
    const auto* list = relation_.indices32 != nullptr ? reinterpret_cast<const std::byte*>(relation_.indices32 + first)
                                                      : reinterpret_cast<const std::byte*>(relation_.indices64 + first);
    const int64_t bytes = frontier_.degree[i] * (relation_.indices32 != nullptr ? 4 : 8);
    for (int64_t at = 0; at < std::min(bytes, kListBytes); at += 64) __builtin_prefetch(list + at);
}

void Chooser::choose(int64_t i, int64_t* out, std::vector<double>& scratch) const {
    const int64_t count = indptr_[i + 1] - indptr_[i];
    const int64_t first = frontier_.first[i];
    const uint64_t node = relation_.random_name(nodes_[i]);
    if (draw_.labor != nullptr) return choose_for(*draw_.labor, i, count, out, scratch);
    if (!draw_.weighted) {
        choose_uniform(Serial{}, draw_.key, node, first, frontier_.degree[i], count, draw_.replace, out);
        return;
    }
    scratch.resize(static_cast<size_t>(std::max<int64_t>(count, 1)));
    choose_weighted(Serial{}, draw_.key, node, first, frontier_.degree[i], frontier_.positive[i], count, draw_.replace,
                    relation_.weights + first, scratch.data(), out);
}

void Chooser::choose_for(const LaborKey& labor, int64_t i, int64_t count, int64_t* out,
                         std::vector<double>& scratch) const {
    const int64_t first = frontier_.first[i];
    const int64_t degree = frontier_.degree[i];
    const int64_t eligible = draw_.weighted ? frontier_.positive[i] : degree;
    const float* weights = draw_.weighted ? relation_.weights + first : nullptr;
    if (relation_.indices32 != nullptr)
        choose_labor_fast(labor, first, degree, eligible, count, relation_.indices32 + first, weights, scratch, out);
    else choose_labor_fast(labor, first, degree, eligible, count, relation_.indices64 + first, weights, scratch, out);
}

EdgeList find_edges(const Topology& topology, const Relation& relation, const int64_t* nodes, int64_t num_dst,
                    const Draw& draw, bool positions, ThreadPool* pool) {
    if (draw.labor != nullptr && (!relation.in_memory() || (draw.weighted && relation.weights == nullptr)))
        return choose_from_lists(topology, relation, nodes, num_dst, draw);
    EdgeList edges{Array<int64_t>(num_dst + 1), {}, {}};
    if (draw.weighted && relation.weights == nullptr) {
        choose_with_read_weights(relation, nodes, draw, edges);
    } else {
        const Frontier frontier = count_edges(relation, nodes, num_dst, draw, pool, edges.indptr.data());
        edges.positions = Array<int64_t>(edges.num_edges());
        const Chooser chooser(relation, frontier, nodes, edges.indptr.data(), draw);
        const std::vector<int64_t> bounds = cut_pieces(edges.indptr);
        for_pieces(pool, static_cast<int64_t>(bounds.size()) - 1, 1, [&](int64_t begin, int64_t end) {
            std::vector<double> scratch;
            for (int64_t i = bounds[static_cast<size_t>(begin)]; i < bounds[static_cast<size_t>(end)]; ++i)
                chooser.choose(i, edges.positions.data() + edges.indptr[i], scratch);
        });
    }
    // Positions that nobody asks for share the array of the sources: each is read before it is overwritten.
    edges.src = positions ? Array<int64_t>(edges.num_edges()) : std::move(edges.positions);
    const int64_t* chosen = positions ? edges.positions.data() : edges.src.data();
    if (relation.in_memory()) {
        for_pieces(pool, edges.num_edges(), kPieceEdges, [&](int64_t begin, int64_t end) {
            int64_t* out = edges.src.data() + begin;
            if (relation.indices32 != nullptr) gather(relation.indices32, chosen + begin, end - begin, out);
            else gather(relation.indices64, chosen + begin, end - begin, out);
        });
    } else {
        resolve_on_disk(relation, nodes, chosen, edges);
    }
    check_neighbors(relation, edges.src.data(), edges.num_edges(), topology.num_sources(relation));
    return edges;
}

void name_edges(const Relation& relation, int64_t* positions, int64_t count) {
    if (count == 0) return;
    if (relation.read_edge_ids) {
        Array<int64_t> ids(count);
        relation.read_edge_ids(positions, count, ids.data());
        std::copy(ids.begin(), ids.end(), positions);
    } else if (relation.edge_ids != nullptr) {
        gather(relation.edge_ids, positions, count, positions);
    }
}

void check_neighbors(const Relation& relation, const int64_t* nodes, int64_t count, int64_t num_src) {
    bool bad = false;
    for (int64_t i = 0; i < count; ++i) bad |= static_cast<uint64_t>(nodes[i]) >= static_cast<uint64_t>(num_src);
    if (bad)
        throw DatasetError("indices of " + relation.name + " must be in [0, " + std::to_string(num_src) +
                           "): a sampled neighbour is not");
}

}  // namespace gids
