// Subgraphs from memory, from blocks and from slices are the same; names and lines are read as written.
#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "errors.hpp"
#include "kg/names.hpp"
#include "kg/parse.hpp"
#include "kg/slicer.hpp"
#include "kg/subgraph.hpp"

using namespace gids;
using namespace gids::kg;

namespace {

// 300 entities in a ring with chords, and one hub whose atom is larger than a slice.
struct Ring {
    std::vector<int64_t> indptr{0};
    std::vector<Triple> triples;

    Ring() {
        constexpr int32_t kEntities = 300;
        for (int32_t e = 0; e < kEntities; ++e) {
            for (const int32_t step : {1, 7, 50}) triples.push_back({step % 5, (e + step) % kEntities});
            if (e == 8)
                for (int32_t t = 0; t < 150; ++t) triples.push_back({4, t});
            indptr.push_back(static_cast<int64_t>(triples.size()));
        }
        while (triples.size() % kBlockTriples != 0) triples.push_back({-1, -1});
    }

    // Reads the gather's blocks as a disk would.
    std::vector<Triple> read(const AtomGather& gather) const {
        std::vector<Triple> data;
        for (const int64_t block : gather.blocks())
            data.insert(data.end(), triples.begin() + block * kBlockTriples,
                        triples.begin() + (block + 1) * kBlockTriples);
        return data;
    }
};

bool same(const Subgraphs& a, const Subgraphs& b) {
    const auto equal = [](const auto& x, const auto& y) { return std::equal(x.begin(), x.end(), y.begin(), y.end()); };
    return equal(a.node_ptr, b.node_ptr) && equal(a.edge_ptr, b.edge_ptr) && equal(a.entities, b.entities) &&
           equal(a.distance, b.distance) && equal(a.heads, b.heads) && equal(a.relations, b.relations) &&
           equal(a.tails, b.tails) && equal(a.wanted, b.wanted);
}

}  // namespace

TEST_CASE("memory, blocks and slices give the same subgraphs") {
    const Ring ring;
    const auto entities = static_cast<int64_t>(ring.indptr.size()) - 1;
    ThreadPool pool(3);
    Extractor extractor(entities, 3);
    const std::vector<int32_t> roots{1, 8, 7, 250, 1};
    const QueryBatch queries{roots, 1, 3, {}, 0, roots};
    const Subgraphs expected = extractor.from_memory(queries, ring.indptr.data(), ring.triples.data(), &pool);
    for (int64_t q = 0; q < expected.wanted.size(); ++q) CHECK(expected.wanted[q] == expected.node_ptr[q]);

    AtomGather gather(entities, ring.indptr.data(), nullptr);
    gather.start(roots);
    std::vector<std::vector<Triple>> held;
    for (int hop = 0; hop < 3; ++hop) {
        held.push_back(ring.read(gather));
        gather.take(held.back().data());
        if (hop < 2) gather.advance();
    }
    CHECK(same(expected, extractor.from_gather(queries, gather, &pool)));

    constexpr int64_t kWords = 128;  // 62 triples
    Slicer slicer(entities, ring.indptr.data(), {kWords, 0.75, 1, true});
    std::vector<int64_t> ptr, triples;
    std::vector<int32_t> slices;
    slicer.slice_all(extractor.from_gather({roots, 1, 2, {}, 0, {}}, gather, &pool), ptr, slices, triples);
    std::vector<int32_t> rows(static_cast<size_t>(slicer.num_slices() * kWords));
    for (int64_t s = 0; s < slicer.num_slices(); ++s) slicer.render(s, gather, rows.data() + s * kWords);
    const SliceBatch batch{rows, kWords, ptr, slices, triples};
    CHECK(same(expected, extractor.from_slices(queries, batch, &pool)));
    CHECK(slicer.figures().matched > 0);  // the last query is the first again

    rows[0] = 10000;
    CHECK_THROWS_AS(extractor.from_slices(queries, batch, &pool), DatasetError);
    CHECK(same(expected, extractor.from_memory(queries, ring.indptr.data(), ring.triples.data(), &pool)));
}

TEST_CASE("names are numbered by first occurrence") {
    NameIndex names;
    for (int i = 0; i < 5000; ++i) CHECK(names.find_or_add("n" + std::to_string(i)) == i);
    for (int i = 0; i < 5000; i += 7) CHECK(names.find_or_add("n" + std::to_string(i)) == i);
    CHECK(names.find("n4999") == 4999);
    CHECK(names.find("none") == -1);
    CHECK(names.name(names.order()[0]) == "n0");
    CHECK(names.name(names.order()[2]) == "n10");
}

TEST_CASE("lines may end in any block") {
    const std::string text = "a\tr\tb\nb\tr\tc\r\n\nc\ts\ta";
    for (size_t cut = 1; cut < text.size(); ++cut) {
        NameIndex entities, relations;
        TripleParser parser("x", {}, entities, relations);
        std::vector<int32_t> out;
        parser.feed(std::string_view(text).substr(0, cut), out);
        parser.feed(std::string_view(text).substr(cut), out);
        parser.finish(out);
        CHECK(out == std::vector<int32_t>{0, 0, 1, 1, 0, 2, 2, 1, 0});
    }
}
