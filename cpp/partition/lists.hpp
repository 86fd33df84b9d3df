// In-edges of consecutive nodes as they come from disk, one list of sources per relation; nothing is copied.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "errors.hpp"

namespace gids {

// Nodes of all types are numbered in one row, type after type: first_source is where the source type begins there.
struct RelationLists {
    const int64_t* indptr;  // one more than the nodes of the piece; only differences count, so any part of a larger one
    // Sources of the piece's edges, within their type: exactly one of the two is set.
    const int32_t* sources32 = nullptr;
    const int64_t* sources64 = nullptr;
    int64_t first_source = 0;
    int64_t num_sources = 0;  // nodes of the source type

    int64_t begin(int64_t i) const { return indptr[i] - indptr[0]; }
    int64_t size(int64_t i) const { return indptr[i + 1] - indptr[i]; }

    uint32_t source(int64_t position) const {
        const int64_t id = sources32 != nullptr ? sources32[position] : sources64[position];
        if (id < 0 || id >= num_sources)
            throw DatasetError("source ids must be in [0, " + std::to_string(num_sources) + ") (got " +
                               std::to_string(id) + ")");
        return static_cast<uint32_t>(first_source + id);
    }
};

// Nodes first..first + count and all their in-edges, relation after relation.
struct ListPiece {
    int64_t first = 0, count = 0;
    std::vector<RelationLists> relations;

    int64_t degree(int64_t i) const {
        int64_t sum = 0;
        for (const RelationLists& lists : relations) sum += lists.size(i);
        return sum;
    }

    // Calls body(source) for every in-edge of the i-th node.
    template <class Body>
    void for_sources(int64_t i, const Body& body) const {
        for (const RelationLists& lists : relations) {
            const int64_t begin = lists.begin(i), end = begin + lists.size(i);
            for (int64_t position = begin; position < end; ++position) body(lists.source(position));
        }
    }
};

}  // namespace gids
