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
#include "errors.hpp"
#include "negative.cuh"
#include "sampling/bound.hpp"
#include "sampling/position_reader.hpp"

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

// A native reader needs no Python to answer.
template <class T>
std::function<void(const int64_t*, int64_t, T*)> reader_of(const nb::object& source) {
    PositionReader* native = nullptr;
    if (!nb::try_cast(source, native)) return call_python<T>(source);
    return [native](const int64_t* positions, int64_t count, T* out) { native->read(positions, count, out); };
}

void add_relation(BoundTopology& self, const std::string& name, int src_type, int dst_type, nb::object indptr,
                  nb::object indices, nb::object edge_ids, nb::object weights) {
    Relation relation;
    relation.name = name;
    relation.src_type = src_type;
    relation.dst_type = dst_type;
    ConstVector<int32_t> narrow;
    ConstVector<int64_t> wide;
    ConstVector<float> real;
    if (nb::try_cast(indptr, wide, false)) relation.indptr = wide.data();
    else relation.packed = not_owned(nb::cast<const PackedOffsets*>(indptr));
    if (nb::try_cast(indices, narrow, false)) relation.indices32 = narrow.data();
    else if (nb::try_cast(indices, wide, false)) relation.indices64 = wide.data();
    else relation.read = reader_of<int64_t>(indices);
    if (nb::try_cast(edge_ids, wide, false)) relation.edge_ids = wide.data();
    else if (!edge_ids.is_none()) relation.read_edge_ids = reader_of<int64_t>(edge_ids);
    if (nb::try_cast(weights, real, false)) relation.weights = real.data();
    else if (!weights.is_none()) relation.read_weights = reader_of<float>(weights);
    for (const nb::object& owner : {indptr, indices, edge_ids, weights}) self.owners.push_back(owner);
    self.topology.relations.push_back(std::move(relation));
}

Seeds spans(const std::vector<ConstVector<int64_t>>& seeds) {
    Seeds result;
    for (const auto& one : seeds) result.emplace_back(one.data(), one.size());
    return result;
}

// Samples on the caller's thread, which may share the work.
nb::tuple sample_now(BoundTopology& self, const SampleFunction& function, const nb::list& excluded,
                     ConstVector<int64_t> times, uint64_t seed, uint32_t epoch, uint64_t batch,
                     const std::vector<ConstVector<int64_t>>& seeds, ThreadPool* pool) {
    const std::vector<ExcludedEdges> left_out = sort_excluded(excluded);
    const SampleRequest request{{seed, epoch, batch}, spans(seeds), left_out, {times.data(), times.size()}};
    Sampled result;
    {
        const nb::gil_scoped_release nogil;
        result = function.sample(self.topology, request, pool);
    }
    return hand_over(std::move(result), function.edge_ids, function.weights);
}

// One hop, on the caller's thread, which may share the work.
nb::tuple expand_now(BoundTopology& self, std::vector<int64_t> fanouts, bool replace, bool weighted, uint64_t seed,
                     uint32_t epoch, uint64_t batch, const std::vector<ConstVector<int64_t>>& nodes,
                     const std::vector<ConstVector<int64_t>>& places, ThreadPool* pool) {
    const HopOptions options{std::move(fanouts), replace, weighted};
    const Seeds known = spans(nodes);
    const Seeds expanded = spans(places);
    Sampled result;
    {
        const nb::gil_scoped_release nogil;
        result = expand_nodes(self.topology, options, {seed, epoch, batch}, known, expanded, pool);
    }
    return hand_over(std::move(result), true, false);
}

SampleFunction by_fanouts(NeighborOptions options, decltype(sample_neighbors)* sample) {
    const bool ids = options.edge_ids, weights = options.labor && options.labor->importance > 0;
    return {[options = std::move(options), sample](Topology& topology, const SampleRequest& request, ThreadPool* pool) {
                return sample(topology, options, request, pool);
            },
            ids, weights};
}

