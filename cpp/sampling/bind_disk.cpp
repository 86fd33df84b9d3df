// Python sees packed offsets, hot lists and readers of an on-disk topology.
#include <nanobind/stl/map.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <map>
#include <string>

#include "errors.hpp"
#include "sampling/bound.hpp"
#include "sampling/position_reader.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace gids {
namespace {

// Adds to visits[source] the chance that each of the edges [begin, begin + count) is chosen when its destination is.
template <class Index>
void count_visits(const PackedOffsets& offsets, int64_t begin, ConstVector<Index> indices, int64_t fanout,
                  Vector<float> visits) {
    const nb::gil_scoped_release nogil;
    const auto end = begin + static_cast<int64_t>(indices.size());
    if (end > offsets.num_edges())
        throw DatasetError("edges must number at most " + std::to_string(offsets.num_edges()) + " (got " +
                           std::to_string(end) + ")");
    // The node that has the first edge: the last one whose list begins at or before it.
    int64_t node = 0;
    for (int64_t step = int64_t{1} << 62; step > 0; step /= 2)
        if (node + step < offsets.num_nodes() && offsets.at(node + step) <= begin) node += step;
    const auto bound = static_cast<uint64_t>(visits.size());
    for (int64_t e = begin; e < end; ++node) {
        const auto [first, degree] = offsets.range(node);
        const int64_t stop = std::min(end, first + degree);
        const float chance = std::min(1.0f, static_cast<float>(fanout) / static_cast<float>(degree));
        for (; e < stop; ++e) {
            const auto source = static_cast<uint64_t>(indices.data()[e - begin]);
            if (source >= bound)
                throw DatasetError("neighbours must be in [0, " + std::to_string(bound) + ") (got " +
                                   std::to_string(indices.data()[e - begin]) + " at edge position " +
                                   std::to_string(e) + ")");
            visits.data()[source] += chance;
        }
    }
}

void check_visits(const PackedOffsets& offsets, ConstVector<float> visits) {
    if (static_cast<int64_t>(visits.size()) != offsets.num_nodes())
        throw ConfigError("visits must have one entry per node = " + std::to_string(offsets.num_nodes()) + " (got " +
                          std::to_string(visits.size()) + ")");
}

}  // namespace

