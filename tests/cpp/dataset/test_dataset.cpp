// Checks the generators' permutation, the sums that name a damaged row, and the counting sort.
#include <doctest/doctest.h>

#include <numeric>
#include <vector>

#include "dataset/checksum.hpp"
#include "dataset/generate.hpp"
#include "dataset/group.hpp"
#include "dataset/permutation.hpp"

using namespace gids;

TEST_CASE("a permutation hits every id once, and its inverse undoes it") {
    for (const uint64_t n : {1ull, 2ull, 3ull, 10ull, 97ull, 1000ull, 4096ull, 65537ull}) {
        const Permutation permutation(n, 12345 + n);
        std::vector<bool> seen(n, false);
        for (uint64_t x = 0; x < n; ++x) {
            const uint64_t y = permutation.forward(x);
            REQUIRE(y < n);
            REQUIRE_FALSE(seen[y]);
            seen[y] = true;
            REQUIRE(permutation.inverse(y) == x);
        }
    }
}

TEST_CASE("a flipped bit moves the sums by D and (row + 1) * D") {
    ThreadPool pool(2);
    for (const int64_t row_bytes : {1, 3, 4, 10, 64, 101}) {
        const int64_t rows = 50, chunk = 16;
        std::vector<uint8_t> data(static_cast<size_t>(rows * row_bytes));
        std::iota(data.begin(), data.end(), uint8_t{1});
        std::vector<uint64_t> before(8), after(8);
        row_sums(data.data(), rows, row_bytes, chunk, before.data(), pool);
        for (const int64_t row : {0, 15, 16, 49}) {
            for (const int bit : {0, 7}) {
                uint8_t& byte = data[static_cast<size_t>(row * row_bytes + row_bytes - 1)];
                byte = static_cast<uint8_t>(byte ^ 1 << bit);
                row_sums(data.data(), rows, row_bytes, chunk, after.data(), pool);
                const auto c = static_cast<size_t>(row / chunk);
                const uint64_t change = after[2 * c] - before[2 * c];
                CHECK(change != 0);
                CHECK(after[2 * c + 1] - before[2 * c + 1] == static_cast<uint64_t>(row % chunk + 1) * change);
                byte = static_cast<uint8_t>(byte ^ 1 << bit);
            }
        }
    }
}

TEST_CASE("grouping is stable and refuses keys out of range") {
    const std::vector<int32_t> keys{2, 0, 2, 1, 0, 2};
    std::vector<int64_t> offsets(5), order(6);
    group_by_key(keys.data(), 6, 4, offsets.data(), order.data());
    CHECK(offsets == std::vector<int64_t>{0, 2, 3, 6, 6});
    CHECK(order == std::vector<int64_t>{1, 4, 3, 0, 2, 5});
    CHECK_THROWS_WITH_AS(group_by_key(keys.data(), 6, 2, offsets.data(), order.data()),
                         "key must be in [0, 2) (got 2 at position 0)", ConfigError);
}

TEST_CASE("a generated graph is the same in pieces, with any number of threads") {
    ThreadPool one(1), three(3);
    const int64_t n = 5000;
    const Communities graph(n, 7, 42, 6.0, 0.5, 3);
    std::vector<int64_t> degrees(n), offsets(n + 1, 0);
    graph.degrees({0, n}, degrees.data(), three);
    std::partial_sum(degrees.begin(), degrees.end(), offsets.begin() + 1);
    std::vector<int64_t> whole(static_cast<size_t>(offsets[n])), part(whole.size());
    graph.sources({0, n}, offsets.data(), whole.data(), three);
    for (int64_t begin = 0; begin < n; begin += 999) {
        const int64_t end = std::min(begin + 999, n);
        graph.sources({begin, end}, offsets.data() + begin, part.data(), one);
    }
    CHECK(whole == part);
}
