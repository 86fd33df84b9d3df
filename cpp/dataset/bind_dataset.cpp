// Python side of cpp/dataset: checksums of rows and generated graphs. Callers check sizes; buffers are numpy arrays.
#include "bind.hpp"
#include "dataset/checksum.hpp"
#include "dataset/generate.hpp"
#include "dataset/group.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace gids {
namespace {

using Release = nb::call_guard<nb::gil_scoped_release>;

NodeRange range(int64_t begin, const Vector<int64_t>& out) { return {begin, begin + static_cast<int64_t>(out.size())}; }

// Offsets are one longer than the nodes they delimit.
NodeRange range(int64_t begin, const ConstVector<int64_t>& offsets) {
    return {begin, begin + static_cast<int64_t>(offsets.size()) - 1};
}

template <class Key>
void bind_group_by_key(nb::module_& m) {
    m.def(
        "group_by_key",
        [](ConstVector<Key> keys, Vector<int64_t> offsets, Vector<int64_t> order) {
            group_by_key(keys.data(), static_cast<int64_t>(keys.size()), static_cast<int64_t>(offsets.size()) - 1,
                         offsets.data(), order.data());
        },
        "keys"_a, "offsets"_a, "order"_a, Release(),
        "Counting sort: fill offsets of groups and the order of positions.");
}

}  // namespace

void bind_dataset(nb::module_& m) {
    bind_group_by_key<int32_t>(m);
    bind_group_by_key<int64_t>(m);
    m.def(
        "row_sums",
        [](ConstVector<uint8_t> data, int64_t row_bytes, int64_t chunk_rows, Vector<uint64_t> sums, ThreadPool& pool) {
            row_sums(data.data(), static_cast<int64_t>(data.size()) / row_bytes, row_bytes, chunk_rows, sums.data(),
                     pool);
        },
        "data"_a, "row_bytes"_a, "chunk_rows"_a, "sums"_a, "pool"_a, Release(),
        "Write a plain and a weighted sum of row digests for every chunk of rows into sums.");

    nb::class_<Communities>(m, "Communities", "A graph of communities with popular members.")
        .def(nb::init<int64_t, int64_t, uint64_t, double, double, int>(), "num_nodes"_a, "num_classes"_a, "seed"_a,
             "degree"_a, "homophily"_a, "skew"_a)
        .def(
            "labels",
            [](const Communities& self, int64_t begin, Vector<int64_t> out, ThreadPool& pool) {
                self.labels(range(begin, out), out.data(), pool);
            },
            "begin"_a, "out"_a, "pool"_a, Release())
        .def(
            "degrees",
            [](const Communities& self, int64_t begin, Vector<int64_t> out, ThreadPool& pool) {
                self.degrees(range(begin, out), out.data(), pool);
            },
            "begin"_a, "out"_a, "pool"_a, Release())
        .def(
            "sources",
            [](const Communities& self, int64_t begin, ConstVector<int64_t> offsets, Vector<int64_t> out,
               ThreadPool& pool) { self.sources(range(begin, offsets), offsets.data(), out.data(), pool); },
            "begin"_a, "offsets"_a, "out"_a, "pool"_a, Release());

    nb::class_<Blocks>(m, "Blocks", "A graph of many small blocks, with classes that are independent of them.")
        .def(
            "__init__",
            [](Blocks* self, ConstVector<int64_t> first, int64_t num_classes, uint64_t seed, double degree,
               double inside, double homophily, int skew) {
                new (self) Blocks(first.data(), static_cast<int64_t>(first.size()) - 1, num_classes, seed, degree,
                                  inside, homophily, skew);
            },
            "first"_a, "num_classes"_a, "seed"_a, "degree"_a, "inside"_a, "homophily"_a, "skew"_a,
            nb::keep_alive<1, 2>())
        .def(
            "labels",
            [](const Blocks& self, int64_t begin, Vector<int64_t> out, ThreadPool& pool) {
                self.labels(range(begin, out), out.data(), pool);
            },
            "begin"_a, "out"_a, "pool"_a, Release())
        .def(
            "blocks",
            [](const Blocks& self, int64_t begin, Vector<int64_t> out, ThreadPool& pool) {
                self.blocks(range(begin, out), out.data(), pool);
            },
            "begin"_a, "out"_a, "pool"_a, Release())
        .def(
            "degrees",
            [](const Blocks& self, int64_t begin, Vector<int64_t> out, ThreadPool& pool) {
                self.degrees(range(begin, out), out.data(), pool);
            },
            "begin"_a, "out"_a, "pool"_a, Release())
        .def(
            "sources",
            [](const Blocks& self, int64_t begin, ConstVector<int64_t> offsets, Vector<int64_t> out, ThreadPool& pool) {
                self.sources(range(begin, offsets), offsets.data(), out.data(), pool);
            },
            "begin"_a, "offsets"_a, "out"_a, "pool"_a, Release());

    nb::class_<Rmat>(m, "Rmat", "An R-MAT graph, made by destination.")
        .def(nb::init<int64_t, uint64_t, double, double, double, double, bool>(), "num_nodes"_a, "seed"_a, "a"_a, "b"_a,
             "c"_a, "d"_a, "scatter"_a)
        .def(
            "degrees",
            [](const Rmat& self, int64_t begin, ConstVector<uint32_t> in_degrees, Vector<int64_t> out,
               ThreadPool& pool) { self.degrees(range(begin, out), in_degrees.data(), out.data(), pool); },
            "begin"_a, "in_degrees"_a, "out"_a, "pool"_a, Release())
        .def(
            "sources",
            [](const Rmat& self, int64_t begin, ConstVector<int64_t> offsets, Vector<int64_t> out, ThreadPool& pool) {
                self.sources(range(begin, offsets), offsets.data(), out.data(), pool);
            },
            "begin"_a, "offsets"_a, "out"_a, "pool"_a, Release());

    m.def(
        "class_features",
        [](int64_t begin, ConstVector<int64_t> labels, int64_t dim, uint64_t seed, double signal, Vector<float> out,
           ThreadPool& pool) {
            const NodeRange nodes{begin, begin + static_cast<int64_t>(labels.size())};
            class_features(nodes, labels.data(), dim, seed, signal, out.data(), pool);
        },
        "begin"_a, "labels"_a, "dim"_a, "seed"_a, "signal"_a, "out"_a, "pool"_a, Release(),
        "Write the feature rows of consecutive nodes: class centroid plus noise.");

    m.def(
        "shuffled_ids",
        [](int64_t num_nodes, uint64_t seed, int64_t begin, Vector<int64_t> out, ThreadPool& pool) {
            shuffled_ids(num_nodes, seed, range(begin, out), out.data(), pool);
        },
        "num_nodes"_a, "seed"_a, "begin"_a, "out"_a, "pool"_a, Release(),
        "Write the ids at consecutive places of a random order of all nodes.");
}

}  // namespace gids
