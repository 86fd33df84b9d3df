// gids._native: drives in userspace for gids.nvme.
#include <nanobind/stl/map.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "bind.hpp"
#include "nvme/device_queues.hpp"
#include "nvme/drive_set.hpp"
#include "nvme/qtest.hpp"
#include "nvme/queue_bench.hpp"
#include "nvme/status.hpp"
#include "nvme/vfio.hpp"

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

    nb::class_<DriveSet>(m, "NvmeDriveSet", "Drives together with the files that are on them.")
        // Made shared: readers keep the set alive by themselves.
        .def(nb::new_([](std::vector<std::shared_ptr<Drive>> drives) {
                 return std::make_shared<DriveSet>(std::move(drives));
             }),
             "drives"_a)
        .def(
            "add_extents",
            [](DriveSet& set, const std::string& path, uint64_t bytes, const std::vector<ExtentTuple>& extents) {
                std::vector<Extent> list;
                list.reserve(extents.size());
                for (const auto& [file_offset, length, drive_offset, drive, nsid] : extents)
                    list.push_back({file_offset, length, drive_offset, drive, nsid});
                set.add_file(path, FileMap(std::move(list)), bytes);
            },
            "path"_a, "bytes"_a, "extents"_a, "extents: (file_offset, length, drive_offset, drive, nsid), in bytes.")
        .def(
            "add_striped",
            [](DriveSet& set, const std::string& path, uint64_t bytes, uint64_t unit_bytes,
               const std::vector<ColumnTuple>& columns) {
                std::vector<Column> list;
                list.reserve(columns.size());
                for (const auto& [drive_offset, drive, nsid] : columns) list.push_back({drive_offset, drive, nsid});
                set.add_file(path, FileMap(std::move(list), unit_bytes, bytes), bytes);
            },
            "path"_a, "bytes"_a, "unit_bytes"_a, "columns"_a, "columns: (drive_offset, drive, nsid), offset in bytes.")
        .def("forget", &DriveSet::forget);

    nb::class_<DeviceQueues>(m, "NvmeDeviceQueues", "Queue pairs that kernels drive.")
        .def(nb::init<std::vector<std::shared_ptr<Drive>>, uint32_t, uint32_t, uint64_t>(), "drives"_a, "pairs"_a,
             "ids"_a, "data_bytes"_a, nb::call_guard<nb::gil_scoped_release>())
        .def_prop_ro("refs", [](const DeviceQueues& queues) { return reinterpret_cast<uintptr_t>(queues.refs()); })
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
        .def("begin", &DeviceQueues::begin, nb::call_guard<nb::gil_scoped_release>())
        .def("end", &DeviceQueues::end, nb::call_guard<nb::gil_scoped_release>())
        .def("pump", &DeviceQueues::pump, nb::call_guard<nb::gil_scoped_release>())
        .def("take_failures", [](DeviceQueues& queues) {
            std::vector<std::tuple<uint64_t, int, std::string>> found;
            for (auto& failure : queues.take_failures())
                found.emplace_back(failure.user, failure.error_number, std::move(failure.reason));
            return found;
        });
}

}  // namespace gids
