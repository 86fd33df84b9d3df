// Scheduling, control flow, collectives and barriers; memory accesses are in memory.cpp.
#include "machine.hpp"

#include <sched.h>
#include <time.h>

#include <algorithm>
#include <cstring>

namespace ptx {
namespace {

constexpr std::size_t kSharedLimit = 48 << 10;  // what every CUDA device gives a block without opting in
constexpr int kMaxResidentLanes = 2048;
constexpr uint8_t kRubbish = 0xA5;  // what registers and shared memory hold before they are written

const char* name_of(Collective kind) {
    if (kind == Collective::kSync) return "__syncwarp";
    return kind == Collective::kBallot || kind == Collective::kAny || kind == Collective::kAll ? "a vote" : "a shuffle";
}

bool has_block_scope(const Entry& entry) {
    return std::any_of(entry.code.begin(), entry.code.end(), [](const auto& i) { return i.scope == Scope::kBlock; });
}

}  // namespace

std::atomic<uint64_t> Machine::stops{0};

Machine::Machine(const Entry& entry, const Regions& regions, Options options)
    : entry_(entry), regions_(regions), options_(options), state_((options.seed + 1) * 0x9E3779B97F4A7C15ull | 1) {}

uint64_t Machine::random() {
    state_ ^= state_ << 13;
    state_ ^= state_ >> 7;
    state_ ^= state_ << 17;
    return state_;
}

void Machine::fail(const Warp& warp, int lane, const Instruction& i, const std::string& message) const {
    throw Error(i.opcode + ": " + message + " [block " + std::to_string(warp.block->index.x) + ", thread " +
                std::to_string(warp.first_thread + lane) + ", line " + std::to_string(i.line) + " of the PTX]");
}

void Machine::launch(Dimensions grid, Dimensions block, void** arguments) {
    const uint64_t lanes = uint64_t{block.x} * block.y * block.z;
    const uint64_t blocks = uint64_t{grid.x} * grid.y * grid.z;
    if (lanes == 0 || lanes > 1024 || blocks == 0)
        throw Error("a block must have 1 to 1024 threads and a grid at least one block (got " + std::to_string(lanes) +
                    " and " + std::to_string(blocks) + ")");
    if (lanes > entry_.max_threads)
        throw Error("a block must have at most the " + std::to_string(entry_.max_threads) +
                    " threads that the kernel was built for (got " + std::to_string(lanes) + ")");
    if (entry_.shared_bytes > kSharedLimit)
        throw Error("shared memory of a block must fit in " + std::to_string(kSharedLimit) + " bytes (got " +
                    std::to_string(entry_.shared_bytes) + ")");
    grid_ = grid;
    block_ = block;
    parameters_.assign(entry_.parameter_bytes, 0);
    for (std::size_t n = 0; n < entry_.parameters.size(); ++n)
        std::memcpy(parameters_.data() + entry_.parameters[n].offset, arguments[n], entry_.parameters[n].bytes);
    const uint64_t resident = kMaxResidentLanes / lanes;
    for (uint64_t first = 0; first < blocks; first += resident) run_wave(first, std::min(resident, blocks - first));
    counters_.finish();
    ++counters_.totals.launches;
}

void Machine::start_warp(Warp& warp) {
    const Block& block = *warp.block;
    warp.rows.assign(static_cast<std::size_t>(entry_.slots) * kLanes, 0xA5A5A5A5A5A5A5A5ull);
    const auto row = [&](int slot) { return warp.rows.data() + slot * kLanes; };
    for (const auto& [slot, value] : entry_.constants) std::fill_n(row(slot), kLanes, value);
    for (int lane = 0; lane < kLanes; ++lane) {
        const auto thread = static_cast<unsigned>(warp.first_thread + lane);
        const uint64_t values[kSpecialCount] = {thread % block_.x,
                                                thread / block_.x % block_.y,
                                                thread / (block_.x * block_.y),
                                                block_.x,
                                                block_.y,
                                                block_.z,
                                                block.index.x,
                                                block.index.y,
                                                block.index.z,
                                                grid_.x,
                                                grid_.y,
                                                grid_.z,
                                                static_cast<uint64_t>(lane),
                                                reinterpret_cast<uint64_t>(block.shared.data())};
        for (int n = 0; n < kSpecialCount; ++n) row(entry_.special_slots[n])[lane] = values[n];
    }
    warp.local.assign(entry_.local_bytes * kLanes, static_cast<char>(kRubbish));
    warp.ready = warp.lanes == kLanes ? 0xffffffffu : (1u << warp.lanes) - 1;
}

void Machine::run_wave(uint64_t first_block, uint64_t count) {
    const int block_lanes = static_cast<int>(block_.x * block_.y * block_.z);
    const int total = static_cast<int>(count) * block_lanes;
    blocks_.clear();
    runnable_.clear();
    fences_.assign(total, {});
    if (counters_.enabled()) counters_.start_wave(total);
    if (options_.check_races) races_.emplace(total, block_lanes, has_block_scope(entry_));
    for (uint64_t b = 0; b < count; ++b) {
        const uint64_t linear = first_block + b;
        auto block = std::make_unique<Block>();
        block->index = {static_cast<unsigned>(linear % grid_.x), static_cast<unsigned>(linear / grid_.x % grid_.y),
                        static_cast<unsigned>(linear / grid_.x / grid_.y)};
        block->lanes = block_lanes;
        block->first_lane = static_cast<int>(b) * block_lanes;
        block->shared.assign(entry_.shared_bytes + 16, static_cast<char>(kRubbish));
        block->warps.resize((block_lanes + kLanes - 1) / kLanes);
        for (std::size_t w = 0; w < block->warps.size(); ++w) {
            Warp& warp = block->warps[w];
            warp.block = block.get();
            warp.first_thread = static_cast<int>(w) * kLanes;
            warp.first_lane = block->first_lane + warp.first_thread;
            warp.lanes = std::min(kLanes, block_lanes - warp.first_thread);
            start_warp(warp);
            warp.listed = true;
            runnable_.push_back(&warp);
        }
        counters_.totals.warps += block->warps.size();
        blocks_.push_back(std::move(block));
    }
    while (!runnable_.empty()) {
        if (stops.load(std::memory_order_relaxed) != stops_before_) throw Error("stopped from outside");
        const std::size_t at = random() % runnable_.size();
        Warp* warp = runnable_[at];
        if (warp->ready != 0) run_burst(*warp);
        if (warp->ready == 0) {
            warp->listed = false;
            runnable_[at] = runnable_.back();
            // run_burst may have listed others behind it, never this one
            runnable_.pop_back();
        }
    }
    for (const auto& block : blocks_)
        if (block->finished < block->lanes) report_deadlock();
}

void Machine::report_deadlock() const {
    std::string waiting;
    for (const auto& block : blocks_)
        for (const Warp& warp : block->warps)
            each_lane(warp.waiting, [&](int lane) {
                if (waiting.size() < 400)
                    waiting += " block " + std::to_string(block->index.x) + " thread " +
                               std::to_string(warp.first_thread + lane) + " in " + entry_.code[warp.pc[lane]].opcode +
                               ";";
            });
    throw Error("deadlock: no lane can run:" + waiting);
}

void Machine::wake(Warp& warp, uint32_t mask) {
    warp.waiting &= ~mask;
    warp.ready |= mask;
    if (!warp.listed) {
        warp.listed = true;
        runnable_.push_back(&warp);
    }
}

// The lanes that run next, all at one place: in lockstep those that are furthest behind, which is how paths meet
// again; at random any, and at times only some of those that could go together.
uint32_t Machine::choose_lanes(Warp& warp, int* pc) {
    int pivot = -1;
    if (options_.lockstep) {
        each_lane(warp.ready, [&](int lane) {
            if (pivot < 0 || warp.pc[lane] < warp.pc[pivot]) pivot = lane;
        });
    } else {
        uint32_t from = warp.ready;
        for (uint64_t skip = random() % static_cast<uint64_t>(__builtin_popcount(from)); skip > 0; --skip)
            from &= from - 1;
        pivot = __builtin_ctz(from);
    }
    *pc = warp.pc[pivot];
    uint32_t mask = 0;
    each_lane(warp.ready, [&](int lane) { mask |= static_cast<uint32_t>(warp.pc[lane] == *pc) << lane; });
    if (!options_.lockstep && (random() & 3) == 0) mask &= static_cast<uint32_t>(random()) | 1u << pivot;
    return mask;
}

int Machine::branch(Warp& warp, const Instruction& i, uint32_t taken, uint32_t* mask, int pc) {
    const uint32_t rest = *mask & ~taken;
    if (counters_.enabled()) counters_.branch(taken, *mask);
    if (rest == 0) return i.target;
    if (taken == 0) return pc + 1;
    each_lane(taken, [&](int lane) { warp.pc[lane] = i.target; });
    each_lane(rest, [&](int lane) { warp.pc[lane] = pc + 1; });
    const bool go = (random() & 1) != 0;  // in lockstep the caller chooses again
    *mask = go ? taken : rest;
    return go ? i.target : pc + 1;
}

void Machine::run_burst(Warp& warp) {
    int pc = 0;
    uint32_t mask = choose_lanes(warp, &pc);
    const auto leave_at = [&](int at) { each_lane(mask, [&](int lane) { warp.pc[lane] = at; }); };
    for (uint64_t budget = 1 + random() % 64; budget > 0; --budget) {
        const Instruction& i = entry_.code[pc];
        const bool strong = i.kind == Kind::kAtomic || i.order > Order::kNonCoherent;
        if (strong && !options_.lockstep && (mask & (mask - 1)) != 0) {
            // Where order shows, only some go: lanes of one warp are as independent as those of two.
            leave_at(pc);
            const auto some = mask & static_cast<uint32_t>(random() & random() & random());
            mask = some != 0 ? some : mask & (~mask + 1);
            budget = 1;
        }
        uint32_t active = mask;
        if (i.guard >= 0) {
            const uint64_t* row = warp.rows.data() + i.guard * kLanes;
            active = 0;
            each_lane(mask,
                      [&](int lane) { active |= static_cast<uint32_t>((row[lane] != 0) != i.guard_negated) << lane; });
        }
        if (counters_.enabled()) {
            counters_.instruction(mask);
            if (!regions_.empty() && (i.kind == Kind::kCompute || i.kind == Kind::kBranch || i.kind == Kind::kFence))
                counters_.chain(i, warp.first_lane, mask, nullptr, regions_);
        }
        switch (i.kind) {
            case Kind::kCompute:
                try {
                    i.compute(i, warp.rows.data(), active);
                } catch (const Error& error) {
                    fail(warp, __builtin_ctz(active), i, error.what());
                }
                ++pc;
                break;
            case Kind::kBranch:
                pc = branch(warp, i, active, &mask, pc);
                break;
            case Kind::kLoad:
            case Kind::kStore:
            case Kind::kAtomic:
                leave_at(pc);
                access(warp, i, active);
                ++pc;
                break;
            case Kind::kFence:
                __atomic_thread_fence(__ATOMIC_SEQ_CST);
                each_lane(active, [&](int lane) {
                    if (i.scope == Scope::kSystem) fences_[warp.first_lane + lane].fenced = true;
                    if (races_) races_->fence(i, warp.first_lane + lane);
                });
                if (counters_.enabled()) ++counters_.totals.fences;
                ++pc;
                break;
            case Kind::kTimer: {
                timespec now;
                clock_gettime(CLOCK_MONOTONIC, &now);
                const uint64_t value =
                    static_cast<uint64_t>(now.tv_sec) * 1'000'000'000u + static_cast<uint64_t>(now.tv_nsec);
                each_lane(active, [&](int lane) { warp.rows[i.destinations[0] * kLanes + lane] = value; });
                ++pc;
                break;
            }
            case Kind::kSleep:
                sched_yield();
                ++pc;
                break;
            case Kind::kBlockBarrier:
                leave_at(pc);
                arrive_at_barrier(warp, active);
                return;
            case Kind::kCollective:
                leave_at(pc);
                if (active != mask)
                    fail(warp, __builtin_ctz(mask), i, "a collective under a predicate is not understood");
                arrive(warp, i, active);
                return;
            case Kind::kReturn:
                leave_at(pc);
                finish(warp, active);
                if (active == mask) return;
                mask &= ~active;
                ++pc;
                break;
        }
        if (options_.lockstep && warp.ready != mask) {  // others may be behind, or here
            leave_at(pc);
            mask = choose_lanes(warp, &pc);
        }
    }
    leave_at(pc);
}

void Machine::finish(Warp& warp, uint32_t mask) {
    const Instruction& at = entry_.code[warp.pc[__builtin_ctz(mask)]];
    if (warp.block->arrived > 0)
        fail(warp, __builtin_ctz(mask), at, "a lane left the kernel while others wait in bar.sync (__syncthreads)");
    for (const auto& meeting : warp.meetings)
        if ((meeting.mask & mask) != 0)
            fail(warp, __builtin_ctz(meeting.mask & mask), at,
                 "a lane left the kernel while others wait for it in a warp collective");
    warp.ready &= ~mask;
    warp.done |= mask;
    warp.block->finished += __builtin_popcount(mask);
}

void Machine::arrive_at_barrier(Warp& warp, uint32_t mask) {
    Block& block = *warp.block;
    const int lane = __builtin_ctz(mask);
    if (block.finished > 0)
        fail(warp, lane, entry_.code[warp.pc[lane]],
             "bar.sync (__syncthreads) after a lane of the block has left the kernel");
    warp.ready &= ~mask;
    warp.waiting |= mask;
    block.arrived += __builtin_popcount(mask);
    if (block.arrived < block.lanes) return;
    // A lane may wait in a warp collective at the same time only if the block waits for it: then arrived is smaller.
    block.arrived = 0;
    if (counters_.enabled()) counters_.totals.barriers += block.warps.size();
    std::vector<int> who;
    for (Warp& other : block.warps) {
        const uint32_t all = other.waiting;
        each_lane(all, [&](int l) {
            ++other.pc[l];
            who.push_back(other.first_lane + l);
        });
        if (counters_.enabled() && !regions_.empty()) counters_.chain_barrier(other.first_lane, all);
        wake(other, all);
    }
    if (races_) races_->meet(who);
}

void Machine::arrive(Warp& warp, const Instruction& i, uint32_t lanes) {
    each_lane(lanes, [&](int lane) {
        const auto row = [&](std::size_t n) { return warp.rows[i.sources[n] * kLanes + lane]; };
        auto mask = static_cast<uint32_t>(row(i.sources.size() - 1));
        // Lanes that a partial warp does not have count as exited, which is how the hardware treats them.
        if (warp.lanes < kLanes) mask &= (1u << warp.lanes) - 1;
        if ((mask >> lane & 1u) == 0)
            fail(warp, lane, i, std::string(name_of(i.collective)) + " called by a lane that is not in its mask");
        if ((mask & warp.done) != 0)
            fail(warp, lane, i, std::string(name_of(i.collective)) + " waits for a lane that has left the kernel");
        auto meeting = std::find_if(warp.meetings.begin(), warp.meetings.end(),
                                    [&](const auto& other) { return other.mask == mask; });
        if (meeting == warp.meetings.end()) {
            warp.meetings.push_back({i.collective, mask, 0, {}, {}, {}, {}});
            meeting = warp.meetings.end() - 1;
        }
        if (meeting->kind != i.collective)
            fail(warp, lane, i,
                 std::string(name_of(i.collective)) + " meets " + name_of(meeting->kind) +
                     ": lanes of one mask must call the same collective");
        meeting->arrived |= 1u << lane;
        meeting->at[lane] = &i;
        meeting->value[lane] = i.sources.size() > 1 ? row(0) : 0;
        if (i.sources.size() == 4) meeting->index[lane] = row(1), meeting->clamp[lane] = row(2);
        warp.ready &= ~(1u << lane);
        warp.waiting |= 1u << lane;
        if (meeting->arrived != mask) return;
        complete(warp, *meeting);
        const uint32_t met = meeting->mask;
        warp.meetings.erase(meeting);
        wake(warp, met);
    });
}

void Machine::complete(Warp& warp, Warp::Meeting& meeting) {
    uint32_t votes = 0;
    each_lane(meeting.mask, [&](int lane) { votes |= static_cast<uint32_t>(meeting.value[lane] != 0) << lane; });
    std::vector<int> who;
    each_lane(meeting.mask, [&](int lane) {
        const Instruction& i = *meeting.at[lane];
        ++warp.pc[lane];
        who.push_back(warp.first_lane + lane);
        if (i.collective == Collective::kSync) return;
        const auto write = [&](std::size_t n, uint64_t value) {
            warp.rows[i.destinations[n] * kLanes + lane] = value & i.destination_masks[n];
        };
        if (i.collective == Collective::kBallot) return write(0, votes);
        if (i.collective == Collective::kAny) return write(0, votes != 0);
        if (i.collective == Collective::kAll) return write(0, votes == meeting.mask);
        const int segment = static_cast<int>(meeting.clamp[lane] >> 8 & 0x1f),
                  clamp = static_cast<int>(meeting.clamp[lane] & 0x1f);
        const int lowest = lane & segment, bound = lowest | (clamp & ~segment);
        const int index = static_cast<int>(meeting.index[lane] & 0x1f);
        int source = lane;
        bool inside = false;
        if (i.collective == Collective::kShuffleIdx) source = lowest | (index & ~segment), inside = source <= bound;
        if (i.collective == Collective::kShuffleXor) source = lane ^ index, inside = source <= bound;
        if (i.collective == Collective::kShuffleDown) source = lane + index, inside = source <= bound;
        if (i.collective == Collective::kShuffleUp) source = lane - index, inside = source >= bound;
        if (!inside) source = lane;
        if ((meeting.mask >> source & 1u) == 0)
            fail(warp, lane, i, "a shuffle reads lane " + std::to_string(source) + ", which is not in its mask");
        write(0, meeting.value[source]);
        if (i.destinations.size() > 1) write(1, inside);
    });
    if (counters_.enabled()) {
        ++counters_.totals.collectives;
        if (!regions_.empty()) counters_.chain_collective(meeting.at, warp.first_lane, meeting.mask);
    }
    if (races_ && meeting.kind == Collective::kSync) races_->meet(who);
}

}  // namespace ptx
