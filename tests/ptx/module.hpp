// PTX as data: what a text holds after parsing. An opcode or modifier that is not listed in parse.cpp or compute.cpp
// is an error that names it: the forms that NVRTC emits for kernels/ are the specification of this machine.
#pragma once

#include <cstdint>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

namespace ptx {

inline constexpr int kLanes = 32;

struct Error : std::runtime_error {
    using std::runtime_error::runtime_error;
};

enum class Kind : uint8_t {
    kCompute,
    kBranch,
    kReturn,
    kLoad,
    kStore,
    kAtomic,
    kFence,
    kBlockBarrier,
    kCollective,
    kTimer,
    kSleep,
};
enum class Space : uint8_t { kGeneric, kGlobal, kShared, kLocal, kParam };
// kWeak: an ordinary access. kNonCoherent: ld.global.nc, through a cache that nobody else's stores reach.
enum class Order : uint8_t { kWeak, kNonCoherent, kVolatile, kRelaxed, kAcquire, kRelease, kAcqRel, kSeqCst };
enum class Scope : uint8_t { kNone, kBlock, kGpu, kSystem };
enum class Atomic : uint8_t { kNone, kAdd, kAnd, kOr, kXor, kExchange, kCompareSwap, kMin, kMax, kInc, kDec };
enum class Collective : uint8_t { kSync, kBallot, kAny, kAll, kShuffleIdx, kShuffleUp, kShuffleDown, kShuffleXor };

struct Instruction;
// Runs a register-to-register instruction for the lanes of `mask`. `rows` holds one row of 32 values per slot.
using Compute = void (*)(const Instruction& instruction, uint64_t* rows, uint32_t mask);

// Every operand is a slot: a register, a constant (all lanes alike), or a special register that does not change.
struct Instruction {
    Kind kind = Kind::kCompute;
    Compute compute = nullptr;
    std::vector<int> destinations, sources;
    std::vector<uint64_t> destination_masks;  // as wide as the register
    int guard = -1;                           // slot of the predicate, or -1
    bool guard_negated = false;
    int target = -1;  // of a branch
    int line = 0;
    // Memory. sources[0] is the address for loads, stores and atomics; a store's values and operands follow.
    Space space = Space::kGeneric;
    Order order = Order::kWeak;
    Scope scope = Scope::kNone;
    Atomic atomic = Atomic::kNone;
    bool mmio = false;
    int64_t offset = 0;
    int element_bytes = 0, elements = 1;
    bool is_signed = false;
    Collective collective = Collective::kSync;
    std::string opcode;

    int access_bytes() const { return element_bytes * elements; }
};

// Where the block's shared memory begins among generic addresses; no PTX register, it serves cvta.shared.
inline constexpr const char* kSharedBase = "%.shared";
// Special registers that are slots, in the order of Entry::special_slots.
inline constexpr const char* kSpecials[] = {"%tid.x",    "%tid.y",    "%tid.z",   "%ntid.x",  "%ntid.y",
                                            "%ntid.z",   "%ctaid.x",  "%ctaid.y", "%ctaid.z", "%nctaid.x",
                                            "%nctaid.y", "%nctaid.z", "%laneid",  kSharedBase};
inline constexpr int kSpecialCount = sizeof kSpecials / sizeof kSpecials[0];

struct Parameter {
    std::size_t offset, bytes;
    bool is_pointer = false;  // its value, or its sum with an offset, is used as an address
};

struct Entry {
    std::string name;
    std::vector<Parameter> parameters;
    std::size_t parameter_bytes = 0;
    unsigned max_threads = 1024;
    std::size_t shared_bytes = 0, local_bytes = 0;
    std::vector<std::pair<uint64_t, uint64_t>> globals;  // begin and end of the variables of the module that it uses
    std::vector<Instruction> code;
    int slots = 0;
    std::vector<std::pair<int, uint64_t>> constants;
    int special_slots[kSpecialCount];
};

struct Module {
    std::string target;
    std::map<std::string, Entry> entries;
    std::map<std::string, std::vector<char>> globals;  // variables of the module; their addresses are constants
};

// Adds the entry points of a PTX text to a module. Throws Error with the line and what is not understood.
void parse(const std::string& text, Module& module);

// The handler of a register-to-register opcode, or null.
Compute find_compute(const std::string& opcode);
Compute pack_compute(int parts);    // mov.b64 d, {a, b}
Compute unpack_compute(int parts);  // mov.b64 {a, b}, d

template <class F>
void each_lane(uint32_t mask, F f) {
    if (mask == 0xffffffffu) {
        for (int lane = 0; lane < kLanes; ++lane) f(lane);
        return;
    }
    for (; mask != 0; mask &= mask - 1) f(__builtin_ctz(mask));
}

}  // namespace ptx
