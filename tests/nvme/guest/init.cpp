// First process of the guest: gives the drive to vfio-pci as a user would, reads a table through VFIO and the engine
// `nvme`, compares every byte, prints what it saw, and powers off.
#include <fcntl.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <termios.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <random>
#include <thread>

#include "nvme/drive_set.hpp"
#include "nvme/vfio.hpp"
#include "storage/reader.hpp"

using namespace gids;
using namespace gids::nvme;

namespace {

const char* const kModules[] = {"irqbypass", "vfio", "vfio_virqfd", "vfio_iommu_type1", "vfio-pci-core", "vfio-pci"};
const std::string kAddress = "0000:00:04.0";
const std::string kTablePath = "/dataset/feat.bin";

void require(bool condition, const std::string& what) {
    if (!condition) throw std::runtime_error(what + (errno != 0 ? std::string(": ") + std::strerror(errno) : ""));
}

void write_file(const std::string& path, const std::string& text) {
    std::ofstream file(path);
    file << text;
    file.flush();
    require(file.good(), "cannot write " + path);
}

void load_modules() {
    for (const char* name : kModules) {
        const int file = open(("/modules/" + std::string(name) + ".ko").c_str(), O_RDONLY);
        require(file >= 0, std::string("no module ") + name);
        require(syscall(SYS_finit_module, file, "", 0) == 0 || errno == EEXIST, std::string("cannot load ") + name);
        close(file);
    }
    errno = 0;
}

// The steps that `gids doctor` prints.
void give_drive_to_vfio() {
    const std::string device = "/sys/bus/pci/devices/" + kAddress;
    write_file(device + "/driver_override", "vfio-pci");
    struct stat bound {};
    if (stat((device + "/driver").c_str(), &bound) == 0) write_file(device + "/driver/unbind", kAddress);
    write_file("/sys/bus/pci/drivers_probe", kAddress);
    char link[256] = {};
    require(readlink((device + "/driver").c_str(), link, sizeof link - 1) > 0, "the drive has no driver");
    require(std::string(link).ends_with("/vfio-pci"), std::string("the drive is bound to ") + link);
    errno = 0;
}

struct Table {
    uint64_t rows, row_bytes, drive_offset;
    std::vector<char> expected;
};

Table read_plan() {
    Table table{};
    std::ifstream plan("/plan");
    plan >> table.rows >> table.row_bytes >> table.drive_offset;
    require(plan.good() || plan.eof(), "bad /plan");
    std::ifstream file("/expected", std::ios::binary);
    table.expected.assign(std::istreambuf_iterator<char>(file), {});
    require(table.expected.size() == table.rows * table.row_bytes, "bad /expected");
    return table;
}

// Reads every `step`-th row in random order, some twice, through the same reader that the loader uses.
void read_table(const std::shared_ptr<Drive>& drive, const Table& table, unsigned threads, uint64_t step) {
    const auto set = std::make_shared<DriveSet>(std::vector{drive});
    const uint64_t bytes = (table.expected.size() + 4095) / 4096 * 4096;
    set->add_file(kTablePath, FileMap({Column{table.drive_offset, 0, 1}}, bytes, bytes), bytes);
    storage::TableLayout layout({{kTablePath, 0, table.rows}}, table.rows, table.row_bytes, table.row_bytes,
                                table.rows);
    storage::ReaderOptions options;
    options.engine.engine = "nvme";
    options.threads = threads;
    options.queue_depth = 64;
    options.merge_gap_bytes = 0;
    storage::Reader reader(layout, options, nullptr);
    std::vector<int64_t> rows;
    for (uint64_t row = 0; row < table.rows; row += step) rows.push_back(static_cast<int64_t>(row));
    std::mt19937 random(threads);
    for (int i = 0; i < 100; ++i) rows.push_back(rows[random() % rows.size()]);
    std::shuffle(rows.begin(), rows.end(), random);
    std::vector<std::byte> out(rows.size() * table.row_bytes);
    const auto started = std::chrono::steady_clock::now();
    const auto job = reader.submit(rows, out.data());
    require(job->wait_for(std::chrono::minutes(2)), "the read did not end");
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - started).count();
    for (size_t i = 0; i < rows.size(); ++i)
        require(
            std::memcmp(out.data() + i * table.row_bytes,
                        table.expected.data() + static_cast<uint64_t>(rows[i]) * table.row_bytes, table.row_bytes) == 0,
            "row " + std::to_string(rows[i]) + " differs");
    std::printf("GUEST rows %zu threads %u reads %lu seconds %.2f\n", rows.size(), threads,
                static_cast<unsigned long>(reader.stats().reads), seconds);
}

// Memory that is no longer mapped is out of the drive's reach: the IOMMU, not our good manners, keeps it so.
void check_iommu(Drive& drive) {
    const auto pair = drive.open_pair(1, {});
    const std::lock_guard lock(pair->mutex);
    std::memset(pair->data->bytes().data(), 0x5a, 4096);
    pair->data->abandon();
    require(enqueue(Serial{}, pair->ref, true, Read{0, 0, 8, 4096, 1, 0}, 0, now_ns(), pair->bytes_per_id) ==
                Enqueue::kDone,
            "enqueue");
    ring(Serial{}, pair->ref, 1);
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    for (int i = 0; i < 4096; ++i)
        require(pair->data->bytes()[static_cast<size_t>(i)] == std::byte{0x5a}, "the drive wrote to unmapped memory");
    drain(Serial{}, pair->ref, 1, [](uint32_t, uint64_t, uint32_t) { return true; });
    std::printf("GUEST unmapped memory stayed as it was\n");
}

void run() {
    for (const char* directory : {"/proc", "/sys", "/dev"}) mkdir(directory, 0755);
    require(mount("proc", "/proc", "proc", 0, nullptr) == 0, "proc");
    require(mount("sysfs", "/sys", "sysfs", 0, nullptr) == 0, "sysfs");
    mount("devtmpfs", "/dev", "devtmpfs", 0, nullptr);
    write_file("/proc/sys/vm/nr_hugepages", "16");
    errno = 0;
    load_modules();
    give_drive_to_vfio();
    const Table table = read_plan();
    DriveOptions options;
    options.pairs = 4;
    const auto drive = std::make_shared<Drive>(open_vfio(kAddress), options);
    std::printf("GUEST drive %s serial %s mdts %lu queues %u depth %u notes [%s]\n", drive->name().c_str(),
                drive->info().serial.c_str(), static_cast<unsigned long>(drive->info().max_transfer_bytes),
                drive->info().io_queues, drive->depth(), drive->notes().c_str());
    {
        std::vector<std::byte> unaligned(8192);
        const auto pair = drive->open_pair(4, unaligned);
        std::printf("GUEST unaligned target: %s\n", pair->bytes_per_id != 0 ? "own buffers" : "mapped");
        drive->release_pair(pair);
    }
    read_table(drive, table, /*threads=*/1, /*step=*/1);
    read_table(drive, table, /*threads=*/2, /*step=*/5);
    check_iommu(*drive);
    drive->close();
    std::printf("GUEST closed: %s\n", drive->closed_reason().c_str());
}

}  // namespace

int main() {
    try {
        run();
        std::printf("GUEST OK\n");
    } catch (const std::exception& error) {
        std::printf("GUEST FAILED %s\n", error.what());
    }
    std::fflush(stdout);
    tcdrain(STDOUT_FILENO);  // the last line leaves the serial port before the power goes
    sync();
    reboot(RB_POWER_OFF);
    return 1;
}
