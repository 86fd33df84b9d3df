// Python side of cpp/infer.
#include <nanobind/stl/tuple.h>

#include "bind.hpp"
#include "infer/accumulate.hpp"

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
}

}  // namespace gids
