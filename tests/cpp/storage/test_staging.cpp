// Staging: pieces never overlap, everything comes back, and large pieces reappear once small ones are returned.
#include <doctest/doctest.h>

#include <cstring>
#include <iterator>
#include <map>
#include <random>
#include <vector>

#include "storage/staging.hpp"

using gids::storage::Staging;

TEST_CASE("pieces do not overlap and all memory comes back") {
    Staging staging(3 << 20, 100'000);  // rounded to whole pieces of 128 KiB
    const uint64_t all = staging.free_bytes();
    CHECK(all == 3 << 20);
    std::mt19937 random(3);
    std::map<std::byte*, std::pair<uint64_t, int>> taken;  // piece -> bytes, mark
    std::vector<std::byte> expected(131'072);
    for (int step = 0; step < 20'000; ++step) {
        if (taken.empty() || random() % 2 == 0) {
            const uint64_t bytes = 1 + random() % 131'072;
            std::byte* piece = staging.take(bytes);
            if (piece == nullptr) continue;
            const int mark = step % 251;
            std::memset(piece, mark, bytes);
            taken[piece] = {bytes, mark};
        } else {
            auto chosen = std::next(taken.begin(), static_cast<long>(random() % taken.size()));
            const auto [bytes, mark] = chosen->second;
            std::memset(expected.data(), mark, bytes);
            REQUIRE(std::memcmp(chosen->first, expected.data(), bytes) == 0);
            staging.give_back(chosen->first);
            taken.erase(chosen);
        }
    }
    for (const auto& [piece, ignored] : taken) staging.give_back(piece);
    CHECK(staging.free_bytes() == all);
    for (int i = 0; i < 24; ++i) CHECK(staging.take(131'072) != nullptr);
    CHECK(staging.take(1) == nullptr);
}
