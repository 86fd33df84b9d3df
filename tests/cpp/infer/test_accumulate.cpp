// Sums over in-edges, block by block of the sources: literal groups, and the same bits for every block and thread
// count.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "errors.hpp"
#include "infer/accumulate.hpp"

using gids::ThreadPool;
using gids::infer::add_rows;
using gids::infer::group_edges;

TEST_CASE("edges are grouped by block, then by destination, and sources of a destination ascend") {
    ThreadPool pool(2);
    const std::vector<int64_t> offsets{10, 13, 13, 15};  // of the middle of a graph: they do not begin with 0
    std::vector<int32_t> sources{5, 0, 3, 4, 1};
    const auto found = group_edges<int32_t>(pool, offsets, sources, 6, 4);
    CHECK(found.begin == std::vector<int64_t>{0, 3, 5});
    CHECK(found.source == std::vector<uint32_t>{0, 3, 1, 1, 0});
    CHECK(found.destination == std::vector<uint32_t>{0, 0, 2, 0, 2});
}

TEST_CASE("sources that do not exist, and offsets that do not span the edges, are refused") {
    ThreadPool pool(2);
    const std::vector<int64_t> offsets{0, 2};
    for (const std::vector<int64_t>& bad : {std::vector<int64_t>{0, 6}, std::vector<int64_t>{-1, 2}}) {
        std::vector<int64_t> sources = bad;
        CHECK_THROWS_AS(group_edges<int64_t>(pool, offsets, sources, 6, 4), gids::DatasetError);
    }
    std::vector<int64_t> three{0, 1, 2};
    CHECK_THROWS_AS(group_edges<int64_t>(pool, offsets, three, 6, 4), gids::ConfigError);
    std::vector<float> rows(4), sums(4);
    const std::vector<uint32_t> source{2}, destination{0};
    CHECK_THROWS_AS(add_rows<float>(pool, source, destination, rows.data(), 2, sums.data(), 2, 2), gids::ConfigError);
}

TEST_CASE("sums do not depend on blocks or threads, to the bit") {
    constexpr int64_t kNodes = 5000, kDegree = 7, kDim = 3;
    std::vector<int64_t> offsets{0};
    std::vector<int32_t> stored;
    std::vector<float> rows;
    uint32_t state = 1;
    const auto next = [&state] { return state = state * 1664525U + 1013904223U; };
    for (int64_t d = 0; d < kNodes; ++d) {
        const int64_t degree = d == 17 ? 20000 : kDegree;  // one list is longer than a thread's piece
        for (int64_t e = 0; e < degree; ++e) stored.push_back(static_cast<int32_t>((next() >> 8) % kNodes));
        offsets.push_back(static_cast<int64_t>(stored.size()));
    }
    for (int64_t i = 0; i < kNodes * kDim; ++i) rows.push_back(static_cast<float>(next() >> 8) / 1048576.0F);
    std::vector<float> expected;
    for (const int threads : {1, 3}) {
        for (const int64_t block : {int64_t{kNodes}, int64_t{611}}) {
            ThreadPool pool(threads);
            std::vector<int32_t> sources = stored;
            const auto found = group_edges<int32_t>(pool, offsets, sources, kNodes, block);
            std::vector<float> sums(kNodes * kDim);
            for (size_t b = 0; b + 1 < found.begin.size(); ++b) {
                const auto first = static_cast<size_t>(found.begin[b]);
                const auto count = static_cast<size_t>(found.begin[b + 1]) - first;
                const int64_t begin = static_cast<int64_t>(b) * block;
                add_rows<float>(pool, std::span(found.source).subspan(first, count),
                                std::span(found.destination).subspan(first, count), rows.data() + begin * kDim,
                                std::min(block, kNodes - begin), sums.data(), kNodes, kDim);
            }
            if (expected.empty()) expected = sums;
            CHECK(sums == expected);
        }
    }
    double total = 0;  // an independent sum, in another precision
    for (int64_t e = offsets[17]; e < offsets[18]; ++e) total += rows[stored[e] * kDim];
    CHECK(expected[17 * kDim] == doctest::Approx(total).epsilon(1e-3));
}
