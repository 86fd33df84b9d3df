// The lane-by-lane machine: runs a registered kernel with one fiber per lane, switches between lanes at random by
// seed, and reports misuse of collectives. Built without sanitizers; tells ThreadSanitizer about fibers and about
// the orderings that CUDA promises (barriers and __syncwarp order memory; votes and shuffles do not).
#include "simt.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <vector>

#include "weak.hpp"

extern "C" {
[[gnu::weak]] void* __tsan_get_current_fiber();
[[gnu::weak]] void* __tsan_create_fiber(unsigned flags);
[[gnu::weak]] void __tsan_destroy_fiber(void* fiber);
[[gnu::weak]] void __tsan_switch_to_fiber(void* fiber, unsigned flags);
[[gnu::weak]] void __tsan_acquire(void* address);
[[gnu::weak]] void __tsan_release(void* address);
void simt_switch(void** save, void* load);
}

#ifndef __x86_64__
#error "the lane-by-lane machine switches fibers with x86-64 code"
#endif
asm(R"(
    .text
    .globl simt_switch
    .hidden simt_switch
    .type simt_switch, @function
simt_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
    .size simt_switch, .-simt_switch
)");

namespace simt {
namespace {

constexpr std::size_t kStackBytes = 128 << 10;
constexpr std::size_t kSharedBytes = 48 << 10;  // what every CUDA device gives a block without opting in
constexpr int kMaxResidentLanes = 2048;
constexpr unsigned kNoSync = 1;  // __tsan_switch_to_fiber_no_sync

struct Entry {
    Thunk thunk;
    std::vector<std::size_t> argument_sizes;
    std::vector<bool> pointers;  // which arguments are
};

std::map<std::string, Entry>& registry() {
    static std::map<std::string, Entry> entries;
    return entries;
}

// A sync address that is used once per rendezvous, so that a lane that runs ahead to the next rendezvous cannot
// lend its later writes to a lane that has not left this one.
class SyncAddresses {
public:
    void* at(uint64_t generation) { return &bytes_[generation % kCount * 8]; }

private:
    static constexpr std::size_t kCount = 128;
    alignas(8) char bytes_[kCount * 8] = {};
};

void acquire(void* address) {
    if (__tsan_acquire) __tsan_acquire(address);
}
void release(void* address) {
    if (__tsan_release) __tsan_release(address);
}

enum class State { kReady, kWaiting, kDone };

struct Block;

struct Lane {
    LaneId id{};
    Block* block = nullptr;
    int linear = 0;  // within the block
    int number = 0;  // within the wave
    State state = State::kDone;
    int ready_index = -1;
    void* stack_pointer = nullptr;
    char* stack = nullptr;
    void* fiber = nullptr;
    const char* waits_for = "";
    uint64_t value = 0, result = 0;
    int source = 0;
};

struct Warp {
    struct Meeting {
        Collective kind;
        uint32_t mask, arrived;
        void* order;
    };
    // Open ones, one per mask: a group may run ahead to a meeting of the whole warp. An array, because what a lane
    // allocates or moves is visible to ThreadSanitizer.
    Meeting meetings[32];
    int open = 0;
    uint64_t opened = 0;
    SyncAddresses sync;
};

struct Block {
    int first_lane = 0, lanes = 0, arrived = 0, finished = 0;
    uint64_t votes = 0, barrier_generation = 0;
    SyncAddresses sync;
    std::vector<Warp> warps;
    std::vector<char> shared;
    std::size_t shared_used = 0;
    std::map<const void*, std::size_t> shared_offsets;
};

class Machine {
public:
    void launch(const std::string& name, dim3 grid, dim3 block, void** arguments, uint64_t seed);
    Lane& current() { return *current_; }
    void maybe_switch() {
        if (stop_asked_.load(std::memory_order_relaxed)) fail("stopped from outside");
        if ((random() & 3) == 0) run_another();
    }
    void ask_to_stop() { stop_asked_ = true; }
    uint64_t random() {
        state_ ^= state_ << 13;
        state_ ^= state_ >> 7;
        state_ ^= state_ << 17;
        return state_;
    }
    void wait(const char* reason) {
        current_->state = State::kWaiting;
        current_->waits_for = reason;
        remove_ready(current_);
        run_another();
    }
    void wake(Lane& lane) {
        if (lane.state != State::kWaiting) return;
        lane.state = State::kReady;
        add_ready(&lane);
    }
    // Weak memory: the lanes of a block that `joins` picks know from now on what any of them knows.
    template <class Joins>
    void meet(const Block& block, Joins joins) {
        if (!weak) return;
        met_.clear();
        for (int i = 0; i < block.lanes; ++i)
            if (joins(i)) met_.push_back(block.first_lane + i);
        memory.meet(met_);
    }
    bool weak = false;  // loads may see older stores
    WeakMemory memory;
    Lane& lane(const Block& block, int linear) { return *lanes_[block.first_lane + linear]; }
    [[noreturn]] void fail(const std::string& message) {
        error_ = message + " [block " + std::to_string(current_->id.block.x) + ", thread " +
                 std::to_string(current_->linear) + "]";
        abandon();
    }

private:
    static void lane_main();
    void prepare(Lane& lane);
    void run_wave(int64_t first_block, int64_t count, dim3 grid, dim3 block);
    void run_another();
    void finish_lane();
    [[noreturn]] void abandon();
    void switch_to(void** save, void* load, void* fiber) {
        if (__tsan_switch_to_fiber) __tsan_switch_to_fiber(fiber, kNoSync);
        simt_switch(save, load);
    }
    void add_ready(Lane* lane) {
        lane->ready_index = static_cast<int>(ready_.size());
        ready_.push_back(lane);
    }
    void remove_ready(Lane* lane) {
        ready_.back()->ready_index = lane->ready_index;
        ready_[lane->ready_index] = ready_.back();
        ready_.pop_back();
        lane->ready_index = -1;
    }

