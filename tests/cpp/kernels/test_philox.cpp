// Philox: the published known answers of Philox4x32-10, and keys that never coincide.
#include <doctest/doctest.h>

#include <set>
#include <utility>

#include "philox.cuh"

TEST_CASE("philox4x32-10 gives the published answers") {
    const gids::RandomBlock zeros = gids::philox({0, 0}, 0, 0, 0, 0);
    CHECK(zeros.w[0] == 0x6627e8d5u);
    CHECK(zeros.w[1] == 0xe169c58du);
    CHECK(zeros.w[2] == 0xbc57ac4cu);
    CHECK(zeros.w[3] == 0x9b00dbd8u);
    const gids::RandomBlock pi =
        gids::philox({0xa4093822u, 0x299f31d0u}, 0x243f6a88u, 0x85a308d3u, 0x13198a2eu, 0x03707344u);
    CHECK(pi.low() == 0x94fdccebd16cfe09ull);
    CHECK(pi.high() == 0x24126ea15001e420ull);
}

TEST_CASE("every part of a key matters") {
    using gids::random_key, gids::Stream;
    const gids::RandomKey keys[] = {
        random_key(0, 0, 0, 0, 0, Stream::kNeighbors),
        random_key(1, 0, 0, 0, 0, Stream::kNeighbors),
        random_key(1ull << 32, 0, 0, 0, 0, Stream::kNeighbors),
        random_key(0, 1, 0, 0, 0, Stream::kNeighbors),
        random_key(0, 0, 1, 0, 0, Stream::kNeighbors),
        random_key(0, 0, 1ull << 32, 0, 0, Stream::kNeighbors),
        random_key(0, 0, 0, 1, 0, Stream::kNeighbors),
        random_key(0, 0, 0, 0, 1, Stream::kNeighbors),
        random_key(0, 0, 0, 0, 0, Stream::kLayer),
        random_key(0, 0, 0, 0, 0, Stream::kSeeds),
    };
    std::set<std::pair<uint32_t, uint32_t>> distinct;
    for (const auto& key : keys) distinct.insert({key.k0, key.k1});
    CHECK(distinct.size() == std::size(keys));
}

TEST_CASE("random_below stays below") {
    CHECK(gids::random_below(~0ull, 7) == 6);
    CHECK(gids::random_below(0, 7) == 0);
    CHECK(gids::random_below(1ull << 63, 10) == 5);
}
