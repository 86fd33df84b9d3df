// Reader over every engine, under the sanitizers: concurrent readers and cancellers, faults, time-outs, closing early.
#include <doctest/doctest.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "errors.hpp"
#include "storage/reader.hpp"

using namespace gids::storage;

namespace {

constexpr uint64_t kRows = 3000, kRowBytes = 300;

struct TemporaryTable {
    TemporaryTable() {
        char name[] = "./gids-test-XXXXXX";
        const int descriptor = mkstemp(name);
        REQUIRE(descriptor >= 0);
        close(descriptor);
        path = name;
        std::vector<char> bytes(kRows * kRowBytes);
        for (uint64_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(i * 2654435761u >> 13);
        data.assign(bytes.begin(), bytes.end());
        std::ofstream(path, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    }
    ~TemporaryTable() { unlink(path.c_str()); }
    TableLayout layout() const { return {{{path, 0, kRows}}, kRows, kRowBytes, kRowBytes, kRows}; }

    std::string path;
    std::vector<char> data;
};

std::vector<std::string> engines() {
    std::vector<std::string> names;
    for (const auto& [name, refusal] : engine_availability())
        if (refusal.empty()) names.push_back(name);
    return names;
}

ReaderOptions options(const std::string& engine, std::optional<FaultOptions> fault = {}) {
    return {.engine = {engine, false, false, fault},
            .queue_depth = 8,
            .threads = 2,
            .staging_bytes = 256 << 10,
            .merge_gap_bytes = 600,
            .max_io_bytes = 8192,
            .timeout_s = 20};
}

std::vector<int64_t> some_rows(unsigned seed, size_t count) {
    std::mt19937 random(seed);
    std::vector<int64_t> rows(count);
    for (auto& row : rows) row = static_cast<int64_t>(random() % kRows);
    return rows;
}

bool right(const TemporaryTable& table, const std::vector<int64_t>& rows, const std::vector<std::byte>& out) {
    for (size_t i = 0; i < rows.size(); ++i)
        if (std::memcmp(out.data() + i * kRowBytes, table.data.data() + static_cast<uint64_t>(rows[i]) * kRowBytes,
                        kRowBytes) != 0)
            return false;
    return true;
}

int threads_named(const std::string& prefix) {
    int count = 0;
    for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
        std::string name;
        std::getline(std::ifstream(task.path() / "comm"), name);
        count += name.starts_with(prefix);
    }
    return count;
}

void wait(Job& job) {
    while (!job.wait_for(std::chrono::milliseconds(100))) {
    }
}

}  // namespace

TEST_CASE("several threads read at once, some give up") {
    const TemporaryTable table;
    gids::ThreadPool pool(3);
    for (const auto& engine : engines()) {
        CAPTURE(engine);
        Reader reader(table.layout(), options(engine), &pool);
        std::atomic<int> wrong{0};
        std::vector<std::thread> callers;
        for (unsigned caller = 0; caller < 3; ++caller)
            callers.emplace_back([&, caller] {
                for (unsigned round = 0; round < 6; ++round) {
                    const auto rows = some_rows(caller * 100 + round, 2000);
                    std::vector<std::byte> out(rows.size() * kRowBytes);
                    const auto job = reader.submit(rows, out.data());
                    if (round % 3 == 2) {
                        job->cancel();
                        continue;
                    }
                    wait(*job);
                    wrong += !right(table, rows, out);
                }
            });
        for (auto& caller : callers) caller.join();
        CHECK(wrong == 0);
        CHECK(reader.stats().jobs == 18);
    }
}

TEST_CASE("callers inside the pool do not wait for each other's copies") {
    const TemporaryTable table;
    gids::ThreadPool pool(2);
    for (const auto& engine : engines()) {
        CAPTURE(engine);
        Reader reader(table.layout(), options(engine), &pool);
        std::atomic<int> wrong{0};
        pool.parallel_for(8, 1, [&](int64_t begin, int64_t) {
            const auto rows = some_rows(static_cast<unsigned>(begin), 3000);
            std::vector<std::byte> out(rows.size() * kRowBytes);
            wait(*reader.submit(rows, out.data()));
            wrong += !right(table, rows, out);
        });
        CHECK(wrong == 0);
    }
}

TEST_CASE("small reads from a device are copied where they arrive, large ones by the pool too") {
    const TemporaryTable table;
    // Reordered and delayed, everything in flight arrives at once: more bytes than a thread copies alone.
    const FaultOptions burst{.delay_us = 20'000, .reorder = true};
    for (const std::string engine : {"uring", "pread"})
        for (const uint64_t row_bytes : {uint64_t{4096}, uint64_t{64} << 10}) {
            if (std::ranges::count(engines(), engine) == 0) continue;
            CAPTURE(engine);
            CAPTURE(row_bytes);
            const uint64_t count = table.data.size() / row_bytes;
            ReaderOptions chosen = options(engine, burst);
            chosen.queue_depth = 256, chosen.threads = 1, chosen.staging_bytes = 4 << 20;
            chosen.merge_gap_bytes = 0, chosen.max_io_bytes = row_bytes;
            gids::ThreadPool pool(2, "burst");  // starts its thread when it first gets work
            Reader reader({{{table.path, 0, count}}, count, row_bytes, row_bytes, count}, chosen, &pool);
            std::vector<int64_t> rows(count);
            std::iota(rows.begin(), rows.end(), 0);
            std::vector<std::byte> out(count * row_bytes);
            wait(*reader.submit(rows, out.data()));
            CHECK(std::memcmp(out.data(), table.data.data(), out.size()) == 0);
            CHECK(threads_named("burst") == (row_bytes > 4096 ? 1 : 0));
        }
}

TEST_CASE("an error fails its own job and the next one works") {
    const TemporaryTable table;
    for (const auto& engine : engines()) {
        CAPTURE(engine);
        auto chosen = options(engine, FaultOptions{.fail_at = 5});
        chosen.threads = 1;
        Reader reader(table.layout(), chosen, nullptr);
        const auto rows = some_rows(1, 2000);
        std::vector<std::byte> out(rows.size() * kRowBytes);
        CHECK_THROWS_AS(wait(*reader.submit(rows, out.data())), gids::StorageError);
        wait(*reader.submit(rows, out.data()));
        CHECK(right(table, rows, out));
    }
}

TEST_CASE("stuck requests time out, and closing does not wait for them") {
    const TemporaryTable table;
    for (const auto& engine : engines()) {
        CAPTURE(engine);
        auto chosen = options(engine, FaultOptions{.stuck_at = 3});
        chosen.timeout_s = 0.2;
        const auto start = std::chrono::steady_clock::now();
        {
            Reader reader(table.layout(), chosen, nullptr);
            const auto rows = some_rows(2, 1000);
            std::vector<std::byte> out(rows.size() * kRowBytes);
            CHECK_THROWS_AS(wait(*reader.submit(rows, out.data())), gids::StorageError);
        }
        CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(8));
    }
}

TEST_CASE("closing in the middle ends every job") {
    const TemporaryTable table;
    for (const auto& engine : engines()) {
        CAPTURE(engine);
        Reader reader(table.layout(), options(engine, FaultOptions{.delay_us = 2000, .reorder = true}), nullptr);
        const auto rows = some_rows(4, 3000);
        std::vector<std::byte> out(rows.size() * kRowBytes);
        const auto job = reader.submit(rows, out.data());
        reader.close();
        CHECK(job->ended());
        CHECK_THROWS_AS(reader.submit(rows, out.data()), gids::StorageError);
    }
}
