// Python side of cpp/pack. Callers check sizes and that rows ascend; arrays outlive the object that was made of them.
#include <nanobind/stl/string.h>

#include <stdexcept>

#include "bind.hpp"
#include "pack/scatter.hpp"
#include "pack/uses.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace gids {
namespace {

using Release = nb::call_guard<nb::gil_scoped_release>;

// Region r has the sources [ends[r - 1], ends[r]); those of a placed region have places too, at the same indices.
std::vector<pack::Region> regions_of(const ConstVector<int64_t>& begins, const ConstVector<int64_t>& ends,
                                     const ConstVector<uint8_t>& placed, const ConstVector<int64_t>& sources,
                                     const ConstVector<int64_t>& places) {
    std::vector<pack::Region> regions;
    int64_t begin = 0;
    for (size_t r = 0; r < begins.size(); ++r) {
        const auto count = static_cast<size_t>(ends.data()[r] - begin);
        const std::span<const int64_t> none;
        const bool has_places = placed.data()[r] != 0;
        regions.push_back({begins.data()[r],
                           {sources.data() + begin, count},
                           has_places ? std::span<const int64_t>{places.data() + begin, count} : none});
        begin = ends.data()[r];
    }
    return regions;
}

// Rows of a batch ascend, so its first and its last one show whether all are rows of the table.
template <class Id>
std::span<const Id> rows_of(const ConstVector<Id>& ids, size_t table_rows) {
    const std::span<const Id> found(ids.data(), ids.size());
    if (!found.empty() && (static_cast<int64_t>(found.front()) < 0 || static_cast<size_t>(found.back()) >= table_rows))
        throw std::out_of_range("ids must be rows of the table, ascending");
    return found;
}

template <class Id>
void bind_uses(nb::module_& m) {
    m.def(
        "count_uses",
        [](ConstVector<Id> ids, Vector<uint32_t> counts) {
            pack::count_uses(rows_of(ids, counts.size()), {counts.data(), counts.size()});
        },
        "ids"_a, "counts"_a, Release(), "Add one to the count of every row of a batch.");
    m.def(
        "mark_rows",
        [](ConstVector<Id> ids, int32_t segment, Vector<int32_t> marks) {
            return pack::mark_rows(rows_of(ids, marks.size()), segment, {marks.data(), marks.size()});
        },
        "ids"_a, "segment"_a, "marks"_a, Release(),
        "Mark the rows of a batch with its segment; returns how many no earlier batch of the segment had.");
}

}  // namespace

void bind_pack(nb::module_& m) {
    nb::class_<pack::Scatter>(m, "Scatter", "Copies rows of one pass over a table to the regions of a packed table.")
        .def(
            "__init__",
            [](pack::Scatter* self, std::string path, int64_t row_bytes, ConstVector<int64_t> begins,
               ConstVector<int64_t> ends, ConstVector<uint8_t> placed, ConstVector<int64_t> sources,
               ConstVector<int64_t> places, Vector<uint64_t> sums, int64_t buffer_bytes, int64_t resume_row) {
                new (self) pack::Scatter(std::move(path), row_bytes, regions_of(begins, ends, placed, sources, places),
                                         {sums.data(), sums.size()}, buffer_bytes, resume_row);
            },
            "path"_a, "row_bytes"_a, "begins"_a, "ends"_a, "placed"_a, "sources"_a, "places"_a, "sums"_a,
            "buffer_bytes"_a, "resume_row"_a, nb::keep_alive<1, 6>(), nb::keep_alive<1, 7>(), nb::keep_alive<1, 8>(),
            nb::keep_alive<1, 9>())
        .def(
            "add",
            [](pack::Scatter& self, int64_t first_row, ConstVector<uint8_t> rows, int64_t count, ThreadPool& pool) {
                self.add(first_row, rows.data(), count, pool);
            },
            "first_row"_a, "rows"_a, "count"_a, "pool"_a, Release())
        .def("checkpoint", &pack::Scatter::checkpoint, "pool"_a, Release())
        .def_prop_ro("bytes_written", &pack::Scatter::bytes_written);
    m.attr("NEVER_COUNTED") = pack::kNeverCounted;
    bind_uses<uint32_t>(m);
    bind_uses<int64_t>(m);
}

}  // namespace gids
