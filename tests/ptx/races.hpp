// Finds accesses of two lanes that conflict and that nothing orders, by the rules of PTX's memory model: orders,
// scopes, fences and barriers make order; votes and shuffles do not.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "module.hpp"

namespace ptx {

using Clocks = std::vector<uint32_t>;

class Races {
public:
    Races(int lanes, int lanes_per_block);

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
        Clocks clocks;
        int lane = -1;  // of the last store
    };
    bool ordered(const Record& before, int lane) const { return clocks_[lane][before.lane] >= before.clock; }
    bool in_scope(Scope a, Scope b, int one, int other) const;
    std::string conflict(const Instruction& i, int lane, uint64_t address, uint8_t bytes, bool writes, bool strong);
    void synchronize(const Instruction& i, int lane, uint64_t address);

    int lanes_per_block_;
    std::vector<Clocks> clocks_;
    std::vector<Clocks> fenced_;   // per lane: as of its last releasing fence; what its strong stores publish
    std::vector<Clocks> pending_;  // per lane: what its strong loads saw; its next acquiring fence takes it over
    std::unordered_map<uint64_t, Cell> cells_;           // by address / 8
    std::unordered_map<uint64_t, Published> published_;  // by address
    Clocks devices_;  // what doorbells told drives; it comes back with what drives write, to acquiring loads of .sys
};

}  // namespace ptx
