// What an on-disk topology is made of: packed offsets, hot lists, the cache, and reads that threads share.
#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <random>
#include <thread>

#include "errors.hpp"
#include "sampling/hot_lists.hpp"
#include "sampling/offsets.hpp"
#include "sampling/position_reader.hpp"

using namespace gids;

namespace {

std::vector<int64_t> random_offsets(int64_t nodes, int64_t largest_degree, uint64_t seed) {
    std::mt19937_64 generator(seed);
    std::vector<int64_t> offsets{0};
    for (int64_t i = 0; i < nodes; ++i)
        offsets.push_back(offsets.back() +
                          static_cast<int64_t>(generator() % static_cast<uint64_t>(largest_degree + 1)));
    return offsets;
}

PackedOffsets pack(const std::vector<int64_t>& offsets, size_t piece) {
    PackedOffsets packed(static_cast<int64_t>(offsets.size()) - 1);
    for (size_t begin = 0; begin < offsets.size(); begin += piece)
        packed.append(std::span(offsets).subspan(begin, std::min(piece, offsets.size() - begin)));
    packed.finish();
    return packed;
}

// Values i * 3 in a file of their own, read one by one and by granules of 16.
struct StoredValues {
    static constexpr int64_t kCount = 100'003;
    std::filesystem::path path;
    std::unique_ptr<storage::Reader> values, granules;

    explicit StoredValues(const char* name, int64_t fail_at = -1)
        : path(std::filesystem::temp_directory_path() / (name + std::to_string(getpid()))) {
        std::ofstream file(path, std::ios::binary);
        for (int32_t i = 0; i < kCount; ++i) {
            const int32_t value = 3 * i;
            file.write(reinterpret_cast<const char*>(&value), sizeof(value));
        }
        file.close();
        storage::ReaderOptions options;
        options.engine.engine = "pread";
        if (fail_at >= 0) options.engine.fault = storage::FaultOptions{.fail_at = fail_at};
        values = open(kCount, 4, options);
        granules = open(kCount / 16, 64, options);
    }
    std::unique_ptr<storage::Reader> open(int64_t count, uint64_t bytes, const storage::ReaderOptions& options) const {
        const auto rows = static_cast<uint64_t>(count);
        return std::make_unique<storage::Reader>(
            storage::TableLayout({{path.string(), 0, rows}}, rows, bytes, bytes, rows), options, nullptr);
    }
    ~StoredValues() {
        values->close();
        granules->close();
        std::filesystem::remove(path);
    }
    std::vector<std::byte> tail() const {
        std::vector<int32_t> values;
        for (int32_t i = kCount / 16 * 16; i < kCount; ++i) values.push_back(3 * i);
        const auto bytes = std::as_bytes(std::span(values));
        return {bytes.begin(), bytes.end()};
    }
};

}  // namespace

TEST_CASE("packed offsets are the offsets, in a fraction of their bytes") {
    for (const int64_t degree : {int64_t{0}, int64_t{1}, int64_t{30}, int64_t{1} << 40})
        for (const int64_t nodes : {int64_t{0}, int64_t{1}, int64_t{63}, int64_t{64}, int64_t{65}, int64_t{5000}})
            for (const size_t piece : {size_t{1}, size_t{64}, size_t{1000}}) {
                const auto offsets = random_offsets(nodes, degree, 3);
                const PackedOffsets packed = pack(offsets, piece);
                CHECK(packed.num_edges() == offsets.back());
                for (int64_t node = 0; node < nodes; ++node) {
                    const auto i = static_cast<size_t>(node);
                    CHECK(packed.range(node).first == offsets[i]);
                    CHECK(packed.range(node).degree == offsets[i + 1] - offsets[i]);
                }
            }
    CHECK(pack(random_offsets(1 << 20, 32, 1), 4096).bytes() < (size_t{1} << 20) * 2);
}

