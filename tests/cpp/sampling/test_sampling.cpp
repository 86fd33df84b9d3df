// Numbering against the bulk passes of kernels/unique.cuh, the ordered pipeline, and whole samples in parallel;
// the sanitizer builds look for races and bad accesses in all of them.

#include <algorithm>
#include <cmath>
#include <iterator>
#include <random>
#include <stdexcept>
#include <thread>
#include <unordered_map>

#include "logarithm.cuh"
#include "sampling/neighbor.hpp"
#include "sampling/pipeline.hpp"
#include "unique.cuh"

using namespace gids;

namespace {

std::vector<int64_t> random_ids(size_t count, int64_t below, uint64_t seed) {
    std::mt19937_64 generator(seed);
    std::vector<int64_t> ids(count);
    for (auto& id : ids) id = static_cast<int64_t>(generator() % static_cast<uint64_t>(below));
    return ids;
}

// The five passes of kernels/unique.cuh on a thread pool.
std::vector<int64_t> number_in_passes(const std::vector<int64_t>& ids, ThreadPool& pool) {
    std::vector<uint64_t> nodes(4096), positions(4096), slots(ids.size());
    const UniqueTable table{nodes.data(), positions.data(), 12};
    for (uint64_t slot = 0; slot < table.capacity(); ++slot) unique_clear(table, slot);
    const auto each = [&](auto body) {
        pool.parallel_for(static_cast<int64_t>(ids.size()), 64, [&](int64_t begin, int64_t end) {
            for (auto i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i) body(i);
        });
    };
    each([&](size_t i) { slots[i] = unique_insert(table, static_cast<uint64_t>(ids[i]), i); });
    std::vector<uint64_t> rank(ids.size() + 1, 0);
    std::vector<uint8_t> first(ids.size());
    each([&](size_t i) { first[i] = unique_is_first(table, slots[i], i); });
    for (size_t i = 0; i < ids.size(); ++i) rank[i + 1] = rank[i] + first[i];
    each([&](size_t i) {
        if (first[i]) unique_assign(table, slots[i], rank[i]);
    });
    std::vector<int64_t> result(ids.size());
    each([&](size_t i) { result[i] = static_cast<int64_t>(unique_id(table, slots[i])); });
    CHECK(unique_find(table, 1u << 30) == table.capacity());
    return result;
}

struct Graph {
    std::vector<int64_t> indptr{0};
    std::vector<int32_t> indices;
    Topology topology;

    Graph(int64_t nodes, int64_t largest_degree) {
        for (const int64_t degree : random_ids(static_cast<size_t>(nodes), largest_degree + 1, 1))
            indptr.push_back(indptr.back() + degree);
        for (const int64_t id : random_ids(static_cast<size_t>(indptr.back()), nodes, 2))
            indices.push_back(static_cast<int32_t>(id));
        topology.node_types = {"_N"};
        topology.num_nodes = {nodes};
        Relation relation;
        relation.name = "_E";
        relation.indptr = indptr.data();
        relation.indices32 = indices.data();
        topology.relations.push_back(std::move(relation));
    }
};

std::vector<int64_t> flatten(const Sampled& sample) {
    std::vector<int64_t> all(sample.nodes[0].begin(), sample.nodes[0].end());
    for (const auto& block : sample.blocks)
        for (const auto* array : {&block.parts[0].indptr, &block.parts[0].src})
            all.insert(all.end(), array->begin(), array->end());
    return all;
}

}  // namespace

TEST_CASE("a node set numbers as the bulk passes do") {
    ThreadPool pool(4);
    for (const int64_t below : {1, 50, 2000}) {
        const auto ids = random_ids(3000, below, static_cast<uint64_t>(below));
        TablePool tables;
        for (const int64_t num_nodes : {below, int64_t{1} << 40}) {  // narrow and wide slots
            NodeSet set(tables, num_nodes);
            auto numbers = ids;
            set.add(numbers.data(), 1000);
            set.add(numbers.data() + 1000, 2000);
            CHECK(numbers == number_in_passes(ids, pool));
            auto found = ids;
            found.push_back(below + 5);
            set.find(found.data(), static_cast<int64_t>(found.size()));
            CHECK(found.back() == -1);
            found.pop_back();
            CHECK(found == numbers);
        }
    }
}