auto draw_negatives(int64_t num_edges, int64_t per_edge, int64_t num_nodes, uint64_t seed, uint32_t epoch,
                    uint64_t batch) {
    Array<int64_t> nodes(num_edges * per_edge);
    const RandomKey key = SampleKey{seed, epoch, batch}.layer(0, 0, Stream::kNegatives);
    for (int64_t i = 0; i < num_edges; ++i)
        for (int64_t j = 0; j < per_edge; ++j) nodes[i * per_edge + j] = negative_node(key, i, j, num_nodes);
    return hand_over(std::move(nodes));
}

}  // namespace

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
    const nb::object trees = sample.trees.empty() ? nb::none() : nb::object(hand_over(std::move(sample.trees)));
    return nb::make_tuple(hand_over(std::move(sample.nodes)), hand_over(std::move(sample.seed_rows)), blocks, trees);
}

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

void check_signals() {
    const nb::gil_scoped_acquire gil;
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
}

void bind_sampling(nb::module_& m) {
    bind_disk(m);
    nb::class_<SampleFunction>(m, "SampleFunction", "A sampler with its options.")
        .def_static(
            "neighbor",
            [](std::vector<std::vector<int64_t>> fanouts, bool replace, bool edge_ids, bool weighted,
               uint32_t first_hop) {
                return by_fanouts({std::move(fanouts), replace, edge_ids, weighted, {}, first_hop}, sample_neighbors);
            },
            "fanouts"_a, "replace"_a, "edge_ids"_a, "weighted"_a, "first_hop"_a = 0)
        .def_static(
            "shadow",
            [](std::vector<std::vector<int64_t>> fanouts, bool replace, bool edge_ids, bool weighted) {
                return by_fanouts({std::move(fanouts), replace, edge_ids, weighted}, sample_shadow);
            },
            "fanouts"_a, "replace"_a, "edge_ids"_a, "weighted"_a)
        .def_static(
            "labor",
            [](std::vector<std::vector<int64_t>> fanouts, bool edge_ids, bool weighted, int64_t importance,
               bool layer_dependency, uint64_t batch_dependency) {
                return by_fanouts({std::move(fanouts), false, edge_ids, weighted,
                                   LaborOptions{importance, layer_dependency, batch_dependency}},
                                  sample_neighbors);
            },
            "fanouts"_a, "edge_ids"_a, "weighted"_a, "importance"_a, "layer_dependency"_a, "batch_dependency"_a)
        .def_static(
            "disjoint",
            [](std::vector<std::vector<int64_t>> fanouts, bool replace, bool edge_ids, const std::string& by, bool last,
               int64_t window, uint32_t first_hop) {
                const TimeOf times = by == "edge" ? TimeOf::kEdge : by == "node" ? TimeOf::kNode : TimeOf::kNothing;
                return SampleFunction{
                    [options = DisjointOptions{std::move(fanouts), replace, edge_ids, times, last, window, first_hop}](
                        Topology& topology, const SampleRequest& request, ThreadPool* pool) {
                        return sample_disjoint(topology, options, request, pool);
                    },
                    edge_ids, false};
            },
            "fanouts"_a, "replace"_a, "edge_ids"_a, "by"_a, "last"_a, "window"_a, "first_hop"_a)
        .def_static(
            "ladies",
            [](std::vector<int64_t> sizes, bool edge_ids, bool weighted) {
                return SampleFunction{[options = LadiesOptions{std::move(sizes), edge_ids, weighted}](
                                          Topology& topology, const SampleRequest& request, ThreadPool* pool) {
                                          return sample_ladies(topology, options, request, pool);
                                      },
                                      edge_ids, true};
            },
            "sizes"_a, "edge_ids"_a, "weighted"_a);
    nb::class_<BoundTopology>(m, "SamplingTopology", "Graph arrays as the native samplers see them.")
        .def(
            "__init__",
            [](BoundTopology* self, std::vector<std::string> node_types, std::vector<int64_t> num_nodes) {
                new (self) BoundTopology;
                self->topology.node_types = std::move(node_types);
                self->topology.num_nodes = std::move(num_nodes);
                self->topology.origins.resize(self->topology.num_nodes.size());
            },
            "node_types"_a, "num_nodes"_a)
        .def("add_relation", &add_relation, "name"_a, "src_type"_a, "dst_type"_a, "indptr"_a, "indices"_a,
             "edge_ids"_a.none(), "weights"_a.none())
        .def(
            "set_origins",
            [](BoundTopology& self, size_t type, ConstVector<int64_t> ids) {
                self.topology.origins.at(type) = ids.data();
                self.owners.push_back(nb::cast(ids));
                for (Relation& relation : self.topology.relations)
                    if (static_cast<size_t>(relation.dst_type) == type) relation.dst_origins = ids.data();
            },
            "type"_a, "ids"_a, "After every relation was added: what the nodes of a relabelled type were called.")
        .def(
            "set_edge_times",
            [](BoundTopology& self, size_t number, nb::object times) {
                self.owners.push_back(times);
                Relation& relation = self.topology.relations.at(number);
                ConstVector<int64_t> in_memory;
                if (nb::try_cast(times, in_memory, false)) relation.times = in_memory.data();
                else relation.read_times = reader_of<int64_t>(times);
            },
            "relation"_a, "times"_a)
        .def(
            "set_node_times",
            [](BoundTopology& self, size_t type, ConstVector<int64_t> times) {
                self.owners.push_back(nb::cast(times));
                self.topology.node_times.resize(self.topology.num_nodes.size());
                self.topology.node_times.at(type) = times.data();
            },
            "type"_a, "times"_a)
        .def(
            "keep_hot",
            [](BoundTopology& self, size_t relation, nb::object lists) {
                std::atomic<const HotLists*>& place = *self.topology.relations.at(relation).hot;
                if (place.load(std::memory_order_relaxed) != nullptr)
                    throw ConfigError("lists of a relation must be given once (they are there already)");
                self.owners.push_back(lists);
                place.store(nb::cast<const HotLists*>(lists), std::memory_order_release);  // release: they are filled
            },
            "relation"_a, "lists"_a)
        .def("sample", &sample_now, "function"_a, "excluded"_a, "times"_a, "seed"_a, "epoch"_a, "batch"_a, "seeds"_a,
             "pool"_a.none(),
             nb::sig("def sample(self, function: SampleFunction, " GIDS_REQUEST
                     ", pool: ThreadPool | None) -> " GIDS_SAMPLED))
        .def("expand", &expand_now, "fanouts"_a, "replace"_a, "weighted"_a, "seed"_a, "epoch"_a, "batch"_a, "nodes"_a,
             "places"_a, "pool"_a.none(),
             nb::sig("def expand(self, fanouts: Sequence[int], replace: bool, weighted: bool, seed: int, epoch: int, "
                     "batch: int, nodes: Sequence[" GIDS_IDS "], places: Sequence[" GIDS_IDS
                     "], pool: ThreadPool | None) -> " GIDS_SAMPLED))
        .def_prop_ro("table_bytes", [](const BoundTopology& self) { return self.topology.tables.bytes(); });
    bind_service(m);
    m.def(
        "labor_key",
        [](uint64_t seed, uint32_t epoch, uint64_t batch, uint64_t period, uint32_t layer, uint32_t type) {
            const LaborKey key = labor_key(seed, epoch, batch, period, layer, type, nullptr);
            return std::tuple(key.now.k0, key.now.k1, key.next.k0, key.next.k1, key.phase.k0, key.phase.k1,
                              key.threshold);
        },
        "seed"_a, "epoch"_a, "batch"_a, "period"_a, "layer"_a, "type"_a, "kernels/labor.cuh's key of one layer.");
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
    m.def(
        "thread_sampling_memory",
        [](bool mark) {
            if (mark) Buffer::mark_thread_peak();
            const Buffer::ThreadUsage usage = Buffer::thread_usage();
            return std::pair(usage.held_bytes, usage.peak_bytes);
        },
        "mark"_a = false,
        "Bytes of arrays that the calling thread made for samples, less those that it freed, and the most since its "
        "last "
        "mark: what other threads do meanwhile is not in it.");
    m.def("piece_bytes", &Buffer::piece_bytes, "bytes"_a, "Memory of a sampled array of so many bytes.");
    m.def("give_back_memory", &give_back_memory,
          "Give free memory back to the system: recycled sample arrays, and what the C library keeps.");
    m.def("huge_bytes", &huge_bytes, "bytes"_a, "Zeroed memory on huge pages where the kernel has them.");
}

}  // namespace gids
