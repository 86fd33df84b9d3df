// Neighbour lists that an on-disk topology keeps in memory, each neighbour in as few bits as the largest needs. Finding
// a list costs a bit and a half per node of the graph, not a pointer.
#pragma once

#include <bit>
#include <cstdint>
#include <span>
#include <vector>

#include "sampling/bits.hpp"
#include "sampling/buffer.hpp"
#include "sampling/offsets.hpp"

namespace gids {

class HotLists {
public:
    // What one list of a node costs beside its neighbours, about.
    static constexpr double kListBytes = 2.0;

    // words: a bit per node of `offsets`, which must outlive the lists. num_sources: neighbours are smaller.
    HotLists(Array<uint64_t> words, const PackedOffsets& offsets, int64_t num_sources);

    // Takes what belongs to the hot nodes out of the edge positions [begin, begin + values.size()), which follow on
    // those of the last call. Throws DatasetError for a neighbour that is no node.
    void fill(std::span<const int32_t> values) { fill_any(values); }
    void fill(std::span<const int64_t> values) { fill_any(values); }

    bool contains(int64_t node) const { return words_[node >> 6] >> (node & 63) & 1; }
    void prefetch(int64_t node) const {
        __builtin_prefetch(&words_[node >> 6]);
        __builtin_prefetch(&ranks_[node >> 6]);
    }

    // Number of a node that contains() knows among the hot ones.
    int64_t rank(int64_t node) const {
        const uint64_t below = words_[node >> 6] & ((uint64_t{1} << (node & 63)) - 1);
        return int64_t{ranks_[node >> 6]} + std::popcount(below);
    }
    void prefetch_start(int64_t rank) const { starts_.prefetch(rank); }
    // Index of the first neighbour of the hot node with that number.
    int64_t start_of_rank(int64_t rank) const { return starts_.at(rank); }
    int64_t value(int64_t at) const {
        return static_cast<int64_t>(
            load_bits(values_.data(), static_cast<uint64_t>(at) * static_cast<uint64_t>(width_), width_));
    }
    void prefetch_value(int64_t at) const {
        __builtin_prefetch(values_.data() + (static_cast<uint64_t>(at) * static_cast<uint64_t>(width_) >> 3));
    }
    size_t bytes() const {
        return words_.capacity_bytes() + ranks_.capacity_bytes() + starts_.bytes() + values_.capacity_bytes();
    }
    int64_t num_lists() const { return starts_.num_nodes(); }
    int64_t num_edges() const { return starts_.num_edges(); }

private:
    template <class Value>
    void fill_any(std::span<const Value> values);

    const PackedOffsets& offsets_;
    const int64_t num_sources_;
    const int width_;
    Array<uint64_t> words_;  // one bit per node
    Array<uint32_t> ranks_;  // hot nodes before each word
    PackedOffsets starts_;   // by rank
    Array<uint8_t> values_;
    // Where filling stands: the next edge position, the hot node whose list it is in or before, and that node's rank.
    int64_t filled_ = 0, fill_node_ = 0, fill_at_ = 0;
};

// What lists in memory would save, from the most useful on: the bytes of all so far, and the reads of a batch that they
// save; the last entry is that of all lists that are ever read.
struct ListWorth {
    std::vector<double> bytes, reads;
};

// What a neighbour and a list cost in memory, and how much of a list one read of where they come from brings.
struct ListCost {
    double value_bytes, list_bytes, read_bytes, find_bytes_per_node, fixed_bytes;

    // As HotLists keeps them, of what is on disk.
    static ListCost packed(int64_t num_sources);
    // As pieces in a GPU's memory, of what it reads over the link in sectors.
    static ListCost pieces(int item_bytes);
};

// What every list costs and saves. visits: how often each node is reached, in any unit; visits_per_batch: by one batch
// in all, which says from where on a list is read once per batch however popular it is. item_bytes: of a neighbour
// where it is read from.
class HotRanking {
public:
    HotRanking(const PackedOffsets& offsets, std::span<const float> visits, double visits_per_batch, int64_t fanout,
               int item_bytes, const ListCost& cost);

    ListWorth worth() const;
    // The nodes whose lists save the most reads per byte of memory, one bit each, within a budget that includes those
    // bits.
    Array<uint64_t> choose(int64_t budget_bytes) const;

private:
    struct List {
        double bytes, reads;
    };
    List list(int64_t node) const;
    int bucket(const List& list) const;

    const PackedOffsets& offsets_;
    const std::span<const float> visits_;
    const int64_t fanout_;
    const int item_bytes_;
    const ListCost cost_;
    double per_visit_ = 0;  // visits of a batch for each visit counted
};

// Which pieces of 64 bytes of neighbours a GPU holds, for kernels/neighbors.cuh: those of the chosen lists, from the
// first on, as many as there is memory for; entries of two words, one for 64 pieces.
std::vector<uint64_t> choose_pieces(const HotRanking& ranking, const PackedOffsets& offsets, int item_bytes,
                                    int64_t budget_bytes);

}  // namespace gids