TEST_CASE("tables forget earlier samples, grow, and are shared by samples that run at once") {
    TablePool tables;
    for (int round = 0; round < 50; ++round) {
        NodeSet set(tables, 1 << 20);
        auto ids = random_ids(round % 2 ? 10 : 5000, 1 << 20, static_cast<uint64_t>(round));
        std::vector<int64_t> expected;
        std::vector<int64_t> order;
        std::unordered_map<int64_t, int64_t> number;
        for (const int64_t id : ids) {
            const auto [at, is_new] = number.try_emplace(id, std::ssize(order));
            expected.push_back(at->second);
            if (is_new) order.push_back(id);
        }
        set.add(ids.data(), static_cast<int64_t>(ids.size()));
        CHECK(ids == expected);
        const auto nodes = set.take_nodes();
        CHECK(std::equal(nodes.begin(), nodes.end(), order.begin(), order.end()));
    }
    CHECK(tables.bytes() > 0);
}

TEST_CASE("pieces are consumed in order, each once, and errors of either side come out") {
    for (const int threads : {1, 2, 7}) {
        ThreadPool pool(threads);
        std::vector<int64_t> made(200), consumed;
        produce_in_parallel_consume_in_order(
            &pool, 200, [&](int64_t i) { made[static_cast<size_t>(i)] = i * i; },
            [&](int64_t i) { consumed.push_back(made[static_cast<size_t>(i)]); });
        for (size_t i = 0; i < 200; ++i) CHECK(consumed.at(i) == static_cast<int64_t>(i * i));
        const auto fail = [](int64_t i) {
            if (i == 37) throw std::runtime_error("37");
        };
        const auto nothing = [](int64_t) {};
        CHECK_THROWS_AS(produce_in_parallel_consume_in_order(&pool, 200, fail, nothing), std::runtime_error);
        CHECK_THROWS_AS(produce_in_parallel_consume_in_order(&pool, 200, nothing, fail), std::runtime_error);
    }
}

TEST_CASE("samples do not depend on threads, nor on other samples that run at once") {
    Graph graph(3000, 40);
    const NeighborOptions options{{{10}, {10}, {5}}};
    const auto seeds = random_ids(200, 3000, 3);
    const auto sample = [&](uint64_t batch, ThreadPool* pool) {
        return flatten(sample_neighbors(graph.topology, options, {{1, 2, batch}, {std::span(seeds)}}, pool));
    };
    std::vector<std::vector<int64_t>> alone;
    for (uint64_t batch = 0; batch < 4; ++batch) alone.push_back(sample(batch, nullptr));
    ThreadPool pool(3);
    std::vector<std::thread> threads;
    std::vector<int> same(4, 0);
    for (uint64_t batch = 0; batch < 4; ++batch)
        threads.emplace_back([&, batch] {
            for (int repeat = 0; repeat < 3; ++repeat) same[batch] += sample(batch, &pool) == alone[batch];
        });
    for (auto& thread : threads) thread.join();
    for (const int count : same) CHECK(count == 3);
}

TEST_CASE("the logarithm is the logarithm") {
    for (const int64_t id : random_ids(10000, INT64_MAX, 5)) {
        const uint64_t shifted = static_cast<uint64_t>(id) << 1 >> (id % 60);
        const double expected = -std::log(static_cast<double>(shifted | 1) * 0x1p-64);
        CHECK(exponential(shifted) == doctest::Approx(expected).epsilon(1e-13));
    }
    CHECK(exponential(0) == doctest::Approx(64 * std::log(2.0)));
    CHECK(exponential(~uint64_t{0}) >= 0.0);
}
