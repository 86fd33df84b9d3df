// LABOR's choice in vectors: every way that this processor has gives what one node at a time does.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "philox.cuh"
#include "sampling/labor.hpp"
#include "sampling/shortlist.hpp"

using namespace gids;

namespace {

// A list with as many different sources as `values`: few of them make many equal variates.
std::vector<int32_t> list_of(int64_t degree, uint64_t values) {
    std::vector<int32_t> sources;
    for (int64_t i = 0; i < degree; ++i)
        sources.push_back(
            static_cast<int32_t>(random_below(random_block({1, 2}, static_cast<uint64_t>(i), 0).low(), values)));
    return sources;
}

std::vector<int64_t> chosen_plainly(const LaborKey& key, const std::vector<int32_t>& sources, int64_t count) {
    std::vector<int64_t> out(static_cast<size_t>(count));
    std::vector<double> times(static_cast<size_t>(count));
    const auto degree = static_cast<int64_t>(sources.size());
    choose_labor(Serial{}, key, 7, degree, degree, count, sources.data(), nullptr, times.data(), out.data());
    return out;
}

}  // namespace

TEST_CASE("a shortlist has the edges up to a limit in the order of the list, and gives the smallest in theirs") {
    for (const uint64_t period : {1, 4}) {
        const LaborKey key = labor_key(3, 1, 7, period, 2, 0, nullptr);
        for (const int64_t degree : {1, 15, 16, 17, 100, 1023, 1024, 1100, 5000})
            for (const uint64_t values : {40, 1'000'000}) {
                const auto sources = list_of(degree, values);
                const auto* names = reinterpret_cast<const uint32_t*>(sources.data());
                const auto limit =
                    static_cast<uint32_t>(std::min(1.0, 60.0 / static_cast<double>(degree)) * 4294967295.0);
                std::vector<uint32_t> expected;
                for (int64_t i = 0; i < degree; ++i)
                    if (labor_bits(key, names[i]) <= limit) expected.push_back(static_cast<uint32_t>(i + 5));
                for (const ShortlistWay& way : shortlist_ways()) {
                    CAPTURE(way.name);
                    CAPTURE(degree);
                    Shortlist found;
                    way.collect(key, names, degree, 5, limit, found);
                    REQUIRE(found.full() == (static_cast<int64_t>(expected.size()) > Shortlist::kRoom));
                    if (found.full()) continue;
                    CHECK(std::vector<uint32_t>(found.index.begin(), found.index.begin() + found.size) == expected);
                    for (const int64_t count : {int64_t{1}, found.size / 2, found.size}) {
                        if (count == 0 || count > found.size || count == degree) continue;  // all of a list: as it is
                        std::vector<int64_t> out(static_cast<size_t>(count));
                        way.order(found, count, 2, out.data());
                        CHECK(out == chosen_plainly(key, sources, count));  // 7 there: 2 here and 5 for the first
                    }
                }
            }
    }
}

TEST_CASE("the fast choice is the plain one, whatever ids the nodes have and had") {
    std::vector<int64_t> origins;
    for (int64_t i = 0; i < 1000; ++i) origins.push_back(i * 7919 % 1000);
    for (const int64_t* before : {static_cast<const int64_t*>(nullptr), static_cast<const int64_t*>(origins.data())}) {
        const LaborKey key = labor_key(3, 1, 7, 4, 2, 0, before);
        for (const int64_t degree : {5, 63, 64, 65, 1000, 3000})
            for (const bool wide : {false, true}) {
                if (wide && before != nullptr) continue;
                std::vector<int64_t> nodes;
                for (int64_t i = 0; i < degree; ++i)
                    nodes.push_back(wide ? i * i * 1'000'003 + (i << 33) : i * 1'000'003 % 1000);
                for (const int64_t count : {1, 4, 50}) {
                    if (count > degree) continue;
                    std::vector<int64_t> fast(50), plain(50);
                    std::vector<double> times(50), scratch;
                    choose_labor_fast(key, 10, degree, degree, count, nodes.data(), nullptr, scratch, fast.data());
                    choose_labor(Serial{}, key, 10, degree, degree, count, nodes.data(), nullptr, times.data(),
                                 plain.data());
                    CHECK(fast == plain);
                }
            }
    }
}