TEST_CASE("offsets that decrease, begin elsewhere, or are too few or too many are refused") {
    for (const std::vector<int64_t>& wrong : {std::vector<int64_t>{0, 5, 4}, {1, 2, 3}, {0, 1}, {0, 1, 2, 3}}) {
        PackedOffsets packed(2);
        CHECK_THROWS_AS(
            [&] {
                packed.append(wrong);
                packed.finish();
            }(),
            DatasetError);
    }
}

TEST_CASE("hot lists hold what was filled in, in any pieces") {
    const auto offsets = random_offsets(500, 30, 1);
    const PackedOffsets packed = pack(offsets, 100);
    std::vector<int32_t> indices;
    for (int64_t e = 0; e < packed.num_edges(); ++e) indices.push_back(static_cast<int32_t>(e * 7 % 500));
    for (const size_t piece : {size_t{1}, size_t{7}, size_t{100000}}) {
        const std::vector<int64_t> nodes{0, 3, 64, 65, 499};
        Array<uint64_t> words(500 / 64 + 1);
        std::fill(words.begin(), words.end(), 0);
        for (const int64_t node : nodes) words[node >> 6] |= uint64_t{1} << (node & 63);
        HotLists lists(std::move(words), packed, 500);
        const std::span<const int32_t> all(indices);
        for (size_t begin = 0; begin < all.size(); begin += piece)
            lists.fill(all.subspan(begin, std::min(piece, all.size() - begin)));
        CHECK(lists.num_lists() == 5);
        for (int64_t node = 0; node < 500; ++node) {
            CHECK(lists.contains(node) == (std::find(nodes.begin(), nodes.end(), node) != nodes.end()));
            if (!lists.contains(node)) continue;
            const EdgeRange range = packed.range(node);
            for (int64_t i = 0; i < range.degree; ++i)
                CHECK(lists.value(lists.start_of_rank(lists.rank(node)) + i) ==
                      indices[static_cast<size_t>(range.first + i)]);
        }
    }
}

