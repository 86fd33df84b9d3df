// Python side of cpp/partition: pieces of neighbour lists in, the part of every node out.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <optional>

#include "bind.hpp"
#include "partition/partitioner.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace gids {
namespace {

using Release = nb::call_guard<nb::gil_scoped_release>;

// A piece and the arrays it looks into.
struct BoundPiece {
    ListPiece piece;
    std::vector<nb::object> owners;
};

void add_relation(BoundPiece& self, ConstVector<int64_t> indptr, nb::object sources, int64_t first_source,
                  int64_t num_sources) {
    RelationLists lists;
    lists.indptr = indptr.data();
    lists.first_source = first_source;
    lists.num_sources = num_sources;
    ConstVector<int32_t> narrow;
    ConstVector<int64_t> wide;
    size_t count = 0;
    if (nb::try_cast(sources, narrow, false)) {
        lists.sources32 = narrow.data();
        count = narrow.size();
    } else {
        wide = nb::cast<ConstVector<int64_t>>(sources);
        lists.sources64 = wide.data();
        count = wide.size();
    }
    const int64_t nodes = static_cast<int64_t>(indptr.size()) - 1;
    if (nodes != self.piece.count)
        throw ConfigError("indptr of a piece must have " + std::to_string(self.piece.count + 1) + " entries (got " +
                          std::to_string(nodes + 1) + ")");
    if (lists.begin(nodes) != static_cast<int64_t>(count))
        throw ConfigError("sources of a piece must be " + std::to_string(lists.begin(nodes)) + " (got " +
                          std::to_string(count) + ")");
    self.piece.relations.push_back(lists);
    self.owners.push_back(nb::cast(indptr));
    self.owners.push_back(std::move(sources));
}

}  // namespace

void bind_partition(nb::module_& m) {
    nb::class_<BoundPiece>(m, "ListPiece", "In-edges of consecutive nodes, of all relations that end in them.")
        .def(
            "__init__",
            [](BoundPiece* self, int64_t first, int64_t count) {
                new (self) BoundPiece{{first, count, {}}, {}};
            },
            "first"_a, "count"_a)
        .def("add_relation", &add_relation, "indptr"_a, "sources"_a, "first_source"_a, "num_sources"_a);

    nb::class_<Partitioner>(m, "Partitioner", "Balanced min-cut partitions of a streamed graph.")
        .def(
            "__init__",
            [](Partitioner* self, int64_t num_nodes, int64_t num_parts, std::optional<ConstVector<uint8_t>> train,
               int64_t nodes_of_part, int64_t train_of_part, int width, uint64_t seed) {
                if (train && static_cast<int64_t>(train->size()) != num_nodes)
                    throw ConfigError("train must have " + std::to_string(num_nodes) + " entries (got " +
                                      std::to_string(train->size()) + ")");
                new (self) Partitioner(num_nodes, num_parts, train ? train->data() : nullptr,
                                       {nodes_of_part, train_of_part}, width, seed);
            },
            "num_nodes"_a, "num_parts"_a, "train"_a.none(), "nodes_of_part"_a, "train_of_part"_a, "width"_a, "seed"_a)
        .def(
            "add", [](Partitioner& self, const BoundPiece& piece, ThreadPool& pool) { self.add(piece.piece, pool); },
            "piece"_a, "pool"_a, Release())
        .def("finish_sketch", &Partitioner::finish_sketch, Release())
        .def("cluster_nodes", &Partitioner::cluster_nodes, "pool"_a, Release())
        .def("merge_clusters", &Partitioner::merge_clusters, "pool"_a, Release())
        .def("pack", &Partitioner::pack, Release())
        .def(
            "refine", [](Partitioner& self, ThreadPool& pool) { return self.refine(pool); }, "pool"_a, Release())
        .def(
            "refine_piece",
            [](Partitioner& self, const BoundPiece& piece, ThreadPool& pool) { return self.refine(piece.piece, pool); },
            "piece"_a, "pool"_a, Release())
        .def("drop_sketch", &Partitioner::drop_sketch)
        .def_prop_ro("num_groups", &Partitioner::num_groups)
        .def_prop_ro("sketch_bytes", &Partitioner::sketch_bytes)
        .def(
            "groups",
            [](const Partitioner& self, Vector<int32_t> out) {
                std::copy(self.groups().begin(), self.groups().end(), out.data());
            },
            "out"_a, Release(), "Write the group of every node: a cluster before pack(), a part after it.");

    m.def(
        "count_cut",
        [](ConstVector<int32_t> parts, const BoundPiece& piece, ThreadPool& pool) {
            return count_cut(parts.data(), piece.piece, pool);
        },
        "parts"_a, "piece"_a, "pool"_a, Release(), "Count the edges of a piece that lead from one part to another.");
}

}  // namespace gids
