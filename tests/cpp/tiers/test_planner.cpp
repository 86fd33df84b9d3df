// Planner under sanitizers: plans replayed on row numbers, the same for any number of threads, for every policy.
#include <doctest/doctest.h>

#include <random>

#include "errors.hpp"
#include "tiers/planner.hpp"

namespace {

using gids::PolicyKind;

constexpr int64_t kRows = 60000, kCapacity = 9000;

// Batches larger than a piece of work, skewed so that rows repeat.
std::vector<std::vector<int64_t>> make_batches(int count, int64_t size) {
    std::mt19937_64 random(7);
    std::vector<std::vector<int64_t>> batches(count);
    for (auto& batch : batches) {
        std::vector<bool> taken(kRows);
        while (static_cast<int64_t>(batch.size()) < size) {
            const double u = static_cast<double>(random() >> 11) * 0x1.0p-53;
            const int64_t row = static_cast<int64_t>(u * u * kRows);
            if (!taken[row]) batch.push_back(row);
            taken[row] = true;
        }
    }
    return batches;
}

struct Run {
    std::vector<gids::GroupPlanned> plans;
    std::vector<std::vector<int64_t>> locations;
    std::vector<int64_t> residents;
};

Run run(PolicyKind policy, int threads, const std::vector<std::vector<int64_t>>& batches, size_t group, size_t ahead) {
    gids::ThreadPool pool(threads);
    gids::Planner planner({kCapacity, kRows, policy, 3});
    Run result;
    size_t observed = 0;
    for (size_t begin = 0; begin < batches.size(); begin += group) {
        const size_t end = std::min(begin + group, batches.size());
        for (; planner.looks_ahead() && observed < std::min(end + ahead, batches.size()); ++observed)
            planner.observe(pool, batches[observed]);
        std::vector<std::span<const int64_t>> rows;
        std::vector<std::vector<int64_t>> out;
        for (size_t b = begin; b < end; ++b) {
            rows.emplace_back(batches[b]);
            out.emplace_back(batches[b].size());
        }
        std::vector<std::span<int64_t>> spans(out.begin(), out.end());
        result.plans.push_back(planner.plan(pool, rows, spans));
        for (auto& location : out) result.locations.push_back(std::move(location));
    }
    result.residents = planner.resident_rows();
    return result;
}

}  // namespace

TEST_CASE("locations point at the row, for every policy and any number of threads") {
    const auto batches = make_batches(7, 12000);
    for (const auto policy :
         {PolicyKind::kRandom, PolicyKind::kLru, PolicyKind::kSieve, PolicyKind::kGids, PolicyKind::kWindow}) {
        const Run one = run(policy, 1, batches, 2, 3), four = run(policy, 4, batches, 2, 3);
        CHECK(one.locations == four.locations);
        CHECK(one.residents == four.residents);
        std::vector<int64_t> cache(kCapacity, gids::kNoRow);
        size_t number = 0;
        for (const auto& plan : one.plans) {
            for (size_t b = 0; b < plan.counters.size(); ++b, ++number) {
                int64_t wrong = 0;
                for (size_t i = 0; i < batches[number].size(); ++i) {
                    const int64_t at = one.locations[number][i];
                    const int64_t row = at < kCapacity ? cache[at] : plan.disk_rows[at - kCapacity];
                    wrong += row != batches[number][i];
                }
                CHECK(wrong == 0);
                const auto& c = plan.counters[b];
                CHECK(c.requests == c.cache + c.host + c.disk + c.duplicates);
                for (int64_t k = plan.admit_begin[b]; k < plan.admit_begin[b + 1]; ++k)
                    cache[plan.admit_slot[k]] = plan.disk_rows[plan.admit_position[k]];
            }
        }
        CHECK(cache == one.residents);
    }
}

TEST_CASE("a batch that was not observed is refused, and a bad row changes nothing") {
    gids::ThreadPool pool(2);
    gids::Planner planner({4, 10, PolicyKind::kWindow, 0});
    const std::vector<int64_t> rows{1, 2}, bad{3, 10};
    std::vector<int64_t> location(2);
    CHECK_THROWS_AS(planner.plan(pool, {rows}, {location}), gids::ConfigError);
    CHECK_THROWS_AS(planner.observe(pool, bad), gids::ConfigError);
    planner.observe(pool, rows);
    CHECK(planner.plan(pool, {rows}, {location}).counters[0].disk == 2);
}

TEST_CASE("many evictions keep the maps at their size") {
    gids::ThreadPool pool(2);
    gids::Planner planner({100, 1 << 20, PolicyKind::kLru, 0});
    const int64_t before = planner.memory_bytes();
    std::vector<int64_t> rows(60), location(60);
    for (int64_t step = 0; step < 400; ++step) {
        for (int64_t i = 0; i < 60; ++i) rows[i] = step * 60 + i;
        planner.plan(pool, {rows}, {location});
    }
    CHECK(planner.memory_bytes() == before);
    const auto again = planner.plan(pool, {rows}, {location});
    CHECK(again.counters[0].cache == 60);
}

TEST_CASE("a window that moves on forgets rows that have been served") {
    gids::ThreadPool pool(1);
    gids::Planner planner({10, 1 << 20, PolicyKind::kWindow, 0});
    std::vector<int64_t> location(50);
    std::vector<std::vector<int64_t>> batches(600, std::vector<int64_t>(50));
    for (size_t b = 0; b < batches.size(); ++b)
        for (size_t i = 0; i < 50; ++i) batches[b][i] = static_cast<int64_t>(b * 50 + i);
    int64_t at_100 = 0;
    for (size_t b = 0; b < batches.size(); ++b) {
        for (size_t k = b == 0 ? 0 : b + 3; k < std::min(b + 4, batches.size()); ++k) planner.observe(pool, batches[k]);
        planner.plan(pool, {batches[b]}, {location});
        if (b == 100) at_100 = planner.memory_bytes();
    }
    CHECK(planner.memory_bytes() <= at_100);
}
