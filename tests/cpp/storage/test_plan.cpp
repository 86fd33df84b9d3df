// plan_reads and sort_words: large random inputs against std::stable_sort, with and without threads.
#include <doctest/doctest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "errors.hpp"
#include "storage/plan.hpp"
#include "storage/sort.hpp"

using namespace gids::storage;

TEST_CASE("words sort like std::sort, for every size of input and of key") {
    std::mt19937_64 random(1);
    gids::ThreadPool pool(3);
    for (const size_t count : {0, 1, 2, 95, 97, 5000, 20000, 100000}) {
        for (const int key_bits : {1, 7, 12, 30, 45}) {
            const int shift = 17;
            std::vector<uint64_t> words(count), spare(count);
            for (size_t i = 0; i < count; ++i) words[i] = (random() >> (64 - key_bits)) << shift | i;
            auto expected = words;
            std::sort(expected.begin(), expected.end());
            sort_words(words.data(), spare.data(), static_cast<int64_t>(count), shift, 0, (uint64_t{1} << key_bits) - 1,
                       count % 2 == 0 ? &pool : nullptr);
            CHECK(words == expected);
        }
    }
}

TEST_CASE("the plan does not depend on the number of threads") {
    const TableLayout layout({{"a", 64, 600'000}, {"b", 0, 400'000}}, 1'000'000, 100, 128, 200'000);
    std::mt19937_64 random(2);
    std::vector<int64_t> rows(400'000);
    for (auto& row : rows) row = static_cast<int64_t>(random() % 1'000'000);
    gids::ThreadPool pool(4);
    const PlanLimits limits{512, 1024, 64 << 10};
    const ReadPlan alone = plan_reads(layout, rows, limits, nullptr), shared = plan_reads(layout, rows, limits, &pool);
    REQUIRE(alone.reads().size() == shared.reads().size());
    CHECK(alone.num_unique() == shared.num_unique());
    bool same = true;
    for (size_t i = 0; i < alone.reads().size(); ++i) {
        const Read &a = alone.reads()[i], &b = shared.reads()[i];
        same &= a.offset == b.offset && a.length == b.length && a.file == b.file && a.first == b.first &&
                a.count == b.count;
    }
    CHECK(same);
}

TEST_CASE("every row is served whole and once") {
    const TableLayout layout({{"a", 3, 5000}}, 5000, 900, 1000, 5000);
    std::vector<int64_t> rows(5000);
    for (size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<int64_t>(i * 37 % 5000);
    const ReadPlan plan = plan_reads(layout, rows, {512, 0, 4096}, nullptr);
    std::vector<int> served(rows.size(), 0);
    uint64_t bytes = 0;
    for (const Read& read : plan.reads()) {
        bytes += read.length;
        for (size_t i = read.first; i < size_t{read.first} + read.count; ++i) {
            const uint64_t offset = layout.offset_of(plan.key(i), read.file);
            CHECK(read.offset <= offset);
            CHECK(offset + 900 <= read.offset + read.length);
            ++served[plan.position(i)];
        }
    }
    CHECK(bytes == plan.bytes());
    CHECK(std::all_of(served.begin(), served.end(), [](int times) { return times == 1; }));
}

TEST_CASE("stripes must hold the rows that the rule gives them") {
    CHECK_THROWS_AS(TableLayout({{"a", 0, 5}, {"b", 0, 5}}, 10, 4, 4, 4), gids::ConfigError);
    const TableLayout layout({{"a", 0, 6}, {"b", 0, 4}}, 10, 4, 4, 4);
    for (uint64_t row = 0; row < 10; ++row) CHECK(layout.row_of(layout.key_of(row)) == row);
}
