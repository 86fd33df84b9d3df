// gids._native: drives in userspace for gids.nvme.
#include <nanobind/stl/map.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <cerrno>

#include "bind.hpp"
#include "nvme/device_queues.hpp"
#include "nvme/drive_set.hpp"
#include "nvme/qtest.hpp"
#include "nvme/queue_bench.hpp"
#include "nvme/status.hpp"
#include "nvme/stub_drive.hpp"
#include "nvme/vfio.hpp"
#include "nvme_plan.cuh"

namespace nb = nanobind;
using namespace nb::literals;

namespace gids {
namespace {

using namespace nvme;

DriveOptions make_options(uint32_t depth, uint32_t pairs, uint32_t max_io_bytes, double timeout_s,
                          double admin_timeout_s) {
    const auto milliseconds = [](double seconds) {
        return std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000));
    };
    return {depth, pairs, max_io_bytes, milliseconds(timeout_s), milliseconds(admin_timeout_s)};
}

nb::dict describe(Drive& drive) {
    const ControllerInfo& info = drive.info();
    nb::dict result;
    result["name"] = drive.name();
    result["serial"] = info.serial;
    result["model"] = info.model;
    result["firmware"] = info.firmware;
    result["max_transfer_bytes"] = info.max_transfer_bytes;
    result["max_queue_entries"] = info.max_queue_entries;
    result["doorbell_stride"] = info.doorbell_stride;
    result["io_queues"] = info.io_queues;
    result["depth"] = drive.depth();
    nb::list spaces;
    for (const NamespaceInfo& space : info.namespaces) {
        nb::dict entry;
        entry["nsid"] = space.nsid;
        entry["blocks"] = space.blocks;
        entry["block_bytes"] = uint64_t{1} << space.block_bits;
        entry["metadata_bytes"] = space.metadata_bytes;
        spaces.append(entry);
    }
    result["namespaces"] = spaces;
    return result;
}

nb::dict counters(Drive& drive) {
    const DriveStats stats = drive.stats();
    nb::dict result;
    result["timeouts"] = stats.timeouts;
    result["aborted"] = stats.aborted;
    result["resets"] = stats.resets;
    result["spurious"] = stats.spurious;
    result["late"] = stats.late;
    return result;
}

using ExtentTuple = std::tuple<uint64_t, uint64_t, uint64_t, uint32_t, uint32_t>;
using ColumnTuple = std::tuple<uint64_t, uint32_t, uint32_t>;

FileMap map_of_extents(const std::vector<ExtentTuple>& extents) {
    std::vector<Extent> list;
    for (const auto& [at, length, drive_at, drive, nsid] : extents) list.push_back({at, length, drive_at, drive, nsid});
    return FileMap(std::move(list));
}

FileMap map_of_columns(const std::vector<ColumnTuple>& columns, uint64_t unit_bytes, uint64_t bytes) {
    std::vector<Column> list;
    for (const auto& [drive_at, drive, nsid] : columns) list.push_back({drive_at, drive, nsid});
    return {std::move(list), unit_bytes, bytes};
}

struct PlannedFile {
    std::string name;
    FileMap map;
    uint64_t data_offset, end;  // of its rows
};

