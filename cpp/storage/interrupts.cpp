// Interrupt counts of a disk by processor, from sysfs; and the move of a thread.
#include "storage/interrupts.hpp"

#include <sched.h>
#include <sys/sysmacros.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <numeric>
#include <string>
#include <system_error>
#include <vector>

namespace gids::storage {
namespace {

constexpr double kNearlyAll = 0.9;

}  // namespace

int interrupt_cpu(dev_t device, const std::filesystem::path& sys) {
    namespace fs = std::filesystem;
    std::error_code error;
    fs::path place =
        fs::canonical(sys / "dev/block" / (std::to_string(major(device)) + ":" + std::to_string(minor(device))), error);
    if (error) return -1;
    // A partition lies below its disk, a disk below the controller that interrupts.
    while (place.has_relative_path() && !fs::is_directory(place / "msi_irqs", error)) place = place.parent_path();
    std::vector<uint64_t> counts;  // by processor
    for (const auto& entry : fs::directory_iterator(place / "msi_irqs", error)) {
        std::ifstream file(sys / "kernel/irq" / entry.path().filename() / "per_cpu_count");
        std::string count;
        for (size_t cpu = 0; std::getline(file, count, ','); ++cpu) {
            if (counts.size() <= cpu) counts.resize(cpu + 1);
            counts[cpu] += std::strtoull(count.c_str(), nullptr, 10);
        }
    }
    const auto all = static_cast<double>(std::accumulate(counts.begin(), counts.end(), uint64_t{0}));
    const auto most = std::ranges::max_element(counts);
    if (all == 0 || static_cast<double>(*most) < kNearlyAll * all) return -1;
    return static_cast<int>(most - counts.begin());
}

void move_to_cpu(int cpu) {
    if (cpu < 0 || cpu >= CPU_SETSIZE || sched_getcpu() == cpu) return;
    cpu_set_t allowed, only;
    if (sched_getaffinity(0, sizeof(allowed), &allowed) != 0 || !CPU_ISSET(cpu, &allowed)) return;
    CPU_ZERO(&only);
    CPU_SET(cpu, &only);
    if (sched_setaffinity(0, sizeof(only), &only) == 0) sched_setaffinity(0, sizeof(allowed), &allowed);
}

}  // namespace gids::storage
