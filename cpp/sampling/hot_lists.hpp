// Neighbour lists that an on-disk topology keeps in memory. Finding one costs a bit per node of the graph, not a
// pointer.
#pragma once

#include <bit>
#include <cstdint>
#include <span>
#include <vector>

#include "sampling/buffer.hpp"

namespace gids {

class HotLists {
public:
    // nodes: ascending, distinct. indptr: offsets of the whole graph, num_nodes + 1 of them.
    HotLists(std::span<const int64_t> nodes, std::span<const int64_t> indptr, bool wide);

    // Takes what belongs to the hot nodes out of the edge positions [begin, begin + values.size()).
    void fill(int64_t begin, std::span<const int32_t> values) { fill_any(begin, values); }
    void fill(int64_t begin, std::span<const int64_t> values) { fill_any(begin, values); }

    bool contains(int64_t node) const { return words_[node >> 6] >> (node & 63) & 1; }

    // Index of the first neighbour of a node that contains() knows.
    int64_t start(int64_t node) const {
        const uint64_t below = words_[node >> 6] & ((uint64_t{1} << (node & 63)) - 1);
        return starts_[ranks_[node >> 6] + static_cast<uint32_t>(std::popcount(below))];
    }
    int64_t value(int64_t at) const { return wide_ ? wide_values_[at] : narrow_values_[at]; }
    size_t bytes() const {
        return words_.capacity_bytes() + ranks_.capacity_bytes() + starts_.size() * 8 +
               narrow_values_.capacity_bytes() + wide_values_.capacity_bytes();
    }
    int64_t num_lists() const { return static_cast<int64_t>(starts_.size()) - 1; }

private:
    template <class Value>
    void fill_any(int64_t begin, std::span<const Value> values);

    bool wide_;
    Array<uint64_t> words_;        // one bit per node
    Array<uint32_t> ranks_;        // hot nodes before each word
    std::vector<int64_t> starts_;  // by rank; one more at the end
    std::vector<int64_t> firsts_;  // by rank: edge position of the list's first entry
    Array<int32_t> narrow_values_;
    Array<int64_t> wide_values_;
};

}  // namespace gids
