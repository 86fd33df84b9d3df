// gids._native: the planner and the reader of gids.storage.
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>
#include <unistd.h>

#include "bind.hpp"
#include "errors.hpp"
#include "storage/engine.hpp"
#include "storage/plan.hpp"
#include "storage/reader.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace gids {
namespace {

using namespace storage;

constexpr auto kSignalSlice = std::chrono::milliseconds(50);

template <class T>
nb::ndarray<nb::numpy, T, nb::ndim<1>> to_numpy(std::vector<T> values) {
    auto* owned = new std::vector<T>(std::move(values));
    const nb::capsule owner(owned, [](void* p) noexcept { delete static_cast<std::vector<T>*>(p); });
    return nb::ndarray<nb::numpy, T, nb::ndim<1>>(owned->data(), {owned->size()}, owner);
}

// A plan together with the layout that gives its keys a meaning.
struct BoundPlan {
    ReadPlan plan;
    std::shared_ptr<const TableLayout> layout;

    template <class Get>
    auto per_read(Get get) const {
        std::vector<int64_t> values;
        values.reserve(plan.reads().size());
        for (const Read& read : plan.reads()) values.push_back(static_cast<int64_t>(get(read)));
        return to_numpy(std::move(values));
    }
    auto rows() const {
        std::vector<int64_t> values(static_cast<size_t>(plan.num_rows()));
        for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<int64_t>(layout->row_of(plan.key(i)));
        return to_numpy(std::move(values));
    }
    auto positions() const {
        std::vector<int64_t> values(static_cast<size_t>(plan.num_rows()));
        for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<int64_t>(plan.position(i));
        return to_numpy(std::move(values));
    }
};

// A job as Python sees it. Dropping it cancels the read, so that nothing is written to memory that may be gone; where
// that cannot be stopped, the memory stays for ever.
class Pending {
public:
    Pending(std::shared_ptr<Job> job, nb::object out) : job_(std::move(job)), out_(std::move(out)), pid_(getpid()) {}
    Pending(Pending&& other) noexcept = default;
    ~Pending() {
        if (!job_) return;
        if (pid_ != getpid()) {
            new std::shared_ptr<Job>(std::move(job_));  // its lock may be held by a thread that only the parent has
            return;
        }
        cancel();
        if (job_->abandoned()) static_cast<void>(out_.release());
    }

    // Waits in slices, so that Ctrl-C is noticed.
    void wait() {
        for (;;) {
            {
                const nb::gil_scoped_release nogil;
                if (here().wait_for(kSignalSlice)) return;
            }
            if (PyErr_CheckSignals() != 0) {
                nb::python_error interrupt;
                cancel();
                throw interrupt;
            }
        }
    }
    bool done() { return here().ended(); }
    void cancel() {
        Job& job = here();
        const nb::gil_scoped_release nogil;
        job.cancel();
    }

private:
    Job& here() {
        if (pid_ != getpid())
            throw StorageError("the read was started by process " + std::to_string(pid_) + ", not by this fork of it",
                               "", 0, 0, 0);
        return *job_;
    }

    std::shared_ptr<Job> job_;
    nb::object out_;
    int pid_;
};

// Whoever drops a reader waits for its threads, though not with the lock that everybody else needs.
class BoundReader : public Reader {
public:
    using Reader::Reader;
    ~BoundReader() {
        const nb::gil_scoped_release nogil;
        end();
    }
};

}  // namespace

