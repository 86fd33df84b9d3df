// Python side of cpp/infer.
#include <nanobind/stl/tuple.h>

#include "bind.hpp"
#include "infer/accumulate.hpp"
#include "infer/keeping.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace gids {
namespace {

using Release = nb::call_guard<nb::gil_scoped_release>;
template <class T>
using Owned = nb::ndarray<nb::numpy, T, nb::ndim<1>>;
using Grouped = std::tuple<Owned<int64_t>, Owned<uint32_t>, Owned<uint32_t>>;
template <class T>
using Matrix = nb::ndarray<T, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

template <class T>
Owned<T> owned(std::vector<T>&& values) {
    auto* kept = new std::vector<T>(std::move(values));
    const nb::capsule owner(kept, [](void* p) noexcept { delete static_cast<std::vector<T>*>(p); });
    return Owned<T>(kept->data(), {kept->size()}, owner);
}

template <class Id>
Grouped group_edges(ThreadPool& pool, ConstVector<int64_t> offsets, Vector<Id> sources, int64_t num_sources,
                    int64_t block_rows) {
    infer::EdgeBlocks found;
    {
        const nb::gil_scoped_release release;
        found = infer::group_edges<Id>(pool, {offsets.data(), offsets.size()}, {sources.data(), sources.size()},
                                       num_sources, block_rows);
    }
    return {owned(std::move(found.begin)), owned(std::move(found.source)), owned(std::move(found.destination))};
}

template <class Value>
void add_rows(ThreadPool& pool, ConstVector<uint32_t> source, ConstVector<uint32_t> destination,
              Matrix<const Value> rows, Matrix<Value> sums) {
    if (rows.shape(1) != sums.shape(1)) throw nb::value_error("rows and sums must be equally wide");
    infer::add_rows<Value>(pool, {source.data(), source.size()}, {destination.data(), destination.size()}, rows.data(),
                           rows.shape(0), sums.data(), sums.shape(0), rows.shape(1));
}

template <class T>
std::span<T> span_of(const Vector<T>& array) {
    return {array.data(), array.shape(0)};
}

using Ids = std::tuple<int64_t, int64_t>;

infer::Range range_of(Ids ids) { return {std::get<0>(ids), std::get<1>(ids)}; }

template <class Id>
std::tuple<int64_t, int64_t> note_uses(ConstVector<Id> sources, Ids destinations, Ids own, int32_t group, int32_t tile,
                                       Vector<int32_t> first, Vector<int32_t> last, Vector<uint16_t> count,
                                       Vector<int32_t> seen) {
    const infer::Uses uses{span_of(first), span_of(last), span_of(count), span_of(seen)};
    const auto needed =
        infer::note_uses<Id>(span_of(sources), range_of(destinations), range_of(own), group, tile, uses);
    return {needed.sources, needed.outside};
}

template <class Id>
Owned<int64_t> missing_rows(ConstVector<Id> sources, Ids own, Vector<int32_t> slot) {
    std::vector<int64_t> found;
    {
        const nb::gil_scoped_release release;
        found = infer::missing_rows<Id>(span_of(sources), range_of(own), span_of(slot));
    }
    return owned(std::move(found));
}

template <class Id>
std::tuple<Owned<int64_t>, Owned<int64_t>, Owned<int64_t>> build_tile(ConstVector<Id> sources, Ids destinations,
                                                                      Ids own, int64_t kept, ConstVector<int32_t> slot,
                                                                      Vector<int32_t> place) {
    infer::TileBlock found;
    {
        const nb::gil_scoped_release release;
        found = infer::build_tile<Id>(span_of(sources), range_of(destinations), range_of(own), kept, span_of(slot),
                                      span_of(place));
    }
    return {owned(std::move(found.source)), owned(std::move(found.nodes)), owned(std::move(found.location))};
}

template <class Id>
void bind_keeping(nb::module_& m) {
    m.def(
        "note_uses", &note_uses<Id>, "sources"_a, "destinations"_a, "own"_a, "group"_a, "tile"_a, "first"_a, "last"_a,
        "count"_a, "seen"_a, Release(),
        "Take note of a tile's in-edges; returns the distinct rows beside its destinations' own, and those outside its "
        "group.");
    m.def("missing_rows", &missing_rows<Id>, "sources"_a, "own"_a, "slot"_a,
          "Return the rows that are neither own nor kept, ascending; ``slot`` then knows their places.");
    m.def("build_tile", &build_tile<Id>, "sources"_a, "destinations"_a, "own"_a, "kept"_a, "slot"_a, "place"_a,
          "Return sources, nodes and locations of a tile's block.");
}

}  // namespace

void bind_infer(nb::module_& m) {
    constexpr auto kGroup =
        "Group the in-edges of consecutive destinations by block of sources; sorts ``sources`` list by list.";
    m.def("group_edges", &group_edges<int32_t>, "pool"_a, "offsets"_a, "sources"_a, "num_sources"_a, "block_rows"_a,
          kGroup);
    m.def("group_edges", &group_edges<int64_t>, "pool"_a, "offsets"_a, "sources"_a, "num_sources"_a, "block_rows"_a,
          kGroup);
    constexpr auto kAdd = "Add the row of every edge's source to the sum of its destination; destinations ascend.";
    m.def("add_rows", &add_rows<float>, "pool"_a, "source"_a, "destination"_a, "rows"_a, "sums"_a, kAdd, Release());
    m.def("add_rows", &add_rows<double>, "pool"_a, "source"_a, "destination"_a, "rows"_a, "sums"_a, kAdd, Release());
    bind_keeping<int32_t>(m);
    bind_keeping<int64_t>(m);
}

}  // namespace gids
