// Ranges of memory that somebody other than the kernel uses while it runs, and the rules that accesses to them keep.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "module.hpp"

namespace ptx {

enum class Region : uint8_t {
    kDevice,       // the GPU's own memory: every address that is in no region
    kHost,         // host memory that nobody writes while kernels run
    kDriveData,    // a drive writes it before it posts a completion
    kDriveWrites,  // a drive writes it while kernels look: completion queues
    kDriveReads,   // a drive reads it after a doorbell: submission queues and lists
    kHostWrites,   // the host's threads read and write it while kernels run
    kMmio,         // doorbells
};
inline constexpr const char* kRegionNames[] = {"device",      "host",        "drive_data", "drive_writes",
                                               "drive_reads", "host_writes", "mmio"};

// True for what lies on the other side of PCIe.
inline bool is_remote(Region region) { return region != Region::kDevice; }

// What one lane has done since its last fence of system scope.
struct FenceState {
    bool fenced = false;  // a fence, and no access of memory after it
};

class Regions {
public:
    // A range takes its part out of those added before it.
    void add(const std::string& kind, uint64_t address, uint64_t bytes);
    void clear() { ranges_.clear(); }
    bool empty() const { return ranges_.empty(); }
    Region find(uint64_t address) const;
    // The rule that an access of `address` breaks, or "". Called in program order of each lane.
    std::string check(const Instruction& access, uint64_t address, FenceState& lane) const;

private:
    struct Range {
        uint64_t begin, end;
        Region region;
    };
    std::vector<Range> ranges_;  // by begin; they do not overlap
};

}  // namespace ptx
