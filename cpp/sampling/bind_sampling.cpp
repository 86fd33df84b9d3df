// Python sees a native topology over arrays it keeps alive, and functions that return sampled arrays without a copy.
#include <malloc.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <optional>
#include <tuple>

#include "bind.hpp"
#include "negative.cuh"
#include "sampling/neighbor.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace gids {
namespace {

// The array's owner is the Buffer itself, which goes back to the recycler when Python drops the array.
template <class T>
nb::ndarray<nb::numpy, T, nb::ndim<1>> hand_over(Array<T>&& array) {
    auto* owned = new Array<T>(std::move(array));
    const nb::capsule owner(owned, [](void* p) noexcept { delete static_cast<Array<T>*>(p); });
    return {owned->data(), {static_cast<size_t>(owned->size())}, owner};
}

nb::ndarray<nb::numpy, uint8_t, nb::ndim<1>> huge_bytes(size_t bytes) {
    auto* owned = new HugeBytes(bytes);
    const nb::capsule owner(owned, [](void* p) noexcept { delete static_cast<HugeBytes*>(p); });
    return {owned->data(), {bytes}, owner};
}

void give_back_memory() {
    Buffer::trim();
#ifdef __GLIBC__
    malloc_trim(0);  // other C libraries keep little
#endif
}

nb::list hand_over(std::vector<Array<int64_t>>&& arrays) {
    nb::list list;
    for (auto& array : arrays) list.append(hand_over(std::move(array)));
    return list;
}

// ([nodes], [seed rows], [(num_dst, num_src, [(indptr, src, edge_ids or None, weights or None)])])
nb::tuple hand_over(Sampled&& sample, bool edge_ids, bool weights) {
    nb::list blocks;
    for (auto& block : sample.blocks) {
        nb::list parts;
        for (auto& part : block.parts) {
            const nb::object ids = edge_ids ? nb::cast(hand_over(std::move(part.edge_ids))) : nb::none();
            const nb::object importance = weights ? nb::cast(hand_over(std::move(part.weights))) : nb::none();
            parts.append(
                nb::make_tuple(hand_over(std::move(part.indptr)), hand_over(std::move(part.src)), ids, importance));
        }
        blocks.append(nb::make_tuple(block.num_dst, block.num_src, parts));
    }
    return nb::make_tuple(hand_over(std::move(sample.nodes)), hand_over(std::move(sample.seed_rows)), blocks);
}

// A topology and the Python objects whose memory it reads.
struct BoundTopology {
    Topology topology;
    std::vector<nb::object> owners;
};

// By reference: the callee fills our memory and must not keep it.
template <class T>
std::function<void(const int64_t*, int64_t, T*)> call_python(nb::object callable) {
    return [callable = std::move(callable)](const int64_t* positions, int64_t count, T* out) {
        const nb::gil_scoped_acquire gil;
        const auto size = static_cast<size_t>(count);
        const auto policy = nb::rv_policy::reference;
        callable(nb::cast(nb::ndarray<nb::numpy, const int64_t, nb::ndim<1>>(positions, {size}), policy),
                 nb::cast(nb::ndarray<nb::numpy, T, nb::ndim<1>>(out, {size}), policy));
    };
}

void add_relation(BoundTopology& self, const std::string& name, int src_type, int dst_type, ConstVector<int64_t> indptr,
                  nb::object indices, nb::object edge_ids, nb::object weights) {
    Relation relation;
    relation.name = name;
    relation.src_type = src_type;
    relation.dst_type = dst_type;
    relation.indptr = indptr.data();
    ConstVector<int32_t> narrow;
    ConstVector<int64_t> wide;
    ConstVector<float> real;
    if (nb::try_cast(indices, narrow, false)) relation.indices32 = narrow.data();
    else if (nb::try_cast(indices, wide, false)) relation.indices64 = wide.data();
    else relation.read = call_python<int64_t>(indices);
    if (nb::try_cast(edge_ids, wide, false)) relation.edge_ids = wide.data();
    else if (!edge_ids.is_none()) relation.read_edge_ids = call_python<int64_t>(edge_ids);
    if (nb::try_cast(weights, real, false)) relation.weights = real.data();
    else if (!weights.is_none()) relation.read_weights = call_python<float>(weights);
    for (const nb::object& owner : {nb::cast(indptr), indices, edge_ids, weights}) self.owners.push_back(owner);
    self.topology.relations.push_back(std::move(relation));
}

Seeds spans(const std::vector<ConstVector<int64_t>>& seeds) {
    Seeds result;
    for (const auto& one : seeds) result.emplace_back(one.data(), one.size());
    return result;
}

// One (sources, destinations) pair of arrays per relation.
std::vector<ExcludedEdges> sort_excluded(const nb::list& arrays) {
    std::vector<ExcludedEdges> result;
    for (const nb::handle pair : arrays) {
        const auto src = nb::cast<ConstVector<int64_t>>(pair[0]);
        const auto dst = nb::cast<ConstVector<int64_t>>(pair[1]);
        ExcludedEdges edges;
        for (size_t i = 0; i < src.size(); ++i) edges.push_back({dst.data()[i], src.data()[i]});
        std::sort(edges.begin(), edges.end());
        result.push_back(std::move(edges));
    }
    return result;
}

template <Sampled (*Sampler)(Topology&, const NeighborOptions&, SampleKey, const Seeds&, ThreadPool*)>
nb::tuple sample_fanouts(BoundTopology& self, std::vector<std::vector<int64_t>> fanouts, bool replace, bool edge_ids,
                         bool weighted, const nb::list& excluded, uint64_t seed, uint32_t epoch, uint64_t batch,
                         const std::vector<ConstVector<int64_t>>& seeds, ThreadPool* pool) {
    const NeighborOptions options{std::move(fanouts), replace, edge_ids, weighted, sort_excluded(excluded)};
    const Seeds nodes = spans(seeds);
    Sampled result;
    {
        const nb::gil_scoped_release nogil;
        result = Sampler(self.topology, options, {seed, epoch, batch}, nodes, pool);
    }
    return hand_over(std::move(result), edge_ids, false);
}

nb::tuple sample_sizes(BoundTopology& self, const std::vector<int64_t>& layer_sizes, bool edge_ids, bool weighted,
                       const nb::list& excluded, uint64_t seed, uint32_t epoch, uint64_t batch,
                       const std::vector<ConstVector<int64_t>>& seeds, ThreadPool* pool) {
    const LadiesOptions options{layer_sizes, edge_ids, weighted, sort_excluded(excluded)};
    const Seeds nodes = spans(seeds);
    Sampled result;
    {
        const nb::gil_scoped_release nogil;
        result = sample_ladies(self.topology, options, {seed, epoch, batch}, nodes, pool);
    }
    return hand_over(std::move(result), edge_ids, true);
}

auto draw_negatives(int64_t num_edges, int64_t per_edge, int64_t num_nodes, uint64_t seed, uint32_t epoch,
                    uint64_t batch) {
    Array<int64_t> nodes(num_edges * per_edge);
    const RandomKey key = SampleKey{seed, epoch, batch}.layer(0, 0, Stream::kNegatives);
    for (int64_t i = 0; i < num_edges; ++i)
        for (int64_t j = 0; j < per_edge; ++j) nodes[i * per_edge + j] = negative_node(key, i, j, num_nodes);
    return hand_over(std::move(nodes));
}

// Adds to visits[source] the chance that each of the edges [begin, begin + count) is chosen when its destination is.
template <class Index>
void count_visits(ConstVector<int64_t> indptr, int64_t begin, ConstVector<Index> indices, int64_t fanout,
                  Vector<float> visits) {
    const nb::gil_scoped_release nogil;
    const int64_t* end = indptr.data() + indptr.size();
    const int64_t* next = std::upper_bound(indptr.data(), end, begin);  // first offset beyond the edge at hand
    for (size_t e = 0; e < indices.size(); ++e) {
        while (begin + static_cast<int64_t>(e) >= *next) ++next;
        const float degree = static_cast<float>(*next - *(next - 1));
        visits.data()[indices.data()[e]] += std::min(1.0f, static_cast<float>(fanout) / degree);
    }
}

}  // namespace