TEST_CASE("the lists that save most reads per byte are chosen") {
    const std::vector<int64_t> offsets{0, 10, 20, 5020, 5021, 5021};
    const PackedOffsets packed = pack(offsets, 6);
    const std::vector<float> visits{5, 6, 50, 0, 9};
    // Neighbours below 2^16 take two bytes: 22 for the short lists, 10 kB for the long one, of which a batch reads
    // about one however often it comes by; two save nothing. 4096 bytes and a bit are for finding them.
    const auto chosen = [&](int64_t budget) {
        const Array<uint64_t> words = HotRanking(packed, visits, 10, 10, 4, ListCost::packed(1 << 16)).choose(budget);
        return words[0];
    };
    CHECK(chosen(4000) == 0);
    CHECK(chosen(4097 + 23) == 0b00010);
    CHECK(chosen(4097 + 45) == 0b00011);
    CHECK(chosen(100'000) == 0b00111);
}

TEST_CASE("pieces that a GPU holds are those of the most useful lists, in as much memory as there is") {
    std::vector<int64_t> offsets{0};
    for (int64_t node = 0; node < 200; ++node) offsets.push_back(offsets.back() + 16);  // four bytes each: one piece
    const PackedOffsets packed = pack(offsets, 201);
    std::vector<float> visits(200, 1);
    visits[3] = visits[130] = visits[199] = 9;
    const HotRanking ranking(packed, visits, 10, 10, 4, ListCost::pieces(4));
    const auto chosen = [&](int64_t bytes) { return choose_pieces(ranking, packed, 4, bytes); };
    const int64_t find = 4 * 16;  // 200 pieces, 64 an entry
    CHECK(chosen(find + 2 * 128 + 64) == std::vector<uint64_t>{1u << 3, 0, 0, 1, 1u << 2, 1, 0, 2});
    CHECK(chosen(find + 3 * 128) == std::vector<uint64_t>{1u << 3, 0, 0, 1, 1u << 2, 1, 1u << 7, 2});
    CHECK(chosen(0) == std::vector<uint64_t>(8, 0));
}

TEST_CASE("the cache finds what was inserted and not yet replaced") {
    GranuleCache cache(64 * (16 + GranuleCache::kOverheadBytes), 16);
    CHECK(cache.capacity() == 64);
    std::byte out[16];
    for (int64_t granule = 0; granule < 1000; ++granule) {
        std::byte data[16];
        std::fill(std::begin(data), std::end(data), static_cast<std::byte>(granule));
        CHECK_FALSE(cache.find(granule, out));
        cache.insert(granule, data);
        REQUIRE(cache.find(granule, out));
        CHECK(out[15] == static_cast<std::byte>(granule));
    }
    int64_t found = 0;
    for (int64_t granule = 0; granule < 1000; ++granule) found += cache.find(granule, out);
    CHECK(found > 0);
    CHECK(found <= 64);
    GranuleCache none(0, 16);
    CHECK_FALSE(none.find(0, out));
}

TEST_CASE("threads that read at once get their values, with and without a cache, in sweeps of any size") {
    StoredValues stored("gids-positions-");
    for (const int64_t cache_bytes : {0, 1 << 14, 1 << 20, 16 << 20})  // the last one takes requests as large as these
        for (const int64_t group_bytes : {1 << 10, 16 << 20}) {
            PositionReader reader(*stored.values, stored.granules.get(),
                                  {ValueKind::kInt32, 16, cache_bytes, group_bytes}, stored.tail(),
                                  StoredValues::kCount, {});
            std::vector<std::thread> threads;
            std::atomic<int64_t> wrong{0};
            for (uint64_t seed = 0; seed < 4; ++seed)
                threads.emplace_back([&, seed] {
                    std::mt19937_64 generator(seed);
                    for (int repeat = 0; repeat < 3; ++repeat) {
                        std::vector<int64_t> positions(5000), values(5000);
                        for (auto& p : positions) p = static_cast<int64_t>(generator() % StoredValues::kCount);
                        positions[0] = StoredValues::kCount - 1;  // behind the last whole granule
                        reader.read(positions.data(), 5000, values.data());
                        for (size_t i = 0; i < values.size(); ++i) wrong += values[i] != 3 * positions[i];
                    }
                });
            for (auto& thread : threads) thread.join();
            CHECK(wrong == 0);
            CHECK(reader.stats().values == 4 * 3 * 5000);
            CHECK(reader.stats().sweeps <= reader.stats().requests);
            CHECK((reader.stats().granules > 0) == (cache_bytes == 16 << 20));
        }
}

TEST_CASE("a read that fails is an error for who asked, and the next one works") {
    StoredValues stored("gids-positions-fault-", 0);
    PositionReader reader(*stored.values, nullptr, {ValueKind::kInt32, 16, 0, 1 << 20}, stored.tail(),
                          StoredValues::kCount, {});
    const int64_t position = 5;
    int64_t value = 0;
    CHECK_THROWS_AS(reader.read(&position, 1, &value), StorageError);
    reader.read(&position, 1, &value);
    CHECK(value == 15);
}

TEST_CASE("an interrupt reaches the thread that waits, and others are still served") {
    StoredValues stored("gids-positions-interrupt-");
    std::atomic<bool> stop{false};
    storage::ReaderOptions options;
    options.engine.engine = "pread";
    options.engine.fault = storage::FaultOptions{.delay_us = 300'000};
    const auto slow = stored.open(StoredValues::kCount, 4, options);
    PositionReader reader(*slow, nullptr, {ValueKind::kInt32, 16, 0, 1 << 20}, stored.tail(), StoredValues::kCount,
                          [&] {
                              if (stop.exchange(false)) throw std::runtime_error("interrupted");
                          });
    const int64_t position = 5;
    int64_t value = 0;
    stop = true;
    CHECK_THROWS_AS(reader.read(&position, 1, &value), std::runtime_error);
    reader.read(&position, 1, &value);
    CHECK(value == 15);
    slow->close();
}
