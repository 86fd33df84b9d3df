// Which rows tiles need, and their blocks: a graph that is written out.
#include <doctest/doctest.h>

#include <cstdint>
#include <vector>

#include "errors.hpp"
#include "infer/keeping.hpp"

using gids::infer::build_tile;
using gids::infer::missing_rows;
using gids::infer::note_uses;
using Nodes = gids::infer::Range;  // of one build with other folders' tests: cufile has a Range too
using gids::infer::Uses;

namespace {
struct Arrays {
    explicit Arrays(size_t nodes) : first(nodes, -1), last(nodes, -1), count(nodes), seen(nodes) {}
    Uses uses() { return {first, last, count, seen}; }
    std::vector<int32_t> first, last;
    std::vector<uint16_t> count;
    std::vector<int32_t> seen;
};
}  // namespace

TEST_CASE("uses of a row are counted once for each group that does not own it") {
    Arrays arrays(8);
    const std::vector<int32_t> of_first{2, 5, 5, 1}, of_second{5, 0, 3}, of_last{5, 0, 6};
    // Tiles 0..2 and 2..4 are group 0, tile 4..8 is group 1.
    auto needed = note_uses<int32_t>(of_first, Nodes{0, 2}, Nodes{0, 4}, 0, 0, arrays.uses());
    CHECK(needed.sources == 2);  // rows 2 and 5
    CHECK(needed.outside == 1);  // row 5
    needed = note_uses<int32_t>(of_second, Nodes{2, 4}, Nodes{0, 4}, 0, 1, arrays.uses());
    CHECK(needed.sources == 2);
    CHECK(needed.outside == 1);
    needed = note_uses<int32_t>(of_last, Nodes{4, 8}, Nodes{4, 8}, 1, 2, arrays.uses());
    CHECK(needed.sources == 1);  // row 0
    CHECK(needed.outside == 1);
    CHECK(arrays.count == std::vector<uint16_t>{1, 0, 0, 0, 0, 1, 0, 0});
    CHECK(arrays.first == std::vector<int32_t>{1, -1, -1, -1, -1, 0, -1, -1});
    CHECK(arrays.last == std::vector<int32_t>{1, -1, -1, -1, -1, 0, -1, -1});
}

TEST_CASE("a block has its destinations first, then sources as edges name them, and says where every row is") {
    // Group 2..5, tile 2..4; row 0 is kept in slot 1, rows 6 and 7 are read.
    const std::vector<int64_t> sources{7, 3, 0, 7, 4, 6};
    std::vector<int32_t> slot{1, -1, -1, -1, -1, -1, -1, -1}, place(8, -1);
    CHECK(missing_rows<int64_t>(sources, Nodes{2, 5}, slot) == std::vector<int64_t>{6, 7});
    CHECK(slot == std::vector<int32_t>{1, -1, -1, -1, -1, -1, -2, -3});
    const auto block = build_tile<int64_t>(sources, Nodes{2, 4}, Nodes{2, 5}, 2, slot, place);
    CHECK(block.nodes == std::vector<int64_t>{2, 3, 7, 0, 4, 6});
    CHECK(block.source == std::vector<int64_t>{2, 1, 3, 2, 4, 5});
    // Rows 0..1 are kept ones, 2..4 the group's own, 5.. those read.
    CHECK(block.location == std::vector<int64_t>{2, 3, 6, 1, 4, 5});
    CHECK(place == std::vector<int32_t>(8, -1));
}

TEST_CASE("sources that do not exist, and rows that are nowhere, are refused") {
    Arrays arrays(4);
    std::vector<int32_t> slot(4, -1), place(4, -1);
    for (const int64_t bad : {int64_t{4}, int64_t{-1}}) {
        const std::vector<int64_t> sources{bad};
        CHECK_THROWS_AS(note_uses<int64_t>(sources, Nodes{0, 1}, Nodes{0, 2}, 0, 0, arrays.uses()), gids::DatasetError);
        CHECK_THROWS_AS(missing_rows<int64_t>(sources, Nodes{0, 2}, slot), gids::DatasetError);
        CHECK_THROWS_AS(build_tile<int64_t>(sources, Nodes{0, 1}, Nodes{0, 2}, 0, slot, place), gids::DatasetError);
    }
    const std::vector<int64_t> nowhere{3};
    CHECK_THROWS_AS(build_tile<int64_t>(nowhere, Nodes{0, 1}, Nodes{0, 2}, 0, slot, place), gids::ConfigError);
    CHECK_THROWS_AS(build_tile<int64_t>(nowhere, Nodes{3, 5}, Nodes{0, 2}, 0, slot, place), gids::ConfigError);
}