    std::vector<std::unique_ptr<Lane>> lanes_;
    std::vector<std::unique_ptr<Block>> blocks_;
    std::vector<Lane*> ready_;
    Lane* current_ = nullptr;
    void* host_stack_pointer_ = nullptr;
    void* host_fiber_ = nullptr;
    Thunk thunk_ = nullptr;
    void** arguments_ = nullptr;
    std::vector<int> met_;
    std::string error_;
    uint64_t state_ = 1;
    std::atomic<bool> stop_asked_{false};
    char started_[8], ended_[8];  // sync addresses: launch before lanes, lanes before return
};

std::mutex machine_mutex;
Machine& machine() {
    static Machine instance;
    return instance;
}

void Machine::lane_main() {
    Machine& m = machine();
    for (;;) {
        acquire(m.started_);
        m.thunk_(m.arguments_);
        release(m.ended_);
        m.finish_lane();
    }
}

void Machine::prepare(Lane& lane) {
    if (lane.stack == nullptr) {
        void* memory = mmap(nullptr, kStackBytes + 4096, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (memory == MAP_FAILED) throw std::runtime_error("no memory for a lane's stack");
        mprotect(memory, 4096, PROT_NONE);  // overflow faults instead of reaching the next lane
        lane.stack = static_cast<char*>(memory) + 4096;
    }
    if (lane.stack_pointer != nullptr) return;  // parked at the end of lane_main's loop
    if (__tsan_create_fiber) lane.fiber = __tsan_create_fiber(0);
    auto** top = reinterpret_cast<void**>(lane.stack + kStackBytes);
    *--top = nullptr;  // keeps the stack aligned as after a call
    *--top = reinterpret_cast<void*>(&lane_main);
    for (int i = 0; i < 6; ++i) *--top = nullptr;
    lane.stack_pointer = top;
}

void Machine::run_another() {
    if (ready_.empty()) {
        std::string waiting;
        for (const auto& lane : lanes_)
            if (lane->state == State::kWaiting && waiting.size() < 400)
                waiting += " block " + std::to_string(lane->id.block.x) + " thread " + std::to_string(lane->linear) +
                           " in " + lane->waits_for + ";";
        fail("deadlock: no lane can run:" + waiting);
    }
    Lane* from = current_;
    Lane* to = ready_[random() % ready_.size()];
    if (to == from) return;
    current_ = to;
    switch_to(&from->stack_pointer, to->stack_pointer, to->fiber);
}

void Machine::finish_lane() {
    Lane* lane = current_;
    lane->state = State::kDone;
    remove_ready(lane);
    ++lane->block->finished;
    if (lane->block->arrived > 0) fail("a lane left the kernel while others wait in __syncthreads");
    Warp& warp = lane->block->warps[lane->linear / 32];
    for (int i = 0; i < warp.open; ++i)
        if ((warp.meetings[i].mask >> (lane->linear % 32) & 1u) != 0)
            fail("a lane left the kernel while others wait for it in a warp collective");
    if (!ready_.empty()) {
        run_another();
        return;
    }
    for (const auto& other : lanes_)
        if (other->state == State::kWaiting) run_another();  // reports the deadlock
    switch_to(&lane->stack_pointer, host_stack_pointer_, host_fiber_);
}

void Machine::abandon() {
    void* ignored;
    switch_to(&ignored, host_stack_pointer_, host_fiber_);
    __builtin_unreachable();
}

void Machine::run_wave(int64_t first_block, int64_t count, dim3 grid, dim3 block) {
    const int block_lanes = static_cast<int>(block.x * block.y * block.z);
    const int total = static_cast<int>(count) * block_lanes;
    while (static_cast<int>(lanes_.size()) < total) lanes_.push_back(std::make_unique<Lane>());
    blocks_.clear();
    ready_.clear();
    ready_.reserve(total);  // lanes push to it, and must not allocate
    for (int64_t b = 0; b < count; ++b) {
        auto state = std::make_unique<Block>();
        state->first_lane = static_cast<int>(b) * block_lanes;
        state->lanes = block_lanes;
        state->warps.resize((block_lanes + 31) / 32);
        state->shared.assign(kSharedBytes, static_cast<char>(0xA5));  // shared memory starts as rubbish
        const auto linear = static_cast<uint64_t>(first_block + b);
        for (int t = 0; t < block_lanes; ++t) {
            Lane& lane = *lanes_[state->first_lane + t];
            prepare(lane);
            lane.block = state.get();
            lane.linear = t;
            lane.number = state->first_lane + t;
            const auto u = static_cast<unsigned>(t);
            lane.id.thread = {u % block.x, u / block.x % block.y, u / (block.x * block.y)};
            lane.id.block = {static_cast<unsigned>(linear % grid.x), static_cast<unsigned>(linear / grid.x % grid.y),
                             static_cast<unsigned>(linear / grid.x / grid.y)};
            lane.id.block_size = block;
            lane.id.grid_size = grid;
            lane.state = State::kReady;
            add_ready(&lane);
        }
        blocks_.push_back(std::move(state));
    }
    error_.clear();
    memory.start(total);
    release(started_);
    host_fiber_ = __tsan_get_current_fiber ? __tsan_get_current_fiber() : nullptr;
    current_ = ready_[random() % ready_.size()];
    switch_to(&host_stack_pointer_, current_->stack_pointer, current_->fiber);
    acquire(ended_);
    if (error_.empty()) return;
    for (const auto& lane : lanes_) {  // their stacks hold calls that will never return
        lane->stack_pointer = nullptr;
        lane->state = State::kDone;
        if (__tsan_destroy_fiber && lane->fiber) __tsan_destroy_fiber(lane->fiber);
        lane->fiber = nullptr;
    }
    throw std::runtime_error(error_);
}

void Machine::launch(const std::string& name, dim3 grid, dim3 block, void** arguments, uint64_t seed) {
    const auto found = registry().find(name);
    if (found == registry().end()) throw std::runtime_error("no kernel is called " + name);
    const uint64_t lanes = uint64_t{block.x} * block.y * block.z;
    const uint64_t blocks = uint64_t{grid.x} * grid.y * grid.z;
    if (lanes == 0 || lanes > 1024 || blocks == 0)
        throw std::runtime_error("a block must have 1 to 1024 threads and a grid at least one block (got " +
                                 std::to_string(lanes) + " and " + std::to_string(blocks) + ")");
    thunk_ = found->second.thunk;
    arguments_ = arguments;
    stop_asked_ = false;
    state_ = (seed + 1) * 0x9E3779B97F4A7C15ull | 1;
    const auto resident = static_cast<int64_t>(kMaxResidentLanes / lanes);
    for (int64_t first = 0; first < static_cast<int64_t>(blocks); first += resident)
        run_wave(first, std::min<int64_t>(resident, static_cast<int64_t>(blocks) - first), grid, block);
}

}  // namespace

const LaneId& self() { return machine().current().id; }
void yield() { machine().maybe_switch(); }
bool spurious() { return (machine().random() & 7) == 0; }

namespace {
bool acquires(std::memory_order order) {
    return order == std::memory_order_acquire || order == std::memory_order_acq_rel ||
           order == std::memory_order_seq_cst;
}
bool releases(std::memory_order order) {
    return order == std::memory_order_release || order == std::memory_order_acq_rel ||
           order == std::memory_order_seq_cst;
}
}  // namespace

bool is_weak() { return machine().weak; }
uint64_t weak_load(const void* at, uint64_t newest, std::memory_order order) {
    Machine& m = machine();
    return m.memory.load(m.current().number, reinterpret_cast<uintptr_t>(at), newest, acquires(order), m.random());
}
void weak_store(const void* at, uint64_t old, uint64_t value, std::memory_order order) {
    Machine& m = machine();
    m.memory.store(m.current().number, reinterpret_cast<uintptr_t>(at), old, value, releases(order));
}
void weak_update(const void* at, uint64_t old, uint64_t value, std::memory_order order) {
    Machine& m = machine();
    const auto address = reinterpret_cast<uintptr_t>(at);
    m.memory.update(m.current().number, address, old, value, acquires(order), releases(order));
}

uint64_t block_count(bool vote) {
    Machine& m = machine();
    Lane& lane = m.current();
    Block& block = *lane.block;
    m.maybe_switch();
    if (block.finished > 0) m.fail("__syncthreads after a lane of the block has left the kernel");
    const uint64_t generation = block.barrier_generation;
    release(block.sync.at(generation));
    block.votes += vote;
    if (++block.arrived == block.lanes) {
        for (int i = 0; i < block.lanes; ++i) {
            m.lane(block, i).result = block.votes;
            m.wake(m.lane(block, i));
        }
        m.meet(block, [](int) { return true; });
        block.arrived = 0;
        block.votes = 0;
        ++block.barrier_generation;
        m.maybe_switch();
    } else {
        m.wait("__syncthreads");
    }
    acquire(block.sync.at(generation));
    return lane.result;
}
void block_barrier() { block_count(false); }

uint64_t warp_collective(Collective kind, uint32_t mask, uint64_t value, int source) {
    static const char* const kNames[] = {"__syncwarp", "a vote", "a shuffle", "a match"};
    const char* name = kNames[static_cast<int>(kind)];
    Machine& m = machine();
    m.maybe_switch();
    Lane& lane = m.current();
    Block& block = *lane.block;
    const int self_lane = lane.linear % 32;
    const int warp_first = lane.linear - self_lane;
    const int in_warp = std::min(32, block.lanes - warp_first);
    if (in_warp < 32) {
        // A partial warp's missing lanes count as exited, which is how the hardware treats them in a full mask.
        mask &= (1u << in_warp) - 1u;
    }
    if ((mask >> self_lane & 1u) == 0) m.fail(std::string(name) + " called by a lane that is not in its mask");
    for (int i = 0; i < in_warp; ++i)
        if ((mask >> i & 1u) != 0 && m.lane(block, warp_first + i).state == State::kDone)
            m.fail(std::string(name) + " waits for a lane that has left the kernel");
    Warp& warp = block.warps[lane.linear / 32];
    Warp::Meeting* const end = warp.meetings + warp.open;
    Warp::Meeting* const meeting =
        std::find_if(warp.meetings, end, [&](const auto& other) { return other.mask == mask; });
    if (meeting == end) {
        *meeting = {kind, mask, 0, warp.sync.at(warp.opened++)};
        ++warp.open;
    }
    if (meeting->kind != kind)
        m.fail(std::string(name) + " meets " + kNames[static_cast<int>(meeting->kind)] +
               ": lanes of one mask must call the same collective");
    lane.value = value;
    lane.source = source;
    void* order = kind == Collective::kSync ? meeting->order : nullptr;
    if (order) release(order);
    meeting->arrived |= 1u << self_lane;
    if (meeting->arrived == mask) {
        uint64_t votes = 0;
        for (int i = 0; i < in_warp; ++i)
            if ((mask >> i & 1u) != 0 && m.lane(block, warp_first + i).value != 0) votes |= uint64_t{1} << i;
        for (int i = 0; i < in_warp; ++i) {
            if ((mask >> i & 1u) == 0) continue;
            Lane& other = m.lane(block, warp_first + i);
            if (kind == Collective::kBallot) other.result = votes;
            if (kind == Collective::kShuffle) {
                if (other.source < 0 || other.source >= 32 || (mask >> other.source & 1u) == 0)
                    m.fail("a shuffle reads lane " + std::to_string(other.source) + ", which is not in its mask");
                other.result = m.lane(block, warp_first + other.source).value;
            }
            if (kind == Collective::kMatch) {
                other.result = 0;
                for (int j = 0; j < in_warp; ++j)
                    if ((mask >> j & 1u) != 0 && m.lane(block, warp_first + j).value == other.value)
                        other.result |= uint64_t{1} << j;
            }
            m.wake(other);
        }
        if (kind == Collective::kSync)
            m.meet(block, [&](int i) {
                return i >= warp_first && i < warp_first + in_warp && (mask >> (i - warp_first) & 1u) != 0;
            });
        *meeting = warp.meetings[--warp.open];
        m.maybe_switch();
    } else {
        m.wait(name);
    }
    if (order) acquire(order);
    return lane.result;
}

void* block_shared(const void* site, std::size_t bytes, std::size_t alignment) {
    Block& block = *machine().current().block;
    const auto found = block.shared_offsets.find(site);
    if (found != block.shared_offsets.end()) return block.shared.data() + found->second;
    const std::size_t offset = (block.shared_used + alignment - 1) / alignment * alignment;
    if (offset + bytes > kSharedBytes)
        machine().fail("shared memory of a block must fit in " + std::to_string(kSharedBytes) + " bytes (got " +
                       std::to_string(offset + bytes) + ")");
    block.shared_used = offset + bytes;
    block.shared_offsets[site] = offset;
    return block.shared.data() + offset;
}

Registration::Registration(const char* name, Thunk thunk, const std::size_t* sizes, const bool* pointers, int count) {
    registry()[name] = {thunk, {sizes, sizes + count}, std::vector<bool>(pointers, pointers + count)};
}

}  // namespace simt

// What Python and the stand-in for the driver call.
extern "C" {

// Returns 0, or 1 with a message in `error`.
int gids_simt_launch(const char* name, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                     unsigned block_y, unsigned block_z, void** arguments, uint64_t seed, char* error,
                     std::size_t error_bytes) {
    const std::lock_guard<std::mutex> lock(simt::machine_mutex);
    try {
        simt::machine().launch(name, {grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, arguments, seed);
        return 0;
    } catch (const std::exception& e) {
        std::snprintf(error, error_bytes, "%s", e.what());
        return 1;
    }
}

// From now on loads may see older stores than the latest, as far as orders allow (weak.hpp).
void gids_simt_weak(int on) {
    const std::lock_guard<std::mutex> lock(simt::machine_mutex);
    simt::machine().weak = on != 0;
}

// Number of arguments of a kernel, or -1 if there is none of that name; sizes[i] gets their bytes.
int gids_simt_arguments(const char* name, std::size_t* sizes, int capacity) {
    const auto found = simt::registry().find(name);
    if (found == simt::registry().end()) return -1;
    const auto& from = found->second.argument_sizes;
    for (int i = 0; i < static_cast<int>(from.size()) && i < capacity; ++i) sizes[i] = from[i];
    return static_cast<int>(from.size());
}

// Which arguments of a kernel are pointers: pointers[i] becomes 1 or 0.
int gids_simt_pointers(const char* name, char* pointers, int capacity) {
    const auto found = simt::registry().find(name);
    if (found == simt::registry().end()) return -1;
    const auto& from = found->second.pointers;
    for (int i = 0; i < static_cast<int>(from.size()) && i < capacity; ++i) pointers[i] = from[i] ? 1 : 0;
    return static_cast<int>(from.size());
}

// Ends the kernel that runs now: its launch returns 1. Called by another thread.
void gids_simt_stop() { simt::machine().ask_to_stop(); }

// Names of all kernels, separated by newlines.
const char* gids_simt_names() {
    static const std::string names = [] {
        std::string all;
        for (const auto& [name, entry] : simt::registry()) all += name + "\n";
        return all;
    }();
    return names.c_str();
}
}
