// Complete L-hop subgraphs of queries, numbered and ordered by breadth first search: one order, wherever atoms come
// from.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "kg/atoms.hpp"
#include "kg/slice_row.hpp"
#include "sampling/buffer.hpp"
#include "thread_pool.hpp"

namespace gids::kg {

// What is extracted for a batch of queries.
struct QueryBatch {
    std::span<const int32_t> roots;  // roots_per_query of each query
    int64_t roots_per_query = 1;
    int hops = 3;
    std::span<const int32_t> removed;  // (head, relation, reverse relation or -1, tail) of each query; empty: nothing
    int64_t max_triples = 0;           // of the batch; 0: no limit
    std::span<const int32_t> wanted;   // an entity of each query whose node is asked for; empty: none

    int64_t size() const { return static_cast<int64_t>(roots.size()) / roots_per_query; }
    std::span<const int32_t> roots_of(int64_t query) const {
        return roots.subspan(static_cast<size_t>(query * roots_per_query), static_cast<size_t>(roots_per_query));
    }
};

// Subgraphs of a batch, one after the other. Nodes of query i are node_ptr[i]..node_ptr[i + 1], roots first, then by
// distance and first occurrence; its triples are edge_ptr[i]..edge_ptr[i + 1], in the order of their heads, and of the
// atom.
struct Subgraphs {
    Array<int64_t> node_ptr, edge_ptr;
    Array<int32_t> entities;
    Array<uint8_t> distance;
    Array<int32_t> heads, relations, tails;  // heads and tails are numbers of nodes in the batch
    Array<int64_t> wanted;                   // node of each query's wanted entity, -1 where it is not in the subgraph
};

// Slices of a batch: rows of slice_words words, and of each root of each query the rows that make up its subgraph.
struct SliceBatch {
    std::span<const int32_t> rows;
    int64_t slice_words = 0;
    std::span<const int64_t> ptr;      // roots + 1
    std::span<const int32_t> slices;   // row numbers
    std::span<const int64_t> triples;  // of each root's subgraph, to check that nothing is missing
};

// Holds, for every worker, 8 bytes an entity. Calls of one Extractor run one after the other.
class Extractor {
public:
    Extractor(int64_t num_entities, int workers);
    ~Extractor();
    Extractor(const Extractor&) = delete;
    Extractor& operator=(const Extractor&) = delete;

    Subgraphs from_memory(const QueryBatch& queries, const int64_t* indptr, const Triple* triples, ThreadPool* pool);
    Subgraphs from_gather(const QueryBatch& queries, const AtomGather& atoms, ThreadPool* pool);
    Subgraphs from_slices(const QueryBatch& queries, const SliceBatch& slices, ThreadPool* pool);
    // Triples as (head, relation, tail) of entities, stored whole for every query in the order of an earlier
    // extraction: those of query i are ranges[2 * i]..ranges[2 * i + 1].
    Subgraphs from_triples(const QueryBatch& queries, std::span<const int32_t> triples, std::span<const int64_t> ranges,
                           ThreadPool* pool);

    int64_t num_entities() const { return num_entities_; }

private:
    struct Part;
    struct Worker;
    template <class Body>
    Subgraphs run(const QueryBatch& queries, ThreadPool* pool, const Body& body);
    Subgraphs join(const QueryBatch& queries, ThreadPool* pool);

    const int64_t num_entities_;
    std::mutex mutex_;
    std::vector<std::unique_ptr<Worker>> workers_;  // guarded by mutex_, as is everything below
    std::vector<Part> parts_;                       // by query; kept for their memory
};

}  // namespace gids::kg
