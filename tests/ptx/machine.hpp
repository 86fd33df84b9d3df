// The machine that runs PTX: warps of 32 lanes with a program counter each, scheduled by seed. Two schedules: `random`
// splits warps and switches between them anywhere, to find what depends on order; `lockstep` keeps lanes together as a
// GPU does, to count.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "counters.hpp"
#include "module.hpp"
#include "races.hpp"
#include "regions.hpp"

namespace ptx {

struct Dimensions {
    unsigned x = 1, y = 1, z = 1;
};

// Who tells which memory kernels of a device may use: not 0 if all of some bytes, and the range that these are part of.
struct Reach {
    int (*find)(uint64_t address, std::size_t bytes, int device, uint64_t* begin, uint64_t* end) = nullptr;
    int device = 0;
};

struct Options {
    uint64_t seed = 0;
    bool lockstep = false;
    bool check_races = false;
    Reach reach;
};

struct Block;

struct Warp {
    // An open rendezvous of the lanes in `mask`. Lanes may stand at different instructions of the same kind.
    struct Meeting {
        Collective kind;
        uint32_t mask, arrived;
        uint64_t value[kLanes], index[kLanes], clamp[kLanes];
        const Instruction* at[kLanes];
    };
    Block* block = nullptr;
    int first_thread = 0, first_lane = 0, lanes = 0;  // within the block; within the wave; 1 to 32
    uint32_t ready = 0, waiting = 0, done = 0;        // every lane is in exactly one
    bool listed = false;                              // among the machine's runnable warps
    int pc[kLanes] = {};
    std::vector<uint64_t> rows;
    std::vector<Meeting> meetings;
    std::vector<char> local;
};

struct Block {
    Dimensions index;
    int lanes = 0, first_lane = 0, arrived = 0, finished = 0;
    std::vector<char> shared;
    std::vector<Warp> warps;
};

class Machine {
public:
    Machine(const Entry& entry, const Regions& regions, Options options);
    void launch(Dimensions grid, Dimensions block, void** arguments);
    static std::atomic<uint64_t> stops;  // a launch ends when it grows
    void count() { counters_.enable(entry_.slots); }
    const Counters& counters() const { return counters_; }

private:
    void run_wave(uint64_t first_block, uint64_t count);
    void start_warp(Warp& warp);
    void run_burst(Warp& warp);
    uint32_t choose_lanes(Warp& warp, int* pc);
    int branch(Warp& warp, const Instruction& i, uint32_t taken, uint32_t* mask, int pc);
    void access(Warp& warp, const Instruction& i, uint32_t mask);
    char* resolve(Warp& warp, const Instruction& i, int lane, uint64_t address);
    bool within_reach(const Warp& warp, uint64_t address, uint64_t bytes);
    void arrive(Warp& warp, const Instruction& i, uint32_t mask);
    void complete(Warp& warp, Warp::Meeting& meeting);
    void arrive_at_barrier(Warp& warp, uint32_t mask);
    void finish(Warp& warp, uint32_t mask);
    void wake(Warp& warp, uint32_t mask);
    [[noreturn]] void fail(const Warp& warp, int lane, const Instruction& i, const std::string& message) const;
    [[noreturn]] void report_deadlock() const;
    uint64_t random();

    const Entry& entry_;
    const Regions& regions_;
    const Options options_;
    uint64_t state_;
    const uint64_t stops_before_ = stops;
    Dimensions grid_, block_;
    std::vector<char> parameters_;
    std::vector<std::unique_ptr<Block>> blocks_;
    std::vector<Warp*> runnable_;
    std::vector<FenceState> fences_;  // of each lane of the wave
    Counters counters_;
    std::optional<Races> races_;
    std::vector<std::pair<uint64_t, uint64_t>> reached_;  // begin and end of what this launch was allowed to touch
};

}  // namespace ptx
