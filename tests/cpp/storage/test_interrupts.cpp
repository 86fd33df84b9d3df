// Interrupts: the processor is found through partitions and controllers, and nobody is sent anywhere without a reason.
#include <doctest/doctest.h>
#include <sched.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "storage/interrupts.hpp"

using gids::storage::interrupt_cpu;
using gids::storage::move_to_cpu;
namespace fs = std::filesystem;

namespace {

// A sysfs with one disk 254:0 and its partition 254:1, whose controller has two interrupts.
struct FakeSys {
    fs::path root = fs::temp_directory_path() / ("gids-sys-" + std::to_string(getpid()));
    FakeSys(const std::string& first, const std::string& second) {
        const fs::path controller = root / "devices/pci0000:00/0000:00:02.0";
        fs::create_directories(controller / "virtio1/block/vda/vda1");
        fs::create_directories(controller / "msi_irqs");
        fs::create_directories(root / "dev/block");
        fs::create_directory_symlink(controller / "virtio1/block/vda", root / "dev/block/254:0");
        fs::create_directory_symlink(controller / "virtio1/block/vda/vda1", root / "dev/block/254:1");
        for (const auto& [irq, counts] : {std::pair{"35", first}, std::pair{"36", second}}) {
            std::ofstream(controller / "msi_irqs" / irq) << "msix\n";
            fs::create_directories(root / "kernel/irq" / irq);
            std::ofstream(root / "kernel/irq" / irq / "per_cpu_count") << counts << "\n";
        }
    }
    ~FakeSys() { fs::remove_all(root); }
};

}  // namespace

TEST_CASE("one processor takes the interrupts of a disk and of its partition") {
    const FakeSys sys("0,1,0,0", "0,0,22145306,12");
    CHECK(interrupt_cpu(makedev(254, 0), sys.root) == 2);
    CHECK(interrupt_cpu(makedev(254, 1), sys.root) == 2);
}

TEST_CASE("interrupts that are spread, absent or of no known disk name no processor") {
    const FakeSys spread("1000,0", "0,1000");
    CHECK(interrupt_cpu(makedev(254, 0), spread.root) == -1);
    CHECK(interrupt_cpu(makedev(7, 7), spread.root) == -1);
    fs::remove_all(spread.root / "kernel");
    CHECK(interrupt_cpu(makedev(254, 0), spread.root) == -1);
}

TEST_CASE("a thread moves only where it may run and stays free") {
    cpu_set_t before, after;
    REQUIRE(sched_getaffinity(0, sizeof(before), &before) == 0);
    for (int cpu = -1; cpu < 64; ++cpu) move_to_cpu(cpu);
    REQUIRE(sched_getaffinity(0, sizeof(after), &after) == 0);
    CHECK(CPU_EQUAL(&before, &after));
}
