// Finds accesses of two lanes that conflict and that nothing orders, by the rules of PTX's memory model: orders,
// scopes, fences and barriers make order; votes and shuffles do not.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <unordered_map>
#include <vector>

#include "module.hpp"

namespace ptx {

using Clocks = std::vector<uint32_t>;

class Races {
public:
    // `has_block_scope`: some instruction of the entry orders for its own block only.
    Races(int lanes, int lanes_per_block, bool has_block_scope);

    // Records an access of one lane, and says what it conflicts with, or "". In the order of execution.
    std::string access(const Instruction& i, int lane, uint64_t address);
    void fence(const Instruction& i, int lane);
    // All lanes of `who` meet: what each did before is before what each does after.
    void meet(const std::vector<int>& who);

private:
    struct Record {
        uint32_t clock = 0;
        int16_t lane = -1;
        uint8_t bytes = 0;  // mask of the 8 bytes of the cell
        bool writes = false, strong = false;
        Scope scope = Scope::kNone;
        int line = 0;
    };
    static constexpr int kRecords = 6;  // of a cell; the oldest goes first, so a race may be missed, never invented
    struct Cell {
        Record records[kRecords];
        int next = 0;
    };
    struct Published {
        Clocks clocks;               // for everyone
        std::map<int, Clocks> near;  // for the lanes of a block: what these published, if need be for it alone
        int lane = -1;               // of the last store
    };
    struct Fences {      // of one lane
        Clocks fenced;   // as of its last releasing fence; what its strong stores publish
        Clocks pending;  // what its strong loads saw; its next acquiring fence takes it over
    };
    bool ordered(const Record& before, int lane) const { return clocks_[lane][before.lane] >= before.clock; }
    bool in_scope(Scope a, Scope b, int one, int other) const;
    std::string conflict(const Instruction& i, int lane, uint64_t address, uint8_t bytes, bool writes, bool strong);
    void synchronize(const Instruction& i, int lane, uint64_t address);
    void publish(Published& location, const Clocks& what, int lane, bool to_all) const;
    int block_of(int lane) const { return lane / lanes_per_block_; }

    int lanes_per_block_;
    bool has_block_scope_;
    std::vector<Clocks> clocks_;
    std::vector<Fences> all_, near_;                     // per lane: fences that order for everyone, and those of .cta
    std::unordered_map<uint64_t, Cell> cells_;           // by address / 8
    std::unordered_map<uint64_t, Published> published_;  // by address
    Clocks devices_;  // what doorbells told drives; it comes back with what drives write, to acquiring loads of .sys
};

}  // namespace ptx
