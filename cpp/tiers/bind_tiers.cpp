// Bindings of the tiers: Planner, gather_rows, admit_rows, and the map of the host buffer's rows.
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "bind.hpp"
#include "errors.hpp"
#include "tiers/gather.hpp"
#include "tiers/pagerank.hpp"
#include "tiers/planner.hpp"
#include "tiers/slots.hpp"
#include "tiers/sweep.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace gids {

namespace {

using Bytes = nb::ndarray<uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
template <class T>
using Owned = nb::ndarray<nb::numpy, T, nb::ndim<1>>;
using OwnedVector = Owned<int64_t>;

template <class T>
std::span<T> span_of(const nb::ndarray<T, nb::ndim<1>, nb::c_contig, nb::device::cpu>& array) {
    return {array.data(), array.shape(0)};
}

template <class T>
Owned<T> owned(std::vector<T>&& values) {
    auto* kept = new std::vector<T>(std::move(values));
    const nb::capsule owner(kept, [](void* p) noexcept { delete static_cast<std::vector<T>*>(p); });
    return Owned<T>(kept->data(), {kept->size()}, owner);
}

template <class Call>
auto without_gil(const Call& call) {
    const nb::gil_scoped_release release;
    return call();
}

// The entries of a RowMap as int64[2 * entries]: they may lie in memory that several processes share.
RowMap map_of(const Vector<int64_t>& entries) {
    const uint64_t count = entries.shape(0) / 2;
    if (count == 0 || (count & (count - 1)) != 0)
        throw ConfigError("entries of a row map must be a power of two (got " + std::to_string(count) + ")");
    return {reinterpret_cast<RowEntry*>(entries.data()), count - 1};
}

void fill_map(const Vector<int64_t>& entries, const ConstVector<int64_t>& rows) {
    const RowMap map = map_of(entries);
    if (rows.shape(0) > map.mask)
        throw ConfigError("a row map of " + std::to_string(map.mask + 1) + " entries must hold fewer rows (got " +
                          std::to_string(rows.shape(0)) + ")");
    for (uint64_t at = 0; at <= map.mask; ++at) map.entries[at] = {kNoRow, kNoValue};
    for (size_t i = 0; i < rows.shape(0); ++i) {
        bool added = false;
        map.claim(rows.data()[i], added)->value = static_cast<int64_t>(i);
        if (!added)
            throw ConfigError("rows of a host buffer must be unique (got " + std::to_string(rows.data()[i]) +
                              " twice)");
    }
}

using Counted = std::tuple<int64_t, int64_t, int64_t, int64_t, int64_t>;  // the fields of PlanCounters
using Planned = std::tuple<OwnedVector, OwnedVector, OwnedVector, OwnedVector, std::vector<Counted>>;

Planned plan(Planner& planner, ThreadPool& pool, const std::vector<ConstVector<int64_t>>& batches,
             const std::vector<Vector<int64_t>>& locations) {
    GroupPlanned planned;
    {
        const nb::gil_scoped_release release;
        std::vector<std::span<const int64_t>> rows;
        std::vector<std::span<int64_t>> out;
        if (batches.size() != locations.size()) throw ConfigError("locations must have one array per batch");
        for (size_t b = 0; b < batches.size(); ++b) {
            rows.push_back(span_of(batches[b]));
            out.push_back(span_of(locations[b]));
            if (rows[b].size() != out[b].size()) throw ConfigError("locations must be as long as their batch");
        }
        planned = planner.plan(pool, rows, out);
    }
    std::vector<Counted> counters;
    for (const PlanCounters& c : planned.counters)
        counters.emplace_back(c.requests, c.cache, c.host, c.disk, c.duplicates);
    return {owned(std::move(planned.disk_rows)), owned(std::move(planned.admit_position)),
            owned(std::move(planned.admit_slot)), owned(std::move(planned.admit_begin)), std::move(counters)};
}

void gather(ThreadPool& pool, const Bytes& cache, const Bytes& host, const Bytes& group,
            const ConstVector<int64_t>& location, const Bytes& out, DType to, DType from, int64_t dim,
            int64_t row_bytes) {
    const auto rows_in = [row_bytes](const Bytes& bytes) { return static_cast<int64_t>(bytes.shape(0)) / row_bytes; };
    const AddressSpace space{cache.data(),  host.data(),    group.data(), rows_in(cache),
                             rows_in(host), rows_in(group), row_bytes};
    gather_rows(pool, space, span_of(location), out.data(), to, from, dim);
}

void admit(ThreadPool& pool, const Bytes& cache, const ConstVector<int64_t>& slot, const Bytes& group,
           const ConstVector<int64_t>& position, int64_t row_bytes) {
    if (slot.shape(0) != position.shape(0)) throw ConfigError("slot and position must be equally long");
    const auto check = [row_bytes](const char* name, const ConstVector<int64_t>& rows, const Bytes& bytes) {
        const int64_t limit = static_cast<int64_t>(bytes.shape(0)) / row_bytes;
        for (const int64_t row : span_of(rows))
            if (row < 0 || row >= limit)
                throw ConfigError(std::string(name) + " must be in [0, " + std::to_string(limit) + ") (got " +
                                  std::to_string(row) + ")");
    };
    check("slot", slot, cache);
    check("position", position, group);
    admit_rows(pool, cache.data(), span_of(slot), group.data(), span_of(position), row_bytes);
}

template <class Index>
void push(ThreadPool& pool, const ConstVector<int64_t>& indptr, const ConstVector<uint64_t>& rank,
          const ConstVector<Index>& sources, int64_t first, uint64_t relations, const Vector<uint64_t>& received) {
    push_ranks<Index>(pool, span_of(indptr), span_of(rank), span_of(sources), first, relations, span_of(received));
}

void damp(ThreadPool& pool, const Vector<uint64_t>& received, const ConstVector<uint64_t>& restart, uint32_t damping,
          const Vector<uint64_t>& rank) {
    damp_ranks(pool, span_of(received), span_of(restart), damping, span_of(rank));
}

}  // namespace

