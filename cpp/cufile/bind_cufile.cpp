// gids._native: cuFile's batch interface for gids.cuda.gds.
#include <nanobind/stl/map.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <memory>

#include "bind.hpp"
#include "cufile/batches.hpp"
#include "errors.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace gids {
namespace {

using namespace cufile;
constexpr auto kSignalSlice = std::chrono::milliseconds(50);

class BoundBatches {
public:
    BoundBatches(const std::string& library, std::vector<std::string> paths, uintptr_t context, unsigned batches,
                 unsigned entries, double timeout_s)
        : batches_(std::make_unique<Batches>(
              load_library(library), std::move(paths), reinterpret_cast<void*>(context),
              BatchOptions{batches, entries, std::chrono::milliseconds(static_cast<int64_t>(timeout_s * 1000))})) {}
    ~BoundBatches() { close(); }
    // Waits for what is in flight, though not with the lock that everybody else needs.
    void close() {
        const nb::gil_scoped_release nogil;
        batches_.reset();
    }
    Batches& here() {
        if (!batches_) throw ConfigError("batches of cuFile must be open (they are closed)");
        return *batches_;
    }

private:
    std::unique_ptr<Batches> batches_;
};

void wait(Job& job) {
    for (;;) {
        {
            const nb::gil_scoped_release nogil;
            if (job.wait_for(kSignalSlice)) return;
        }
        if (PyErr_CheckSignals() != 0) {
            job.cancel();
            throw nb::python_error();
        }
    }
}

// Ends a job without looking at how.
void abandon(Job& job) {
    const nb::gil_scoped_release nogil;
    job.cancel();
    try {
        while (!job.wait_for(kSignalSlice)) continue;
    } catch (const StorageError&) {
        return;
    }
}

std::map<std::string, uint64_t> read_properties(const std::string& library) {
    Properties found{};
    if (const Error error = load_library(library).properties(&found); error.code != 0)
        throw ConfigError("cuFile must tell its properties (" + describe(error) + ")");
    return {{"p2p_supported", (found.fflags & kP2pSupported) != 0},
            {"batch_supported", (found.fflags & kBatchSupported) != 0},
            {"max_batch_entries", found.max_batch_io_size},
            {"max_pinned_bytes", uint64_t{found.max_device_pinned_mem_size} << 10},
            {"cache_bytes", uint64_t{found.max_device_cache_size} << 10}};
}

}  // namespace

void bind_cufile(nb::module_& m) {
    m.def("cufile_properties", &read_properties, "library"_a, "What cuFile's driver allows; it must be open.");
    nb::class_<Job>(m, "CufileJob", "Ranges that were queued together.")
        .def("wait", &wait, "Return when every range has arrived; raise the first failure once nothing is in flight.")
        .def("abandon", &abandon, "Queue nothing more of it, and wait for what is in flight.")
        .def_prop_ro("abandoned", &Job::abandoned, "Whether memory may still be written to.");
    nb::class_<BoundBatches>(m, "CufileBatches", "Files read into device memory by cuFile's batch interface.")
        .def(nb::init<const std::string&, std::vector<std::string>, uintptr_t, unsigned, unsigned, double>(),
             "library"_a, "paths"_a, "context"_a, "batches"_a, "entries"_a, "timeout_s"_a)
        .def(
            "submit",
            [](BoundBatches& self, uintptr_t base, ConstVector<int64_t> file, ConstVector<int64_t> offset,
               ConstVector<int64_t> length, ConstVector<int64_t> to) {
                std::vector<Range> ranges(file.size());
                for (size_t i = 0; i < ranges.size(); ++i)
                    ranges[i] = {static_cast<uint32_t>(file.data()[i]), static_cast<uint64_t>(offset.data()[i]),
                                 static_cast<uint64_t>(length.data()[i]), static_cast<uint64_t>(to.data()[i])};
                return self.here().submit(reinterpret_cast<std::byte*>(base), std::move(ranges));
            },
            "base"_a, "file"_a, "offset"_a, "length"_a, "to"_a)
        .def_prop_ro("broken", [](BoundBatches& self) { return self.here().broken(); })
        .def_prop_ro("submitted_batches", [](BoundBatches& self) { return self.here().submitted_batches(); })
        .def_prop_ro("submitted_ranges", [](BoundBatches& self) { return self.here().submitted_ranges(); })
        .def("close", &BoundBatches::close);
}

}  // namespace gids
