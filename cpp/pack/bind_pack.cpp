// Python side of cpp/pack. Callers check sizes and that rows ascend; arrays outlive the object that was made of them.
#include <nanobind/stl/string.h>

#include "bind.hpp"
#include "pack/scatter.hpp"

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
}

}  // namespace gids
