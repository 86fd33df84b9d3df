// Python sees a native topology over arrays it keeps alive, and functions that return sampled arrays without a copy.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <optional>

#include "bind.hpp"
#include "sampling/buffer.hpp"
#include "sampling/neighbor.hpp"
#include "sampling/topology.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace gids {
namespace {

using Output = nb::ndarray<nb::numpy, int64_t, nb::ndim<1>>;

// The array's owner is the Buffer itself, which goes back to the recycler when Python drops the array.
Output hand_over(Array<int64_t>&& array) {
    auto* owned = new Array<int64_t>(std::move(array));
    const nb::capsule owner(owned, [](void* p) noexcept { delete static_cast<Array<int64_t>*>(p); });
    return Output(owned->data(), {static_cast<size_t>(owned->size())}, owner);
}

nb::list hand_over(std::vector<Array<int64_t>>&& arrays) {
    nb::list list;
    for (auto& array : arrays) list.append(hand_over(std::move(array)));
    return list;
}

// (num_dst, num_src, [(indptr, src, edge_ids or None)]) of one layer.
nb::tuple hand_over(SampledBlock&& block, bool edge_ids) {
    nb::list parts;
    for (auto& part : block.parts) {
        nb::object ids = nb::none();
        if (edge_ids) ids = nb::cast(hand_over(std::move(part.edge_ids)));
        parts.append(nb::make_tuple(hand_over(std::move(part.indptr)), hand_over(std::move(part.src)), ids));
    }
    return nb::make_tuple(block.num_dst, block.num_src, parts);
}

// A topology and the Python objects whose memory it reads.
struct BoundTopology {
    Topology topology;
    std::vector<nb::object> owners;
};

NeighborReader call_python(nb::callable callable) {
    return [callable = std::move(callable)](const int64_t* positions, int64_t count, int64_t* out) {
        const nb::gil_scoped_acquire gil;
        const auto size = static_cast<size_t>(count);
        // By reference: the callee fills the caller's memory and must not keep it.
        const auto by_reference = nb::rv_policy::reference;
        callable(nb::cast(nb::ndarray<nb::numpy, const int64_t, nb::ndim<1>>(positions, {size}), by_reference),
                 nb::cast(nb::ndarray<nb::numpy, int64_t, nb::ndim<1>>(out, {size}), by_reference));
    };
}

void add_relation(BoundTopology& self, const std::string& name, int src_type, int dst_type, ConstVector<int64_t> indptr,
                  nb::object indices, std::optional<ConstVector<int64_t>> edge_ids) {
    Relation relation;
    relation.name = name;
    relation.src_type = src_type;
    relation.dst_type = dst_type;
    relation.indptr = indptr.data();
    self.owners.push_back(nb::cast(indptr));
    ConstVector<int32_t> narrow;
    ConstVector<int64_t> wide;
    if (nb::try_cast(indices, narrow, false)) relation.indices32 = narrow.data();
    else if (nb::try_cast(indices, wide, false)) relation.indices64 = wide.data();
    else relation.read = call_python(nb::cast<nb::callable>(indices));
    self.owners.push_back(indices);
    if (edge_ids) {
        relation.edge_ids = edge_ids->data();
        self.owners.push_back(nb::cast(*edge_ids));
    }
    self.topology.relations.push_back(std::move(relation));
}

nb::tuple sample(BoundTopology& self, std::vector<std::vector<int64_t>> fanouts, bool replace, bool edge_ids,
                 uint64_t seed, uint32_t epoch, uint64_t batch, const std::vector<ConstVector<int64_t>>& seeds,
                 ThreadPool* pool) {
    std::vector<std::span<const int64_t>> spans;
    for (const auto& one : seeds) spans.emplace_back(one.data(), one.size());
    NeighborSample result;
    {
        const nb::gil_scoped_release nogil;
        result =
            sample_neighbors(self.topology, {std::move(fanouts), replace, edge_ids}, {seed, epoch, batch}, spans, pool);
    }
    nb::list blocks;
    for (auto& block : result.blocks) blocks.append(hand_over(std::move(block), edge_ids));
    return nb::make_tuple(hand_over(std::move(result.nodes)), hand_over(std::move(result.seed_rows)), blocks);
}

}  // namespace

void bind_sampling(nb::module_& m) {
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
             "edge_ids"_a.none())
        .def("sample_neighbors", &sample, "fanouts"_a, "replace"_a, "edge_ids"_a, "seed"_a, "epoch"_a, "batch"_a,
             "seeds"_a, "pool"_a.none(),
             nb::sig("def sample_neighbors(self, fanouts: Sequence[Sequence[int]], replace: bool, edge_ids: bool, "
                     "seed: int, epoch: int, batch: int, seeds: Sequence[NDArray[numpy.int64]], "
                     "pool: ThreadPool | None) -> tuple[list[NDArray[numpy.int64]], list[NDArray[numpy.int64]], "
                     "list[tuple[list[int], list[int], list[tuple[NDArray[numpy.int64], NDArray[numpy.int64], "
                     "NDArray[numpy.int64] | None]]]]]"))
        .def_prop_ro("table_bytes", [](const BoundTopology& self) { return self.topology.tables.bytes(); });
    m.def("trim_sampling_buffers", &Buffer::trim, "Give back the memory of recycled sample arrays.");
    m.def(
        "huge_bytes",
        [](int64_t bytes) {
            auto* owned = new Array<uint8_t>(bytes);
            const nb::capsule owner(owned, [](void* p) noexcept { delete static_cast<Array<uint8_t>*>(p); });
            return nb::ndarray<nb::numpy, uint8_t, nb::ndim<1>>(owned->data(), {static_cast<size_t>(bytes)}, owner);
        },
        "bytes"_a, "Uninitialised memory on huge pages where the kernel has them.");
}

}  // namespace gids
