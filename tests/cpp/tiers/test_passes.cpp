// The passes around the planner under sanitizers: sort, sieve, gather, admit, PageRank.
#include <doctest/doctest.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "errors.hpp"
#include "pagerank.cuh"
#include "tiers/gather.hpp"
#include "tiers/pagerank.hpp"
#include "tiers/radix_sort.hpp"
#include "tiers/sieve.hpp"
#include "use_level.cuh"

TEST_CASE("radix_sort is a stable sort for any size, range and number of threads") {
    std::mt19937_64 random(1);
    for (const int64_t n : {0, 1, 100, 8192, 30001})
        for (const int64_t limit : {int64_t{1}, int64_t{5}, int64_t{1} << 11, int64_t{1} << 40}) {
            std::vector<gids::RowAt> pairs(n);
            for (int64_t i = 0; i < n; ++i) pairs[i] = {static_cast<int64_t>(random() % limit), i};
            auto expected = pairs;
            std::stable_sort(expected.begin(), expected.end(), [](auto& a, auto& b) { return a.row < b.row; });
            for (const int threads : {1, 3}) {
                auto sorted = pairs;
                gids::ThreadPool pool(threads);
                gids::radix_sort(pool, sorted, limit);
                CHECK(std::equal(sorted.begin(), sorted.end(), expected.begin(), expected.end(),
                                 [](auto& a, auto& b) { return a.row == b.row && a.at == b.at; }));
            }
        }
}

TEST_CASE("sieve takes the same victims for any number of threads, and all when asked for all") {
    constexpr int64_t kSlots = 20000;
    const auto victims = [&](int threads) {
        gids::ThreadPool pool(threads);
        std::vector<gids::SlotState> slots(kSlots, {gids::kNever, 0, 0});
        std::vector<int64_t> all(kSlots), taken;
        std::iota(all.begin(), all.end(), int64_t{0});
        gids::SieveQueue queue;
        queue.append(all);
        for (const int64_t wanted : {1000, 15000, 20000, 30000}) {
            for (int64_t s = 0; s < kSlots; s += 3) slots[s].next = gids::kVisited;
            const auto some = queue.evict(pool, slots, wanted);
            CHECK(std::ssize(some) == std::min(wanted, kSlots));
            taken.insert(taken.end(), some.begin(), some.end());
            queue.append(some);
        }
        return taken;
    };
    CHECK(victims(1) == victims(4));
}

TEST_CASE("gather reads the three tiers, admit fills slots, and bad locations are refused") {
    gids::ThreadPool pool(3);
    constexpr int64_t kDim = 5, kRowBytes = kDim * sizeof(float);
    const auto make = [](int64_t rows, float first) {
        std::vector<float> values(rows * kDim);
        std::iota(values.begin(), values.end(), first);
        return values;
    };
    auto cache = make(1000, 0), host = make(100, 1e5F), group = make(3000, 2e5F);
    const auto bytes = [](std::vector<float>& values) { return reinterpret_cast<uint8_t*>(values.data()); };
    const gids::AddressSpace space{bytes(cache), bytes(host), bytes(group), 1000, 100, 3000, kRowBytes};
    std::vector<int64_t> location(4100);
    std::iota(location.rbegin(), location.rend(), int64_t{0});
    std::vector<float> out(4100 * kDim), expected;
    for (const auto* part : {&cache, &host, &group}) expected.insert(expected.end(), part->begin(), part->end());
    gids::gather_rows(pool, space, location, bytes(out), gids::DType::kFloat32, gids::DType::kFloat32, kDim);
    int64_t wrong = 0;
    for (int64_t i = 0; i < 4100; ++i)
        for (int64_t k = 0; k < kDim; ++k) wrong += out[i * kDim + k] != expected[(4099 - i) * kDim + k];
    CHECK(wrong == 0);

    for (const int64_t bad : {int64_t{-1}, int64_t{4100}}) {
        location[2000] = bad;
        CHECK_THROWS_AS(
            gids::gather_rows(pool, space, location, bytes(out), gids::DType::kFloat32, gids::DType::kFloat32, kDim),
            gids::ConfigError);
    }
    const std::vector<int64_t> slot{7, 3}, position{2999, 0};
    gids::admit_rows(pool, bytes(cache), slot, bytes(group), position, kRowBytes);
    CHECK(cache[7 * kDim] == group[2999 * kDim]);
    CHECK(cache[3 * kDim + 4] == group[4]);
}

TEST_CASE("rank pushed in parallel adds up to the same bits, and damaged edges are refused") {
    constexpr int64_t kNodes = 300, kEdges = 200000;
    std::mt19937_64 random(5);
    std::vector<int64_t> indptr(kNodes + 1);
    for (int64_t e = 0; e < kEdges; ++e) ++indptr[1 + random() % (kNodes / 2) * 2];  // every other node has no edges
    std::partial_sum(indptr.begin(), indptr.end(), indptr.begin());
    std::vector<int32_t> sources(kEdges);
    for (auto& source : sources) source = static_cast<int32_t>(random() % kNodes);
    const std::vector<uint64_t> rank(kNodes, gids::kRankUnit / kNodes);
    const auto pushed = [&](int threads, int64_t chunk) {
        gids::ThreadPool pool(threads);
        std::vector<uint64_t> received(kNodes);
        for (int64_t first = 0; first < kEdges; first += chunk)
            gids::push_ranks<int32_t>(pool, indptr, rank,
                                      std::span<const int32_t>(sources).subspan(first, std::min(chunk, kEdges - first)),
                                      first, 1, received);
        return received;
    };
    const auto received = pushed(1, kEdges);
    CHECK(received == pushed(4, 70001));
    const uint64_t total = std::accumulate(received.begin(), received.end(), uint64_t{0});
    const uint64_t sent = rank[0] * (kNodes / 2);
    CHECK(total <= sent);
    CHECK(sent - total <= kEdges);  // what integer division leaves behind
    sources[123456] = kNodes;
    CHECK_THROWS_AS(pushed(2, kEdges), gids::DatasetError);
}

TEST_CASE("levels of use grow with uses, and each level's least uses are of that level") {
    uint32_t before = 0;
    for (uint32_t uses = 0; uses < 100000; ++uses) {
        const uint32_t level = gids::use_level(uses);
        CHECK((level == before || level == before + 1));
        CHECK(gids::uses_at_level(level) <= uses);
        before = level;
    }
    for (uint32_t level = 0; level < 124; ++level) CHECK(gids::use_level(gids::uses_at_level(level)) == level);
    CHECK(gids::use_level(gids::uses_at_level(255)) < gids::kUseLevels);
}