// How a table is read, for kernels/nvme_plan.cuh, with everything that it points to: for device memory at `base`.
nb::bytes table_plan(const std::vector<PlannedFile>& files, const std::vector<std::vector<Space>>& spaces,
                     TablePlan plan, uint64_t base) {
    std::vector<std::byte> image(sizeof(TablePlan));
    const auto add = [&]<class T>(const T* values, size_t count) {  // returns where they will be
        image.resize((image.size() + 15) & ~size_t{15});
        const uint64_t at = base + image.size();
        const auto* bytes = reinterpret_cast<const std::byte*>(values);
        image.insert(image.end(), bytes, bytes + count * sizeof(T));
        return reinterpret_cast<const T*>(at);
    };
    std::vector<TableFile> views;
    for (const PlannedFile& file : files) {
        // Kernels take for granted what the host would say of each read: the map has the file, in whole blocks.
        for (uint64_t at = file.data_offset / plan.block_bytes * plan.block_bytes; at < file.end;) {
            const Place place = file.map.locate(at);
            const bool ends = at + place.run >= file.end;
            if (place.run == 0 || place.drive_offset % plan.block_bytes != 0 ||
                (!ends && place.run % plan.block_bytes != 0))
                throw StorageError("the file's place on the drives ends early, or is not aligned to their blocks",
                                   file.name, at, plan.block_bytes, EINVAL);
            at += place.run;
        }
        FileView view = file.map.view();
        view.extents = add(view.extents, view.num_extents);
        view.columns = add(view.columns, view.num_columns);
        views.push_back({view, file.data_offset});
    }
    plan.num_files = views.size();
    plan.files = add(views.data(), views.size());
    for (const auto& mine : spaces) plan.spaces_per_drive = std::max<uint64_t>(plan.spaces_per_drive, mine.size());
    std::vector<Space> flat(spaces.size() * plan.spaces_per_drive, Space{0, 0});
    for (size_t d = 0; d < spaces.size(); ++d)
        std::copy(spaces[d].begin(), spaces[d].end(),
                  flat.begin() + static_cast<std::ptrdiff_t>(d * plan.spaces_per_drive));
    plan.spaces = add(flat.data(), flat.size());
    std::memcpy(image.data(), &plan, sizeof plan);
    return nb::bytes(image.data(), image.size());
}

// The drives that files are on, in the order that their maps count them.
std::vector<std::shared_ptr<Drive>> drives_of(const std::vector<std::string>& paths) {
    std::shared_ptr<DriveSet> set;
    for (const std::string& path : paths) {
        MappedFile file = find_file(path);
        if (set && file.set != set)
            throw ConfigError("files of one table must be on drives opened together (got " + path + ")");
        set = std::move(file.set);
    }
    return set ? set->drives() : std::vector<std::shared_ptr<Drive>>();
}

}  // namespace