void bind_storage(nb::module_& m) {
    nb::class_<TableLayout>(m, "TableLayout", "Where rows lie in files.")
        .def(
            "__init__",
            [](TableLayout* self, const std::vector<std::tuple<std::string, uint64_t, uint64_t>>& files,
               uint64_t num_rows, uint64_t row_bytes, uint64_t row_stride, uint64_t stripe_rows) {
                std::vector<StripeFile> stripes;
                for (const auto& [path, offset, rows] : files) stripes.push_back({path, offset, rows});
                new (self) TableLayout(std::move(stripes), num_rows, row_bytes, row_stride, stripe_rows);
            },
            "files"_a, "num_rows"_a, "row_bytes"_a, "row_stride"_a, "stripe_rows"_a);

    const auto taken = nb::rv_policy::take_ownership;
    nb::class_<BoundPlan> plan(m, "ReadPlan", "Byte ranges to read for a list of rows.");
    plan.def_prop_ro("num_rows", [](const BoundPlan& p) { return p.plan.num_rows(); })
        .def_prop_ro("num_unique", [](const BoundPlan& p) { return p.plan.num_unique(); })
        .def_prop_ro("num_reads", [](const BoundPlan& p) { return p.plan.reads().size(); })
        .def_prop_ro("bytes", [](const BoundPlan& p) { return p.plan.bytes(); })
        .def_prop_ro("rows", &BoundPlan::rows, taken)
        .def_prop_ro("positions", &BoundPlan::positions, taken);
    const auto column = [&](const char* name, auto get) {
        plan.def_prop_ro(
            name, [get](const BoundPlan& p) { return p.per_read(get); }, taken);
    };
    column("file", [](const Read& r) { return r.file; });
    column("offset", [](const Read& r) { return r.offset; });
    column("length", [](const Read& r) { return r.length; });
    column("first", [](const Read& r) { return r.first; });
    column("count", [](const Read& r) { return r.count; });
    column("row_begin", [](const Read& r) { return r.row_begin; });
    column("row_end", [](const Read& r) { return r.row_end; });

    m.def(
        "plan_reads",
        [](const TableLayout& layout, ConstVector<int64_t> rows, uint64_t block_bytes, uint64_t merge_gap_bytes,
           uint64_t max_io_bytes, ThreadPool* pool) {
            const auto kept = std::make_shared<const TableLayout>(layout);
            const nb::gil_scoped_release nogil;
            return BoundPlan{
                plan_reads(*kept, {rows.data(), rows.size()}, {block_bytes, merge_gap_bytes, max_io_bytes}, pool),
                kept};
        },
        "layout"_a, "rows"_a, "block_bytes"_a, "merge_gap_bytes"_a, "max_io_bytes"_a, "pool"_a.none());

    m.def("engine_availability", &engine_availability, "Engines, each with why it cannot be used ('' if it can).");

    nb::class_<FaultOptions>(m, "FaultOptions", "What the fault engine does to chosen requests.")
        .def(
            "__init__",
            [](FaultOptions* self, int64_t fail_at, int error_number, int64_t short_at, int64_t short_bytes,
               int64_t stuck_at, int64_t delay_us, bool reorder, int64_t block_at, int64_t block_us) {
                new (self) FaultOptions{fail_at,  error_number, short_at, short_bytes, stuck_at,
                                        delay_us, reorder,      block_at, block_us};
            },
            "fail_at"_a, "error_number"_a, "short_at"_a, "short_bytes"_a, "stuck_at"_a, "delay_us"_a, "reorder"_a,
            "block_at"_a, "block_us"_a);

    nb::class_<Pending>(m, "PendingRead")
        .def("wait", &Pending::wait)
        .def("done", &Pending::done)
        .def("cancel", &Pending::cancel);

    nb::class_<Reader>(m, "ReaderCore", "What other native code takes a reader as.");
    nb::class_<BoundReader, Reader>(m, "Reader", "Reads rows of one table.")
        .def(
            "__init__",
            [](BoundReader* self, const TableLayout& layout, const std::string& engine, unsigned queue_depth,
               unsigned threads, uint64_t staging_bytes, uint64_t merge_gap_bytes, uint64_t max_io_bytes,
               double timeout_s, bool sqpoll, bool iopoll, const std::optional<FaultOptions>& fault, ThreadPool* pool) {
                ReaderOptions options{{engine, sqpoll, iopoll, fault},
                                      queue_depth,
                                      threads,
                                      staging_bytes,
                                      merge_gap_bytes,
                                      max_io_bytes,
                                      timeout_s};
                const nb::gil_scoped_release nogil;
                new (self) BoundReader(layout, options, pool);
            },
            "layout"_a, "engine"_a, "queue_depth"_a, "threads"_a, "staging_bytes"_a, "merge_gap_bytes"_a,
            "max_io_bytes"_a, "timeout_s"_a, "sqpoll"_a, "iopoll"_a, "fault"_a.none(), "pool"_a.none(),
            nb::keep_alive<1, 13>())
        .def(
            "submit",
            [](BoundReader& self, ConstVector<int64_t> rows, uintptr_t address,
               const std::optional<ConstVector<int32_t>>& places, nb::object out) {
                std::shared_ptr<Job> job;
                {
                    const nb::gil_scoped_release nogil;
                    const auto where = places ? std::span(places->data(), places->size()) : std::span<const int32_t>();
                    job = self.submit({rows.data(), rows.size()}, reinterpret_cast<std::byte*>(address), where);
                }
                return Pending(std::move(job), std::move(out));
            },
            "rows"_a, "address"_a, "places"_a.none(), "out"_a)
        .def(
            "close", [](BoundReader& r) { return r.close(); }, nb::call_guard<nb::gil_scoped_release>(),
            "Give the names of threads that were left behind, blocked in the kernel.")
        .def_prop_ro("engine", [](BoundReader& r) { return r.engine_name(); })
        .def_prop_ro("notes", [](BoundReader& r) { return r.engine_notes(); })
        .def_prop_ro("orphaned_reads", [](BoundReader& r) { return r.orphaned_reads(); })
        .def_prop_ro("limits",
                     [](BoundReader& r) {
                         return std::tuple(r.limits().block_bytes, r.limits().merge_gap_bytes, r.limits().max_io_bytes);
                     })
        .def("stats", [](BoundReader& r) {
            const ReaderStats s = r.stats();
            return std::map<std::string, uint64_t>{{"jobs", s.jobs},
                                                   {"rows", s.rows},
                                                   {"unique_rows", s.unique_rows},
                                                   {"reads", s.reads},
                                                   {"bytes_read", s.bytes_read},
                                                   {"placed", s.placed},
                                                   {"retries", s.retries},
                                                   {"errors", s.errors},
                                                   {"timeouts", s.timeouts}};
        });
}

}  // namespace gids
