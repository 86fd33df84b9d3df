// Sweep under sanitizers: against sets, and with one thread that reads while another gathers.
#include <doctest/doctest.h>

#include <map>
#include <mutex>
#include <random>
#include <set>
#include <thread>

#include "errors.hpp"
#include "tiers/sweep.hpp"

namespace {

std::vector<int64_t> draw(std::mt19937_64& random, int64_t num_rows, int64_t most) {
    std::set<int64_t> rows;
    for (int64_t i = static_cast<int64_t>(random() % (most + 1)); i > 0; --i)
        rows.insert(static_cast<int64_t>(random() % num_rows));
    return {rows.begin(), rows.end()};
}

}  // namespace

TEST_CASE("a sweep reads each row once, finds it, and gives it back with the last group that needs it") {
    std::mt19937_64 random(3);
    for (int trial = 0; trial < 60; ++trial) {
        const int64_t num_rows = 1 + static_cast<int64_t>(random() % 60);
        gids::Sweep sweep(num_rows, 1 + static_cast<int32_t>(random() % 8));
        struct Waiting {
            std::vector<int64_t> rows;
            int64_t done;
        };
        std::vector<Waiting> groups;
        std::map<int64_t, int32_t> where;  // of the rows that are held
        int32_t next_slot = 0;
        int64_t steps = 0;
        for (int turn = 0; turn < 60; ++turn) {
            if (random() % 3 != 0) {
                std::vector<int64_t> rows = draw(random, num_rows, 12);
                const int64_t peak = sweep.peak(rows);
                CHECK(peak <= num_rows);
                if (groups.empty()) CHECK(peak == static_cast<int64_t>(rows.size()));
                const gids::Sweep::Admitted admitted = sweep.admit(rows);
                groups.push_back({std::move(rows), steps + admitted.steps});
            }
            std::vector<int32_t> slots(sweep.due());
            for (int32_t& slot : slots) slot = next_slot++;
            const std::vector<int64_t> read = sweep.step(slots);
            ++steps;
            for (size_t i = 0; i < read.size(); ++i) CHECK(where.emplace(read[i], slots[i]).second);
            while (!groups.empty() && groups.front().done <= steps && random() % 4 != 0) {
                const Waiting group = groups.front();
                groups.erase(groups.begin());
                std::vector<int32_t> found(group.rows.size());
                sweep.find(group.rows, found);
                for (size_t i = 0; i < found.size(); ++i) CHECK(where.at(group.rows[i]) == found[i]);
                std::set<int64_t> needed;
                for (const Waiting& other : groups) needed.insert(other.rows.begin(), other.rows.end());
                std::set<int32_t> free;
                for (auto at = where.begin(); at != where.end();)
                    if (needed.contains(at->first)) {
                        ++at;
                    } else {
                        free.insert(at->second);
                        at = where.erase(at);
                    }
                const std::vector<int32_t> released = sweep.release();
                CHECK(std::set<int32_t>(released.begin(), released.end()) == free);
                CHECK(released.size() == free.size());
            }
        }
    }
}

TEST_CASE("no more rows are held than peak() said, if groups begin only where they fit") {
    std::mt19937_64 random(4);
    for (int trial = 0; trial < 40; ++trial) {
        constexpr int64_t kRows = 200, kRoom = 60;
        gids::Sweep sweep(kRows, 1 + static_cast<int32_t>(random() % 12));
        std::vector<int64_t> done;
        int64_t steps = 0, held = 0, begun = 0;
        const auto step = [&] {
            std::vector<int32_t> slots(sweep.due(), 0);
            held += static_cast<int64_t>(slots.size());
            sweep.step(slots);
            ++steps;
            CHECK(held <= kRoom);
            while (!done.empty() && done.front() <= steps) {
                held -= static_cast<int64_t>(sweep.release().size());
                done.erase(done.begin());
            }
        };
        while (begun < 30) {
            const std::vector<int64_t> rows = draw(random, kRows, 40);
            while (!done.empty() && sweep.peak(rows) > kRoom) step();
            done.push_back(steps + sweep.admit(rows).steps);
            ++begun;
            step();
        }
        while (!done.empty()) step();
        CHECK(held == 0);
    }
}

TEST_CASE("one thread admits and steps while another finds and releases") {
    gids::Sweep sweep(1000, 7);
    std::mutex mutex;
    std::vector<std::pair<std::vector<int64_t>, int64_t>> waiting;  // guarded by mutex
    int64_t steps = 0;                                              // guarded by mutex
    constexpr int kGroups = 200;
    std::thread gatherer([&] {
        for (int gathered = 0; gathered < kGroups;) {
            std::vector<int64_t> rows;
            {
                const std::scoped_lock lock(mutex);
                if (waiting.empty() || waiting.front().second > steps) continue;
                rows = std::move(waiting.front().first);
                waiting.erase(waiting.begin());
            }
            std::vector<int32_t> slots(rows.size());
            sweep.find(rows, slots);
            CHECK(std::set<int32_t>(slots.begin(), slots.end()).size() == rows.size());
            sweep.release();
            ++gathered;
        }
    });
    std::mt19937_64 random(5);
    int32_t next_slot = 0;
    for (int turn = 0; turn < kGroups + 7; ++turn) {
        std::vector<int64_t> rows = draw(random, 1000, 50);
        if (turn < kGroups) {
            const int64_t wait = sweep.admit(rows).steps;
            const std::scoped_lock lock(mutex);
            waiting.emplace_back(std::move(rows), steps + wait);
        }
        std::vector<int32_t> slots(sweep.due());
        for (int32_t& slot : slots) slot = next_slot++;
        sweep.step(slots);
        const std::scoped_lock lock(mutex);
        ++steps;
    }
    gatherer.join();
}