void bind_nvme(nb::module_& m) {
    nb::class_<QtestMachine>(m, "NvmeTestMachine", "A QEMU process whose NVMe devices tests drive through -qtest.")
        .def(nb::init<const std::string&, const std::string&>(), "socket"_a, "ram"_a)
        .def(
            "command", [](QtestMachine& machine, const std::string& line) { return machine.command(line + "\n", 1); },
            "line"_a, nb::call_guard<nb::gil_scoped_release>(), "Send one qtest command and give its value.")
        .def("vanish", &QtestMachine::vanish, "slot"_a, "Make one slot's registers read as all ones; -1: none.");

    nb::class_<Drive>(m, "NvmeDrive", "A drive whose queues this process owns.")
        .def_prop_ro("name", &Drive::name)
        .def_prop_ro("info", &describe, nb::for_getter(nb::sig("def info(self, /) -> dict[str, object]")))
        .def_prop_ro("stats", &counters, nb::for_getter(nb::sig("def stats(self, /) -> dict[str, int]")))
        .def_prop_ro("notes", &Drive::notes)
        .def_prop_ro("closed_reason", &Drive::closed_reason)
        .def(
            "read",
            [](Drive& drive, uint32_t nsid, uint64_t lba, uint64_t bytes) {
                std::vector<std::byte> data;
                {
                    const nb::gil_scoped_release release;
                    data = drive.read(nsid, lba, bytes);
                }
                return nb::bytes(data.data(), data.size());
            },
            "nsid"_a, "lba"_a, "bytes"_a, "Read whole blocks, blocking.")
        .def("close", &Drive::close, nb::call_guard<nb::gil_scoped_release>());

    m.def(
        "nvme_open_test",
        [](std::shared_ptr<QtestMachine> machine, int slot, uint32_t depth, uint32_t pairs, uint32_t max_io_bytes,
           double timeout_s, double admin_timeout_s) {
            return std::make_shared<Drive>(open_qtest(std::move(machine), slot),
                                           make_options(depth, pairs, max_io_bytes, timeout_s, admin_timeout_s));
        },
        "machine"_a, "slot"_a, "depth"_a, "pairs"_a, "max_io_bytes"_a, "timeout_s"_a, "admin_timeout_s"_a,
        nb::call_guard<nb::gil_scoped_release>());
    m.def(
        "nvme_open_vfio",
        [](const std::string& address, uint32_t depth, uint32_t pairs, uint32_t max_io_bytes, double timeout_s,
           double admin_timeout_s) {
            return std::make_shared<Drive>(open_vfio(address),
                                           make_options(depth, pairs, max_io_bytes, timeout_s, admin_timeout_s));
        },
        "address"_a, "depth"_a, "pairs"_a, "max_io_bytes"_a, "timeout_s"_a, "admin_timeout_s"_a,
        nb::call_guard<nb::gil_scoped_release>());
    m.def(
        "nvme_measure_queue",
        [](uint32_t threads, bool shared, uint64_t commands, uint32_t batch) {
            const QueueRate rate = measure_queue(threads, shared, commands, batch);
            return std::make_pair(rate.commands_per_second, rate.ns_per_command);
        },
        "threads"_a, "shared"_a, "commands"_a, "batch"_a, nb::call_guard<nb::gil_scoped_release>(),
        "Commands per second over all threads, and nanoseconds of one thread per command, with no device behind.");
    m.def("nvme_describe_status", &describe_status, "status"_a, "A completion's status bits in words.");

    nb::class_<StubDrive>(m, "NvmeStubDrive", "A drive made of memory, for checks of kernels; its bytes are a formula.")
        .def(nb::init<uint32_t, uint32_t, uint64_t>(), "depth"_a, "ids"_a, "data_bytes"_a)
        .def_prop_ro("refs", [](const StubDrive& stub) { return reinterpret_cast<uintptr_t>(stub.refs()); })
        .def_prop_ro("data", [](StubDrive& stub) { return reinterpret_cast<uintptr_t>(stub.data()); })
        .def("regions",
             [](StubDrive& stub) {
                 std::vector<std::pair<uintptr_t, uint64_t>> found;
                 for (const auto& region : stub.regions())
                     found.emplace_back(reinterpret_cast<uintptr_t>(region.data()), region.size());
                 return found;
             })
        .def("stop", &StubDrive::stop, nb::call_guard<nb::gil_scoped_release>(),
             "End its thread, and give what it found wrong.");

    nb::class_<DriveSet>(m, "NvmeDriveSet", "Drives together with the files that are on them.")
        // Made shared: readers keep the set alive by themselves.
        .def(nb::new_([](std::vector<std::shared_ptr<Drive>> drives) {
                 return std::make_shared<DriveSet>(std::move(drives));
             }),
             "drives"_a)
        .def(
            "add_extents",
            [](DriveSet& set, const std::string& path, uint64_t bytes, const std::vector<ExtentTuple>& extents) {
                set.add_file(path, map_of_extents(extents), bytes);
            },
            "path"_a, "bytes"_a, "extents"_a, "extents: (file_offset, length, drive_offset, drive, nsid), in bytes.")
        .def(
            "add_striped",
            [](DriveSet& set, const std::string& path, uint64_t bytes, uint64_t unit_bytes,
               const std::vector<ColumnTuple>& columns) {
                set.add_file(path, map_of_columns(columns, unit_bytes, bytes), bytes);
            },
            "path"_a, "bytes"_a, "unit_bytes"_a, "columns"_a, "columns: (drive_offset, drive, nsid), offset in bytes.")
        .def("forget", &DriveSet::forget);

    m.def("nvme_drives_of", &drives_of, "paths"_a, "Open drives that carry these files.");
    nb::class_<FileMap>(m, "NvmeFileMap", "Where the bytes of a file are on drives.")
        .def(
            "__init__",
            [](FileMap* self, const std::vector<ExtentTuple>& extents) { new (self) FileMap(map_of_extents(extents)); },
            "extents"_a)
        .def(
            "__init__",
            [](FileMap* self, const std::vector<ColumnTuple>& columns, uint64_t unit_bytes, uint64_t bytes) {
                new (self) FileMap(map_of_columns(columns, unit_bytes, bytes));
            },
            "columns"_a, "unit_bytes"_a, "bytes"_a);
    m.def(
        "nvme_map_of", [](const std::string& path) { return *find_file(path).map; }, "path"_a,
        "Where a file is on the open drives.");
    m.def(
        "nvme_table_plan",
        [](const std::vector<std::tuple<std::string, const FileMap*, uint64_t, uint64_t>>& files,
           const std::vector<std::vector<std::pair<uint32_t, uint32_t>>>& spaces, uint64_t stripe_rows,
           uint64_t row_stride, uint64_t row_bytes, uint64_t block_bytes, uint64_t gap_bytes, uint64_t window_bytes,
           uint64_t max_bytes, uint64_t part_bytes, uint64_t parts, uint64_t base) {
            std::vector<PlannedFile> planned;
            for (const auto& [name, map, begin, end] : files) planned.push_back({name, *map, begin, end});
            std::vector<std::vector<Space>> known;
            for (const auto& mine : spaces) {
                auto& list = known.emplace_back();
                for (const auto& [nsid, block_bits] : mine) list.push_back({nsid, block_bits});
            }
            return table_plan(planned, known,
                              {.files = nullptr,
                               .spaces = nullptr,
                               .num_files = 0,
                               .spaces_per_drive = 0,
                               .stripe_rows = stripe_rows,
                               .row_stride = row_stride,
                               .row_bytes = row_bytes,
                               .block_bytes = block_bytes,
                               .gap_bytes = gap_bytes,
                               .window_bytes = window_bytes,
                               .max_bytes = max_bytes,
                               .part_bytes = part_bytes,
                               .parts = parts},
                              base);
        },
        "files"_a, "spaces"_a, nb::kw_only(), "stripe_rows"_a, "row_stride"_a, "row_bytes"_a, "block_bytes"_a,
        "gap_bytes"_a, "window_bytes"_a, "max_bytes"_a, "part_bytes"_a, "parts"_a, "base"_a,
        "How kernels read a table: kernels/nvme_plan.cuh's TablePlan and what it points to, for memory at `base`.");
    m.def("nvme_may_retry", &may_retry, "status"_a, "Whether the same command may fare better another time.");

    nb::class_<DeviceQueues::Run>(m, "NvmeKernels", "Kernels that use queue pairs, until they have ended.")
        .def_prop_ro("function", &DeviceQueues::Run::function, "Address of the function that ends it.")
        .def_prop_ro("address", &DeviceQueues::Run::address, "What that function is given.")
        .def_prop_ro("has_ended", &DeviceQueues::Run::has_ended)
        .def("end", &DeviceQueues::Run::end, "End it, if the driver has not.");

    nb::class_<DeviceQueues>(m, "NvmeDeviceQueues", "Queue pairs that kernels drive.")
        .def(nb::init<std::vector<std::shared_ptr<Drive>>, uint32_t, uint32_t, uint64_t>(), "drives"_a, "pairs"_a,
             "ids"_a, "data_bytes"_a, nb::call_guard<nb::gil_scoped_release>())
        .def_prop_ro("device_bytes", &DeviceQueues::device_bytes)
        .def(
            "images",
            [](DeviceQueues& queues, uint64_t base) {
                std::vector<std::pair<uint64_t, nb::bytes>> found;
                for (const auto& [offset, bytes] : queues.images(base))
                    found.emplace_back(offset, nb::bytes(bytes.data(), bytes.size()));
                return found;
            },
            "base"_a, "What is to be copied to device memory at this address before the next launch.")
        .def_prop_ro(
            "data",
            [](DeviceQueues& queues) {
                const auto memory = queues.data();
                return nb::ndarray<nb::numpy, uint8_t, nb::ndim<1>>(memory.data(), {memory.size()}, nb::find(&queues));
            },
            nb::rv_policy::reference_internal)
        .def_prop_ro("max_bytes", &DeviceQueues::max_bytes)
        .def("regions",
             [](const DeviceQueues& queues) {
                 std::vector<std::tuple<uintptr_t, uint64_t, bool>> found;
                 for (const auto& region : queues.regions())
                     found.emplace_back(reinterpret_cast<uintptr_t>(region.address), region.bytes, region.registers);
                 return found;
             })
        .def("begin", &DeviceQueues::begin, nb::keep_alive<0, 1>(), nb::call_guard<nb::gil_scoped_release>())
        .def("pump", &DeviceQueues::pump, nb::call_guard<nb::gil_scoped_release>())
        .def("take_failures", [](DeviceQueues& queues) {
            std::vector<std::tuple<uint64_t, int, std::string>> found;
            for (auto& failure : queues.take_failures())
                found.emplace_back(failure.user, failure.error_number, std::move(failure.reason));
            return found;
        });
}

}  // namespace gids
