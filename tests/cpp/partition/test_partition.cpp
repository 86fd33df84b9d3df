// Checks the sketch that one pass leaves, and partitions: literal cuts, limits that hold, the same parts on any
// threads.
#include <doctest/doctest.h>

#include <algorithm>
#include <set>
#include <vector>

#include "partition/partitioner.hpp"

using namespace gids;

namespace {

struct Graph {
    std::vector<int64_t> indptr{0};
    std::vector<int32_t> sources;
    int64_t nodes() const { return static_cast<int64_t>(indptr.size()) - 1; }
    ListPiece piece(int64_t first, int64_t count) const {
        ListPiece piece{first, count, {}};
        RelationLists lists{};
        lists.indptr = indptr.data() + first;
        lists.sources32 = sources.data() + indptr[static_cast<size_t>(first)];
        lists.num_sources = nodes();
        piece.relations.push_back(lists);
        return piece;
    }
};

// Cliques of `size` nodes in a ring: node 0 of each has one in-edge from the clique before it. Ids are dealt out in
// turn, so that neighbours are far apart.
Graph cliques(int64_t count, int64_t size) {
    Graph graph;
    for (int64_t node = 0; node < count * size; ++node) {
        const int64_t clique = node % count;
        for (int64_t other = 0; other < size; ++other)
            if (other * count + clique != node) graph.sources.push_back(static_cast<int32_t>(other * count + clique));
        if (node < count) graph.sources.push_back(static_cast<int32_t>((clique + count - 1) % count));
        graph.indptr.push_back(static_cast<int64_t>(graph.sources.size()));
    }
    return graph;
}

std::vector<uint32_t> parts_of(const Graph& graph, int64_t num_parts, PartLimits limits, int threads,
                               const std::vector<uint8_t>* train = nullptr, int64_t step = 1000) {
    ThreadPool pool(threads);
    Partitioner partitioner(graph.nodes(), num_parts, train != nullptr ? train->data() : nullptr, limits, 12, 7);
    for (int64_t first = 0; first < graph.nodes(); first += step)
        partitioner.add(graph.piece(first, std::min(step, graph.nodes() - first)), pool);
    partitioner.finish_sketch();
    for (int i = 0; i < 3; ++i) partitioner.cluster_nodes(pool);
    for (int i = 0; i < 2; ++i) partitioner.merge_clusters(pool);
    partitioner.pack();
    for (int i = 0; i < 2; ++i) partitioner.refine(pool);
    for (int64_t first = 0; first < graph.nodes(); first += step)
        partitioner.refine(graph.piece(first, std::min(step, graph.nodes() - first)), pool);
    return partitioner.groups();
}

}  // namespace

TEST_CASE("a sketch keeps short lists whole, long ones evenly, no loops, and fills up with out-edges") {
    // Node 0 has in-edges from 0 (a loop), 1 and 2; node 1 has 40 in-edges from 2..41; the others have none.
    Graph graph;
    graph.sources = {0, 1, 2};
    graph.indptr = {0, 3};
    for (int32_t source = 2; source < 42; ++source) graph.sources.push_back(source);
    for (int node = 1; node < 42; ++node) graph.indptr.push_back(43);
    ThreadPool pool(1);
    Sketch sketch(42, 4, 1);
    sketch.add(graph.piece(0, 42), pool);
    const auto list = [&](int64_t node) {
        const auto span = sketch.neighbors(node);
        return std::vector<uint32_t>(span.begin(), span.end());
    };
    CHECK(list(0) == std::vector<uint32_t>{1, 2});
    const std::vector<uint32_t> kept = list(1);
    REQUIRE(kept.size() == 4);
    for (size_t k = 0; k < 4; ++k) CHECK((kept[k] - 2) / 10 == k);  // one of each quarter
    CHECK(list(2).empty());
    sketch.add_reverse();
    CHECK(list(0) == std::vector<uint32_t>{1, 2});  // sends to itself only
    CHECK(list(1) == kept);                         // full
    CHECK(list(2)[0] == 0);
    for (const uint32_t source : kept)
        if (source != 2) CHECK(list(source) == std::vector<uint32_t>{1});
}

TEST_CASE("cliques in a ring become parts, and only the ring is cut") {
    const Graph graph = cliques(8, 20);
    const std::vector<uint32_t> parts = parts_of(graph, 8, {20, 0}, 2);
    std::set<uint32_t> seen;
    for (int64_t clique = 0; clique < 8; ++clique) {
        for (int64_t member = 0; member < 20; ++member)
            CHECK(parts[static_cast<size_t>(member * 8 + clique)] == parts[static_cast<size_t>(clique)]);
        seen.insert(parts[static_cast<size_t>(clique)]);
    }
    CHECK(seen.size() == 8);
    ThreadPool pool(2);
    const std::vector<int32_t> as_signed(parts.begin(), parts.end());
    CHECK(count_cut(as_signed.data(), graph.piece(0, graph.nodes()), pool) == 8);
}

TEST_CASE("limits on nodes and on training nodes hold, also where clusters must be broken up") {
    const Graph graph = cliques(30, 41);
    std::vector<uint8_t> train(static_cast<size_t>(graph.nodes()));
    for (size_t node = 0; node < train.size(); ++node) train[node] = node % 30 < 10;  // whole cliques of them
    const PartLimits limits{45, 15};                                                  // of 41 and 13.7 on average
    const std::vector<uint32_t> parts = parts_of(graph, 30, limits, 2, &train);
    std::vector<int64_t> nodes(30), training(30);
    for (size_t node = 0; node < parts.size(); ++node) {
        REQUIRE(parts[node] < 30);
        ++nodes[parts[node]];
        training[parts[node]] += train[node];
    }
    CHECK(*std::max_element(nodes.begin(), nodes.end()) <= 45);
    CHECK(*std::max_element(training.begin(), training.end()) <= 15);
}

TEST_CASE("the same parts on any number of threads and for pieces of any size") {
    const Graph graph = cliques(700, 9);
    const std::vector<uint32_t> expected = parts_of(graph, 350, {19, 0}, 1);
    CHECK(parts_of(graph, 350, {19, 0}, 2) == expected);
    CHECK(parts_of(graph, 350, {19, 0}, 5) == expected);
}

TEST_CASE("rules are told by name, rule and value") {
    CHECK_THROWS_WITH_AS(Partitioner(10, 11, nullptr, {1, 0}, 4, 0), "parts must be in [1, 10] (got 11)", ConfigError);
    CHECK_THROWS_WITH_AS(Partitioner(10, 3, nullptr, {3, 0}, 4, 0), "nodes of a part must be at least 4 (got 3)",
                         ConfigError);
    CHECK_THROWS_WITH_AS(Partitioner(10, 3, nullptr, {4, 0}, 33, 0), "width must be in [1, 32] (got 33)", ConfigError);
    Graph graph = cliques(2, 3);
    graph.sources[4] = 6;
    ThreadPool pool(2);
    Partitioner partitioner(6, 2, nullptr, {3, 0}, 4, 0);
    CHECK_THROWS_WITH_AS(partitioner.add(graph.piece(0, 6), pool), "source ids must be in [0, 6) (got 6)",
                         DatasetError);
}
