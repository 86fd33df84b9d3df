// Rows scattered by several threads into regions that share pages, in one go or over a kill, under sanitizers.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <string>
#include <vector>

#include "dataset/checksum.hpp"
#include "errors.hpp"
#include "pack/scatter.hpp"

namespace {

constexpr int64_t kRows = 3000, kRowBytes = 84, kBlock = 170;  // rows straddle pages

struct File {
    std::string path = "/tmp/gids-scatter-XXXXXX";
    File() { close(mkstemp(path.data())); }
    ~File() { std::remove(path.c_str()); }
    std::vector<uint8_t> read(size_t bytes) const {
        std::vector<uint8_t> data(bytes);
        FILE* file = std::fopen(path.c_str(), "rb");
        CHECK(std::fread(data.data(), 1, bytes, file) == bytes);
        std::fclose(file);
        return data;
    }
};

struct Wanted {
    std::vector<std::vector<int64_t>> sources, places;
    std::vector<gids::pack::Region> regions;
    int64_t rows = 0;

    Wanted() {
        for (int64_t r = 0; r < 12; ++r) {
            auto& from = sources.emplace_back();
            for (int64_t row = r; row < kRows; row += 3 + 5 * r) from.push_back(row);
            auto& to = places.emplace_back();
            if (r % 3 == 0) {  // in reverse
                to.resize(from.size());
                std::iota(to.rbegin(), to.rend(), int64_t{0});
            }
        }
        for (size_t r = 0; r < sources.size(); ++r) {
            regions.push_back({rows, sources[r], places[r]});
            rows += static_cast<int64_t>(sources[r].size());
        }
    }
};

}  // namespace

TEST_CASE("every region gets its rows, whatever the buffers, and whether or not the pass was broken off") {
    std::vector<uint8_t> table(kRows * kRowBytes);
    for (size_t i = 0; i < table.size(); ++i) table[i] = static_cast<uint8_t>(i * 31 + i / 251);
    const Wanted wanted;
    for (const int64_t buffer_bytes : {int64_t{4096}, int64_t{1} << 20})
        for (const int64_t broken_off_at : {int64_t{0}, 5 * kBlock}) {
            const File file;
            const int64_t bytes = wanted.rows * kRowBytes, pages = (bytes + 4095) / 4096 * 4096;
            REQUIRE(truncate(file.path.c_str(), pages) == 0);
            std::vector<uint64_t> sums(2 * wanted.regions.size());
            gids::ThreadPool pool(3);
            const auto pass = [&](int64_t begin, int64_t end) {
                gids::pack::Scatter scatter(file.path, kRowBytes, wanted.regions, sums, buffer_bytes, begin);
                for (int64_t first = begin; first < end; first += kBlock)
                    scatter.add(first, table.data() + first * kRowBytes, std::min(kBlock, end - first), pool);
                scatter.checkpoint(pool);
            };
            if (broken_off_at > 0) pass(0, broken_off_at);
            pass(broken_off_at, kRows);
            const std::vector<uint8_t> written = file.read(static_cast<size_t>(bytes));
            for (size_t r = 0; r < wanted.regions.size(); ++r) {
                const gids::pack::Region& region = wanted.regions[r];
                uint64_t sum = 0, weighted = 0;
                for (size_t i = 0; i < region.sources.size(); ++i) {
                    const int64_t place = region.places.empty() ? static_cast<int64_t>(i) : region.places[i];
                    const uint8_t* row = table.data() + region.sources[i] * kRowBytes;
                    CHECK(std::memcmp(written.data() + (region.begin + place) * kRowBytes, row, kRowBytes) == 0);
                    const uint64_t digest = gids::row_digest(row, kRowBytes);
                    sum += digest;
                    weighted += static_cast<uint64_t>(place + 1) * digest;
                }
                CHECK(sums[2 * r] == sum);
                CHECK(sums[2 * r + 1] == weighted);
            }
        }
}

TEST_CASE("a file that cannot be opened is named") {
    std::vector<uint64_t> sums;
    CHECK_THROWS_AS(gids::pack::Scatter("/no/such/file", 8, {}, sums, 4096, 0), gids::StorageError);
}