void bind_disk(nb::module_& m) {
    nb::class_<PackedOffsets>(m, "PackedOffsets", "Offsets of edge lists, packed.")
        .def(nb::init<int64_t>(), "num_nodes"_a)
        .def(
            "append",
            [](PackedOffsets& self, ConstVector<int64_t> offsets) {
                self.append({offsets.data(), offsets.size()});
            },
            "offsets"_a)
        .def("finish", &PackedOffsets::finish)
        .def(
            "range",
            [](const PackedOffsets& self, int64_t node) {
                if (node < 0 || node >= self.num_nodes())
                    throw ConfigError("node must be in [0, " + std::to_string(self.num_nodes()) + ") (got " +
                                      std::to_string(node) + ")");
                const EdgeRange range = self.range(node);
                return std::pair(range.first, range.degree);
            },
            "node"_a, "First edge position and number of edges of a node.")
        .def_prop_ro("num_nodes", &PackedOffsets::num_nodes)
        .def_prop_ro("num_edges", &PackedOffsets::num_edges)
        .def_prop_ro("bytes", &PackedOffsets::bytes);
    nb::class_<HotLists>(m, "HotLists", "Neighbour lists that an on-disk topology keeps in memory.")
        .def(
            "__init__",
            [](HotLists* self, const PackedOffsets& offsets, ConstVector<float> visits, double visits_per_batch,
               int64_t fanout, int item_bytes, int64_t num_sources, int64_t budget_bytes) {
                check_visits(offsets, visits);
                const nb::gil_scoped_release nogil;
                const HotRanking ranking(offsets, {visits.data(), visits.size()}, visits_per_batch, fanout, item_bytes,
                                         ListCost::packed(num_sources));
                new (self) HotLists(ranking.choose(budget_bytes), offsets, num_sources);
            },
            "offsets"_a, "visits"_a, "visits_per_batch"_a, "fanout"_a, "item_bytes"_a, "num_sources"_a,
            "budget_bytes"_a, nb::keep_alive<1, 2>(), "Choose the lists that save most; fill() brings them in.")
        .def(
            "fill",
            [](HotLists& self, ConstVector<int32_t> values) {
                const nb::gil_scoped_release nogil;
                self.fill(std::span(values.data(), values.size()));
            },
            "values"_a)
        .def(
            "fill",
            [](HotLists& self, ConstVector<int64_t> values) {
                const nb::gil_scoped_release nogil;
                self.fill(std::span(values.data(), values.size()));
            },
            "values"_a)
        .def("contains", &HotLists::contains, "node"_a)
        .def_prop_ro("bytes", &HotLists::bytes)
        .def_prop_ro("num_lists", &HotLists::num_lists)
        .def_prop_ro("num_edges", &HotLists::num_edges);
    nb::class_<PositionReader>(m, "PositionReader", "Values on disk by edge position.")
        .def(
            "__init__",
            [](PositionReader* self, storage::Reader& values, storage::Reader* granules, const std::string& dtype,
               int64_t granule_items, int64_t num_values, ConstVector<uint8_t> tail, int64_t cache_bytes,
               int64_t group_bytes) {
                const ValueKind kind = dtype == "int32"   ? ValueKind::kInt32
                                       : dtype == "int64" ? ValueKind::kInt64
                                                          : ValueKind::kFloat32;
                const auto* bytes = reinterpret_cast<const std::byte*>(tail.data());
                new (self) PositionReader(values, granules, {kind, granule_items, cache_bytes, group_bytes},
                                          {bytes, bytes + tail.size()}, num_values, check_signals);
            },
            "values"_a, "granules"_a.none(), "dtype"_a, "granule_items"_a, "num_values"_a, "tail"_a, "cache_bytes"_a,
            "group_bytes"_a, nb::keep_alive<1, 2>(), nb::keep_alive<1, 3>())
        .def(
            "read",
            [](PositionReader& self, ConstVector<int64_t> positions, Vector<int64_t> out) {
                if (positions.size() != out.size()) throw ConfigError("out must be as long as positions");
                const nb::gil_scoped_release nogil;
                self.read(positions.data(), static_cast<int64_t>(positions.size()), out.data());
            },
            "positions"_a, "out"_a)
        .def(
            "read",
            [](PositionReader& self, ConstVector<int64_t> positions, Vector<float> out) {
                if (positions.size() != out.size()) throw ConfigError("out must be as long as positions");
                const nb::gil_scoped_release nogil;
                self.read(positions.data(), static_cast<int64_t>(positions.size()), out.data());
            },
            "positions"_a, "out"_a)
        .def("stats",
             [](const PositionReader& self) {
                 const PositionReader::Stats s = self.stats();
                 return std::map<std::string, uint64_t>{{"values", s.values},
                                                        {"granules", s.granules},
                                                        {"cached_granules", s.cached},
                                                        {"requests", s.requests},
                                                        {"sweeps", s.sweeps}};
             })
        .def_prop_ro("bytes", &PositionReader::bytes);
    m.def(
        "worth_of_lists",
        [](const PackedOffsets& offsets, ConstVector<float> visits, double visits_per_batch, int64_t fanout,
           int item_bytes, int64_t num_sources) {
            check_visits(offsets, visits);
            const nb::gil_scoped_release nogil;
            const ListWorth worth = HotRanking(offsets, {visits.data(), visits.size()}, visits_per_batch, fanout,
                                               item_bytes, ListCost::packed(num_sources))
                                        .worth();
            return std::pair(worth.bytes, worth.reads);
        },
        "offsets"_a, "visits"_a, "visits_per_batch"_a, "fanout"_a, "item_bytes"_a, "num_sources"_a,
        "From the most useful list on: bytes of all so far, and reads of a batch that they save.");
    m.def(
        "hold_pieces",
        [](const PackedOffsets& offsets, ConstVector<float> visits, double visits_per_batch, int64_t fanout,
           int item_bytes, int64_t budget_bytes) {
            check_visits(offsets, visits);
            auto* found = new std::vector<uint64_t>;
            const nb::capsule owner(found, [](void* p) noexcept { delete static_cast<std::vector<uint64_t>*>(p); });
            {
                const nb::gil_scoped_release nogil;
                const HotRanking ranking(offsets, {visits.data(), visits.size()}, visits_per_batch, fanout, item_bytes,
                                         ListCost::pieces(item_bytes));
                *found = choose_pieces(ranking, offsets, item_bytes, budget_bytes);
            }
            return nb::ndarray<nb::numpy, uint64_t, nb::ndim<1>>(found->data(), {found->size()}, owner);
        },
        "offsets"_a, "visits"_a, "visits_per_batch"_a, "fanout"_a, "item_bytes"_a, "budget_bytes"_a,
        "Choose what a GPU holds of neighbour lists: kernels/neighbors.cuh's HeldPieces, as words.");
    m.def("count_visits", &count_visits<int32_t>, "offsets"_a, "begin"_a, "indices"_a, "fanout"_a, "visits"_a);
    m.def("count_visits", &count_visits<int64_t>, "offsets"_a, "begin"_a, "indices"_a, "fanout"_a, "visits"_a);
}

}  // namespace gids