#define GIDS_IDS "NDArray[numpy.int64]"
#define GIDS_KEY "seed: int, epoch: int, batch: int, seeds: Sequence[" GIDS_IDS "], pool: ThreadPool | None"
#define GIDS_SAMPLED                                                                                      \
    "tuple[list[" GIDS_IDS "], list[" GIDS_IDS "], list[tuple[list[int], list[int], list[tuple[" GIDS_IDS \
    ", " GIDS_IDS ", " GIDS_IDS " | None, NDArray[numpy.float32] | None]]]]]"
#define GIDS_FANOUTS                                                                           \
    "(self, fanouts: Sequence[Sequence[int]], replace: bool, edge_ids: bool, weighted: bool, " \
    "excluded: list[tuple[" GIDS_IDS ", " GIDS_IDS "]], " GIDS_KEY ") -> " GIDS_SAMPLED

void bind_sampling(nb::module_& m) {
    nb::class_<HotLists>(m, "HotLists", "Neighbour lists that an on-disk topology keeps in memory.")
        .def(
            "__init__",
            [](HotLists* self, ConstVector<int64_t> nodes, ConstVector<int64_t> indptr, bool wide) {
                new (self) HotLists({nodes.data(), nodes.size()}, {indptr.data(), indptr.size()}, wide);
            },
            "nodes"_a, "indptr"_a, "wide"_a)
        .def(
            "fill",
            [](HotLists& self, int64_t begin, ConstVector<int32_t> values) {
                self.fill(begin, std::span(values.data(), values.size()));
            },
            "begin"_a, "values"_a)
        .def(
            "fill",
            [](HotLists& self, int64_t begin, ConstVector<int64_t> values) {
                self.fill(begin, std::span(values.data(), values.size()));
            },
            "begin"_a, "values"_a)
        .def_prop_ro("bytes", &HotLists::bytes)
        .def_prop_ro("num_lists", &HotLists::num_lists);
    nb::class_<BoundTopology>(m, "SamplingTopology", "Graph arrays as the native samplers see them.")
        .def(
            "__init__",
            [](BoundTopology* self, std::vector<std::string> node_types, std::vector<int64_t> num_nodes) {
                new (self) BoundTopology;
                self->topology.node_types = std::move(node_types);
                self->topology.num_nodes = std::move(num_nodes);
            },
            "node_types"_a, "num_nodes"_a)
        .def("add_relation", &add_relation, "name"_a, "src_type"_a, "dst_type"_a, "indptr"_a, "indices"_a,
             "edge_ids"_a.none(), "weights"_a.none())
        .def(
            "keep_hot",
            [](BoundTopology& self, size_t relation, nb::object lists) {
                // The Python object owns the lists; the topology keeps that object.
                self.owners.push_back(lists);
                self.topology.relations.at(relation).hot =
                    std::shared_ptr<const HotLists>(nb::cast<const HotLists*>(lists), [](const HotLists*) {});
            },
            "relation"_a, "lists"_a)
        .def("sample_neighbors", &sample_fanouts<sample_neighbors>, "fanouts"_a, "replace"_a, "edge_ids"_a,
             "weighted"_a, "excluded"_a, "seed"_a, "epoch"_a, "batch"_a, "seeds"_a, "pool"_a.none(),
             nb::sig("def sample_neighbors" GIDS_FANOUTS))
        .def("sample_shadow", &sample_fanouts<sample_shadow>, "fanouts"_a, "replace"_a, "edge_ids"_a, "weighted"_a,
             "excluded"_a, "seed"_a, "epoch"_a, "batch"_a, "seeds"_a, "pool"_a.none(),
             nb::sig("def sample_shadow" GIDS_FANOUTS))
        .def("sample_ladies", &sample_sizes, "sizes"_a, "edge_ids"_a, "weighted"_a, "excluded"_a, "seed"_a, "epoch"_a,
             "batch"_a, "seeds"_a, "pool"_a.none(),
             nb::sig("def sample_ladies(self, sizes: Sequence[int], edge_ids: bool, weighted: bool, "
                     "excluded: list[tuple[" GIDS_IDS ", " GIDS_IDS "]], " GIDS_KEY ") -> " GIDS_SAMPLED))
        .def_prop_ro("table_bytes", [](const BoundTopology& self) { return self.topology.tables.bytes(); });
    m.def(
        "random_key",
        [](uint64_t seed, uint32_t epoch, uint64_t batch, uint32_t layer, uint32_t relation, uint32_t stream) {
            const RandomKey key = random_key(seed, epoch, batch, layer, relation, static_cast<Stream>(stream));
            return std::pair(key.k0, key.k1);
        },
        "seed"_a, "epoch"_a, "batch"_a, "layer"_a, "relation"_a, "stream"_a,
        "The words of kernels/philox.cuh's key for one use of random numbers.");
    m.def("draw_negatives", &draw_negatives, "num_edges"_a, "per_edge"_a, "num_nodes"_a, "seed"_a, "epoch"_a,
          "batch"_a);
    m.def("count_visits", &count_visits<int32_t>, "indptr"_a, "begin"_a, "indices"_a, "fanout"_a, "visits"_a);
    m.def("count_visits", &count_visits<int64_t>, "indptr"_a, "begin"_a, "indices"_a, "fanout"_a, "visits"_a);
    m.def(
        "sampling_memory",
        [](bool mark) {
            if (mark) Buffer::mark_peak();
            const Buffer::Usage usage = Buffer::usage();
            return std::tuple(usage.held_bytes, usage.peak_bytes, usage.retained_bytes);
        },
        "mark"_a = false,
        "Bytes of arrays that samples and samplers of this process hold, the most since the last mark, and bytes that "
        "wait to be used again.");
    m.def("piece_bytes", &Buffer::piece_bytes, "bytes"_a, "Memory of a sampled array of so many bytes.");
    m.def("give_back_memory", &give_back_memory,
          "Give free memory back to the system: recycled sample arrays, and what the C library keeps.");
    m.def("huge_bytes", &huge_bytes, "bytes"_a, "Zeroed memory on huge pages where the kernel has them.");
}

}  // namespace gids
