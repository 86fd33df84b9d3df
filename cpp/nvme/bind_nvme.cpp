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

// Reads for kernels: each range of a file becomes commands whose data lands, in order, from `target` on.
auto cut_reads(const std::vector<std::string>& paths, ConstVector<int64_t> file, ConstVector<int64_t> offset,
               ConstVector<int64_t> length, ConstVector<int64_t> target, uint32_t max_bytes) {
    std::vector<MappedFile> files;
    files.reserve(paths.size());
    for (const std::string& path : paths) files.push_back(find_file(path));
    auto* reads = new std::vector<Read>;
    const nb::capsule owner(reads, [](void* p) noexcept { delete static_cast<std::vector<Read>*>(p); });
    for (size_t i = 0; i < offset.size(); ++i) {
        const auto number = static_cast<size_t>(file.data()[i]);
        const auto from = static_cast<uint64_t>(offset.data()[i]);
        const auto bytes = static_cast<uint32_t>(length.data()[i]);
        const MappedFile& place = files.at(number);
        const auto limit = [max_bytes](uint32_t) { return max_bytes; };
        const uint32_t found = cut_range(*place.set, *place.map, from, bytes, limit, [&](const Cut& cut) {
            reads->push_back({cut.lba, static_cast<uint64_t>(target.data()[i]) + cut.done, cut.blocks, cut.bytes,
                              cut.nsid, cut.drive});
            return cut.aligned;
        });
        if (found < bytes)
            throw StorageError("the file's place on the drives ends early, or is not aligned to their blocks",
                               paths[number], from + found, bytes - found, EINVAL);
    }
    auto* bytes = reinterpret_cast<uint8_t*>(reads->data());
    return nb::ndarray<nb::numpy, uint8_t, nb::ndim<1>>(bytes, {reads->size() * sizeof(Read)}, owner);
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

    m.def("nvme_drives_of", &drives_of, "paths"_a, "Open drives that carry these files.");
    m.def("nvme_cut_reads", &cut_reads, "paths"_a, "file"_a, "offset"_a, "length"_a, "target"_a, "max_bytes"_a,
          "Byte ranges of files as reads of drives: an array of kernels/nvme_spec.cuh's Read, as bytes.");
    m.def("nvme_may_retry", &may_retry, "status"_a, "Whether the same command may fare better another time.");

    nb::class_<DeviceQueues::Run>(m, "NvmeKernels", "Kernels that use queue pairs, until they have ended.")
        .def_prop_ro("function", &DeviceQueues::Run::function, "Address of the function that ends it.")
        .def_prop_ro("address", &DeviceQueues::Run::address, "What that function is given.")
        .def_prop_ro("has_ended", &DeviceQueues::Run::has_ended)
        .def("end", &DeviceQueues::Run::end, "End it, if the driver has not.");

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
