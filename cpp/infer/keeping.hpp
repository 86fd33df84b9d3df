// Reading a graph's rows in order while some are kept: which rows destinations far away ask for, and blocks of tiles.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace gids::infer {

// Consecutive ids.
struct Range {
    int64_t begin, end;
    bool holds(int64_t id) const { return begin <= id && id < end; }
};

// When the row of every node is needed outside its own group of tiles, by the number of the group.
struct Uses {
    std::span<int32_t> first, last;  // -1: never
    std::span<uint16_t> count;       // groups; stays at its highest value
    std::span<int32_t> seen;         // last tile that needed it, plus 1
};

// Distinct rows that a tile needs beside those of its destinations; `outside`: not in the rows of its group either.
struct Needed {
    int64_t sources, outside;
};

// Take note of the in-edges of one tile. Groups ascend, and `tile` is different for every one.
template <class Id>
Needed note_uses(std::span<const Id> sources, Range destinations, Range own, int32_t group, int32_t tile,
                 const Uses& uses);

// Values of `slot`: where a row is kept, kNowhere, or kRead - k for row k of those read for some tiles.
constexpr int32_t kNowhere = -1, kRead = -2;

// Rows that edges need and that are neither own nor kept, ascending; from then on `slot` knows their places.
template <class Id>
std::vector<int64_t> missing_rows(std::span<const Id> sources, Range own, std::span<int32_t> slot);

// A tile's block. `nodes`: the destinations, then other sources in the order in which edges name them; `source`: of
// every edge, its place there; `location`: of every node, its row among `kept` kept rows, then the own ones, then those
// read.
struct TileBlock {
    std::vector<int64_t> source, nodes, location;
};

// `place` holds -1 for every node, before and after.
template <class Id>
TileBlock build_tile(std::span<const Id> sources, Range destinations, Range own, int64_t kept,
                     std::span<const int32_t> slot, std::span<int32_t> place);

}  // namespace gids::infer
