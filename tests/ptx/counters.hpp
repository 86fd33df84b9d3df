// What a launch asked of memory, counted per warp instruction: sectors by memory space, atomics by contention,
// divergence, and the longest chain of reads over PCIe that wait for each other.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <unordered_map>
#include <vector>

#include "module.hpp"
#include "regions.hpp"

namespace ptx {

inline constexpr uint64_t kSectorBytes = 32;

enum class Place : uint8_t { kHbm, kHost, kMmio };
inline constexpr const char* kPlaceNames[] = {"hbm", "host", "mmio"};

struct AccessCount {
    uint64_t warp_accesses = 0, lane_accesses = 0, sectors = 0, bytes = 0;
};

struct Totals {
    uint64_t launches = 0, warps = 0;
    uint64_t instructions = 0, active_lanes = 0;  // active_lanes / (32 * instructions): 1 without divergence
    uint64_t branches = 0, split_branches = 0;
    AccessCount loads[3], stores[3];
    uint64_t shared_accesses = 0;
    uint64_t atomics[3] = {}, atomic_lanes[3] = {};
    uint64_t atomic_rounds = 0;    // per warp atomic: the most lanes on one address, which go one after the other
    uint64_t hottest_address = 0;  // most atomic operations of one launch on one address
    uint64_t fences = 0, barriers = 0, collectives = 0;
    uint64_t host_chain = 0;  // longest chain of host reads that wait for each other, of one lane
    void add(const Totals& other);
};

class Counters {
public:
    // Rows of `slots` depths per lane; on only where asked, because it costs as much as the execution.
    void enable(int slots) { slots_ = slots; }
    bool enabled() const { return slots_ > 0; }
    void start_wave(int lanes);

    void instruction(uint32_t mask) { ++totals.instructions, totals.active_lanes += __builtin_popcount(mask); }
    void branch(uint32_t taken, uint32_t mask) {
        ++totals.branches, totals.split_branches += taken != 0 && taken != mask;
    }
    // One warp instruction: where every lane of the mask goes.
    void memory(const Instruction& i, uint32_t mask, const uint64_t* address, const Regions& regions, bool in_shared);
    // Chains: a value is as deep as the host reads that it waited for. `first_lane` is the warp's.
    void chain(const Instruction& i, int first_lane, uint32_t mask, const uint64_t* address, const Regions& regions);
    // Lanes that meet wait for the deepest of them; what they exchange is as deep.
    void chain_collective(const Instruction* const* at, int first_lane, uint32_t mask);
    void chain_barrier(int first_lane, uint32_t mask);
    void finish();

    Totals totals;

private:
    uint16_t& depth(int lane, int slot) { return depths_[static_cast<std::size_t>(lane) * slots_ + slot]; }
    int slots_ = 0;
    std::vector<uint16_t> depths_;   // of slots
    std::vector<uint16_t> issued_;   // per lane: depth that the next instruction waits for: branches, acquires, fences
    std::vector<uint16_t> deepest_;  // per lane: of any load so far
    std::unordered_map<uint64_t, uint64_t> atomics_at_;
};

// One JSON object per kernel.
std::string to_json(const std::map<std::string, Totals>& kernels);

}  // namespace ptx