void bind_tiers(nb::module_& m) {
    nb::enum_<PolicyKind>(m, "PolicyKind")
        .value("RANDOM", PolicyKind::kRandom)
        .value("LRU", PolicyKind::kLru)
        .value("SIEVE", PolicyKind::kSieve)
        .value("GIDS", PolicyKind::kGids)
        .value("WINDOW", PolicyKind::kWindow);
    nb::enum_<DType>(m, "DType")
        .value("float16", DType::kFloat16)
        .value("bfloat16", DType::kBFloat16)
        .value("float32", DType::kFloat32)
        .value("float64", DType::kFloat64)
        .value("uint8", DType::kUInt8)
        .value("int8", DType::kInt8)
        .value("int16", DType::kInt16)
        .value("int32", DType::kInt32)
        .value("int64", DType::kInt64);

    nb::class_<Planner>(m, "CachePlanner", "Plans groups of batches: locations, rows to read, slots to fill.")
        .def(
            "__init__",
            [](Planner* self, int64_t capacity, int64_t num_rows, PolicyKind policy, uint64_t seed) {
                new (self) Planner(PlannerOptions{capacity, num_rows, policy, seed});
            },
            "capacity"_a, "num_rows"_a, "policy"_a, "seed"_a)
        .def(
            "set_host",
            [](Planner& self, const Vector<int64_t>& entries, int64_t rows) { self.set_host(map_of(entries), rows); },
            "entries"_a, "rows"_a, nb::keep_alive<1, 2>())
        .def(
            "set_popularity",
            [](Planner& self, const ConstVector<uint8_t>& levels) { self.set_popularity(span_of(levels)); }, "levels"_a,
            nb::keep_alive<1, 2>())
        .def(
            "observe",
            [](Planner& self, ThreadPool& pool, const ConstVector<int64_t>& rows) {
                self.observe(pool, span_of(rows));
            },
            "pool"_a, "rows"_a, nb::call_guard<nb::gil_scoped_release>())
        .def("forget_window", &Planner::forget_window)
        .def("reset", &Planner::reset)
        .def("plan", &plan, "pool"_a, "batches"_a, "locations"_a)
        .def_prop_ro("looks_ahead", &Planner::looks_ahead)
        .def_prop_ro("memory_bytes", &Planner::memory_bytes)
        .def("resident_rows", [](const Planner& self) { return owned(self.resident_rows()); });

    nb::class_<Sweep>(m, "Sweep", "Rows that groups wait for, read region by region in one sweep after another.")
        .def(nb::init<int64_t, int32_t>(), "num_rows"_a, "regions"_a)
        .def(
            "admit",
            [](Sweep& self, const ConstVector<int64_t>& rows) {
                const Sweep::Admitted admitted = without_gil([&] { return self.admit(span_of(rows)); });
                return std::make_tuple(admitted.steps, admitted.new_rows);
            },
            "rows"_a, "Gives the steps after which all rows were read, and how many no earlier group has.")
        .def(
            "peak", [](const Sweep& self, const ConstVector<int64_t>& rows) { return self.peak(span_of(rows)); },
            "rows"_a, nb::call_guard<nb::gil_scoped_release>())
        .def("due", &Sweep::due)
        .def(
            "step",
            [](Sweep& self, const ConstVector<int32_t>& slots) {
                return owned(without_gil([&] { return self.step(span_of(slots)); }));
            },
            "slots"_a)
        .def(
            "find",
            [](const Sweep& self, const ConstVector<int64_t>& rows, const Vector<int32_t>& slots) {
                self.find(span_of(rows), span_of(slots));
            },
            "rows"_a, "slots"_a, nb::call_guard<nb::gil_scoped_release>())
        .def("release", [](Sweep& self) { return owned(without_gil([&] { return self.release(); })); })
        .def("clear", &Sweep::clear);

    m.def("row_map_entries", &map_entries_for, "keys"_a, "Entries that a row map of `keys` rows needs.");
    m.def("fill_row_map", &fill_map, "entries"_a, "rows"_a, nb::call_guard<nb::gil_scoped_release>());
    m.def("gather_rows", &gather, "pool"_a, "cache"_a, "host"_a, "group"_a, "location"_a, "out"_a, "to"_a, "from_"_a,
          "dim"_a, "row_bytes"_a, nb::call_guard<nb::gil_scoped_release>());
    m.def("admit_rows", &admit, "pool"_a, "cache"_a, "slot"_a, "group"_a, "position"_a, "row_bytes"_a,
          nb::call_guard<nb::gil_scoped_release>());
    m.def(
        "place_rows",
        [](const Vector<int64_t>& location, int64_t base, const ConstVector<int32_t>& slot) {
            place_rows(span_of(location), base, span_of(slot));
        },
        "location"_a, "base"_a, "slot"_a, nb::call_guard<nb::gil_scoped_release>());
    m.def("push_ranks", &push<int32_t>, "pool"_a, "indptr"_a, "rank"_a, "sources"_a, "first"_a, "relations"_a,
          "received"_a, nb::call_guard<nb::gil_scoped_release>());
    m.def("push_ranks", &push<int64_t>, "pool"_a, "indptr"_a, "rank"_a, "sources"_a, "first"_a, "relations"_a,
          "received"_a, nb::call_guard<nb::gil_scoped_release>());
    m.def("damp_ranks", &damp, "pool"_a, "received"_a, "restart"_a, "damping"_a, "rank"_a,
          nb::call_guard<nb::gil_scoped_release>());
}

}  // namespace gids
