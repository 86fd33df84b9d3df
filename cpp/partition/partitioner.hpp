// Balanced min-cut partitions of a graph that is only streamed: clusters first, then parts made of clusters.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "partition/lists.hpp"
#include "partition/sketch.hpp"
#include "partition/tally.hpp"
#include "thread_pool.hpp"

namespace gids {

// What may be in one part.
struct PartLimits {
    int64_t nodes, train;
};

// How much is in a group (cluster or part); both counts are looked up together, so they lie together.
struct Load {
    uint32_t nodes = 0, train = 0;
};

// Two levels. Nodes choose the cluster of most of their neighbours, and clusters the group of clusters they are tied to
// most, both within the limits of a part (label propagation over the sketch); groups are packed into parts; nodes then
// move between parts by Fennel's rule, over the sketch or over lists streamed again.
//
// Nodes are visited in chunks whose size follows from the number of nodes alone: a chunk's choices are made in parallel
// from the state before it, and carried out in order of nodes where they still fit. So the result does not depend on
// the number of threads. Memory: bytes of the sketch plus at most 25 for each node.
class Partitioner {
public:
    // train: one byte for each node, or null; limits as in PartLimits.
    Partitioner(int64_t num_nodes, int64_t num_parts, const uint8_t* train, PartLimits limits, int width,
                uint64_t seed);

    // The steps, in this order; each may be repeated where it says so.
    void add(const ListPiece& piece, ThreadPool& pool);        // once for every node that has in-edges
    void finish_sketch();                                      // once
    int64_t cluster_nodes(ThreadPool& pool);                   // repeatable; returns how many nodes moved
    int64_t merge_clusters(ThreadPool& pool);                  // repeatable; returns how many clusters moved
    void pack();                                               // once: from here on groups are parts
    int64_t refine(ThreadPool& pool);                          // repeatable, over the sketch
    int64_t refine(const ListPiece& piece, ThreadPool& pool);  // repeatable, over streamed lists

    int64_t num_groups() const;
    const std::vector<uint32_t>& groups() const { return group_; }
    int64_t sketch_bytes() const { return sketch_ ? sketch_->bytes() : 0; }
    void drop_sketch() { sketch_.reset(); }

private:
    uint32_t train_of(int64_t node) const { return train_.empty() ? 0 : train_[static_cast<size_t>(node)]; }
    template <class Propose, class Commit>
    int64_t in_chunks(int64_t begin, int64_t end, ThreadPool& pool, const Propose& propose, const Commit& commit);
    template <class Gather>
    uint32_t best_part(int64_t node, const Gather& gather) const;
    template <class Gather>
    int64_t refine_nodes(int64_t begin, int64_t end, ThreadPool& pool, const Gather& gather);
    void gather_sketch(int64_t node, Tally& tally) const;
    void number_groups();
    bool fits(const Load& group, const Load& more) const {
        // A group without training nodes to add may already have too many of them.
        return group.nodes + more.nodes <= limits_.nodes &&
               (more.train == 0 || group.train + more.train <= limits_.train);
    }
    // Moves a load from its group to another, where it fits; returns whether it does.
    bool move(uint32_t& group, uint32_t to, const Load& load);

    const int64_t num_nodes_, num_parts_;
    const PartLimits limits_;
    const uint64_t seed_;
    const int64_t chunk_;
    std::vector<uint8_t> train_;  // empty: none
    std::optional<Sketch> sketch_;
    std::vector<uint32_t> group_;  // of every node: a cluster before pack(), a part after it
    std::vector<Load> loads_;      // of every group
    std::vector<uint32_t> wanted_;
    bool packed_ = false;
};

// How many of a piece's edges lead from one part to another; parts has an entry for every node.
int64_t count_cut(const int32_t* parts, const ListPiece& piece, ThreadPool& pool);

}  // namespace gids
