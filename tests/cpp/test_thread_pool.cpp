// ThreadPool: every index once, exceptions surface, nesting and concurrent callers work.
#include <doctest/doctest.h>

#include <atomic>
#include <stdexcept>
#include <thread>
#include <vector>

#include "thread_pool.hpp"

TEST_CASE("parallel_for visits every index once") {
    for (int threads : {1, 2, 7}) {
        gids::ThreadPool pool(threads);
        std::vector<std::atomic<int>> seen(1001);
        pool.parallel_for(1001, 10, [&](int64_t begin, int64_t end) {
            for (int64_t i = begin; i < end; ++i) ++seen[i];
        });
        for (auto& count : seen) CHECK(count == 1);
    }
}

TEST_CASE("the first exception is rethrown and the pool stays usable") {
    gids::ThreadPool pool(3);
    CHECK_THROWS_AS(pool.parallel_for(100, 1, [](int64_t, int64_t) { throw std::runtime_error("no"); }),
                    std::runtime_error);
    std::atomic<int64_t> sum{0};
    pool.parallel_for(100, 7, [&](int64_t begin, int64_t end) { sum += end - begin; });
    CHECK(sum == 100);
}

TEST_CASE("loops nest and callers share the pool") {
    gids::ThreadPool pool(2);
    std::atomic<int64_t> sum{0};
    const auto nested = [&] {
        pool.parallel_for(8, 1, [&](int64_t, int64_t) {
            pool.parallel_for(50, 5, [&](int64_t begin, int64_t end) { sum += end - begin; });
        });
    };
    std::thread other(nested);
    nested();
    other.join();
    CHECK(sum == 800);
}

TEST_CASE("thread count is checked") { CHECK_THROWS_AS(gids::ThreadPool(0), std::invalid_argument); }
