// Reads that the device puts in place, under the sanitizers: many at once, given up, failed, and stuck at the end.
#include <doctest/doctest.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "errors.hpp"
#include "storage/reader.hpp"

using namespace gids::storage;

// Named: the tests of a folder are compiled as one file.
namespace placed {
namespace {

constexpr uint64_t kRows = 500, kRowBytes = 4096;

struct Table {
    Table() : data(kRows * kRowBytes) {
        for (uint64_t i = 0; i < data.size(); ++i) data[i] = static_cast<char>(i * 2654435761u >> 13);
        char name[] = "./gids-placed-XXXXXX";
        close(mkstemp(name));
        path = name;
        std::ofstream(path, std::ios::binary).write(data.data(), static_cast<std::streamsize>(data.size()));
    }
    ~Table() { unlink(path.c_str()); }
    TableLayout layout() const { return {{{path, 0, kRows}}, kRows, kRowBytes, kRowBytes, kRows}; }

    std::string path;
    std::vector<char> data;
};

struct Free {
    void operator()(std::byte* memory) const { std::free(memory); }
};
using Memory = std::unique_ptr<std::byte, Free>;

Memory memory_for(size_t rows) {
    return Memory(static_cast<std::byte*>(std::aligned_alloc(kRowBytes, rows * kRowBytes)));
}

ReaderOptions options(const std::string& engine, std::optional<FaultOptions> fault = {}, double timeout_s = 20) {
    return {.engine = {engine, false, false, fault},
            .queue_depth = 8,
            .threads = 2,
            .staging_bytes = 256 << 10,
            .merge_gap_bytes = 0,
            .max_io_bytes = 8192,
            .timeout_s = timeout_s};
}

std::vector<std::string> placing_engines() {
    std::vector<std::string> names;
    for (const auto& [name, refusal] : engine_availability())
        if (refusal.empty() && (name == "uring" || name == "pread")) names.push_back(name);
    return names;
}

std::vector<int64_t> some_rows(unsigned seed, size_t count) {
    std::mt19937 random(seed);
    std::vector<int64_t> rows(count);
    for (auto& row : rows) row = static_cast<int64_t>(random() % kRows);
    return rows;
}

bool right(const Table& table, const std::vector<int64_t>& rows, const std::byte* out) {
    for (size_t i = 0; i < rows.size(); ++i)
        if (std::memcmp(out + i * kRowBytes, table.data.data() + static_cast<uint64_t>(rows[i]) * kRowBytes,
                        kRowBytes) != 0)
            return false;
    return true;
}

}  // namespace

TEST_CASE("reads in place: several threads at once, some give up and free the memory at once") {
    const Table table;
    for (const auto& engine : placing_engines()) {
        CAPTURE(engine);
        Reader reader(table.layout(), options(engine), nullptr);
        std::atomic<int> wrong{0};
        std::vector<std::thread> callers;
        for (unsigned caller = 0; caller < 3; ++caller)
            callers.emplace_back([&, caller] {
                for (unsigned round = 0; round < 6; ++round) {
                    const auto rows = some_rows(caller * 100 + round, 300);
                    const Memory out = memory_for(rows.size());
                    const auto job = reader.submit(rows, out.get());
                    if (round % 3 == 2) {
                        job->cancel();
                        continue;
                    }
                    while (!job->wait_for(std::chrono::milliseconds(100))) {
                    }
                    wrong += !right(table, rows, out.get());
                }
            });
        for (auto& caller : callers) caller.join();
        CHECK(wrong == 0);
        CHECK(reader.stats().placed > 0);
        CHECK(reader.orphaned_reads() == 0);
    }
}

TEST_CASE("reads in place: a failed read waits for the others, then the memory is the caller's") {
    const Table table;
    for (const auto& engine : placing_engines()) {
        CAPTURE(engine);
        Reader reader(table.layout(), options(engine, FaultOptions{.fail_at = 5, .delay_us = 2000}), nullptr);
        const auto rows = some_rows(1, 100);
        Memory out = memory_for(rows.size());
        const auto job = reader.submit(rows, out.get());
        CHECK_THROWS_AS(while (!job->wait_for(std::chrono::milliseconds(100))){}, gids::StorageError);
        CHECK(!job->abandoned());
        out.reset();
    }
}

TEST_CASE("reads in place: stuck ones are orphaned, and closing returns") {
    const Table table;
    for (const auto& engine : placing_engines()) {
        CAPTURE(engine);
        const auto rows = some_rows(2, 20);
        const Memory out = memory_for(rows.size());
        std::shared_ptr<Job> job;
        {
            Reader reader(table.layout(), options(engine, FaultOptions{.stuck_at = 3}, 0.2), nullptr);
            job = reader.submit(rows, out.get());
            CHECK_THROWS_AS(while (!job->wait_for(std::chrono::milliseconds(100))){}, gids::StorageError);
            CHECK(job->abandoned());
            CHECK(reader.orphaned_reads() > 0);
        }
        CHECK(job->ended());
    }
}

}  // namespace placed
