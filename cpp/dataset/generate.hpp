// Synthetic graphs as pure functions of (seed, node): any part can be made again, in any order, by any thread.
#pragma once

#include <cstdint>

#include "dataset/permutation.hpp"
#include "thread_pool.hpp"

namespace gids {

// Half-open range of node ids.
struct NodeRange {
    int64_t begin, end;
    int64_t size() const { return end - begin; }
};

// Communities of equal size with popular and unpopular members. Node `v` is member `rank` of its community, rank 0
// being the most popular; a keyed permutation scatters members over all ids, so that ids tell nothing.
class Communities {
public:
    // skew >= 1: a source is drawn with density rank^-(1 - 1/skew); 1 is uniform. homophily: share of in-edges whose
    // source is drawn from the node's own community instead of from the whole graph.
    Communities(int64_t num_nodes, int64_t num_classes, uint64_t seed, double degree, double homophily, int skew);

    void labels(NodeRange nodes, int64_t* out, ThreadPool& pool) const;
    void degrees(NodeRange nodes, int64_t* out, ThreadPool& pool) const;
    // offsets[i]..offsets[i + 1] is where the in-edges of node begin + i go in `sources`.
    void sources(NodeRange nodes, const int64_t* offsets, int64_t* sources, ThreadPool& pool) const;

private:
    struct Member {
        uint64_t community, rank;
    };
    uint64_t first_of(uint64_t community) const;
    uint64_t size_of(uint64_t community) const { return first_of(community + 1) - first_of(community); }
    Member member(int64_t node) const;

    uint64_t num_nodes_, num_classes_, seed_;
    double degree_, homophily_;
    int skew_;
    Permutation permutation_;
};

// Many small blocks with most edges inside, and classes that are independent of them: a graph that has locality, and a
// task that the blocks do not give away. Classes take turns over the ranks of a block, rank 0 being the most popular.
class Blocks {
public:
    // first: where each block begins among the places, and num_nodes at the end; strictly ascending, kept alive by the
    // caller. inside: share of in-edges whose source is drawn from the node's own block, not from the whole graph.
    // homophily: share of in-edges whose source is drawn from the node's own class, within whichever block was drawn.
    Blocks(const int64_t* first, int64_t num_blocks, int64_t num_classes, uint64_t seed, double degree, double inside,
           double homophily, int skew);

    void labels(NodeRange nodes, int64_t* out, ThreadPool& pool) const;
    void blocks(NodeRange nodes, int64_t* out, ThreadPool& pool) const;
    void degrees(NodeRange nodes, int64_t* out, ThreadPool& pool) const;
    void sources(NodeRange nodes, const int64_t* offsets, int64_t* sources, ThreadPool& pool) const;

private:
    struct Member {
        uint64_t block, rank;
    };
    uint64_t block_of(uint64_t place) const;
    uint64_t size_of(uint64_t block) const { return static_cast<uint64_t>(first_[block + 1] - first_[block]); }
    Member member(int64_t node) const;
    // The block's number turns the classes, so that no class has the most popular members everywhere.
    uint64_t label_of(Member member) const { return (member.rank + member.block) % num_classes_; }

    const int64_t* first_;
    uint64_t num_blocks_, num_nodes_, num_classes_, seed_;
    double degree_, inside_, homophily_;
    int skew_;
    Permutation permutation_;
};

// R-MAT, made by destination: given how many edges end in every node, each source bit depends only on the
// destination's bit of that level, so edges come out in CSC order and nothing is sorted.
class Rmat {
public:
    // a, b, c, d: chance of (source bit, destination bit) = (0,0), (0,1), (1,0), (1,1) at every level.
    Rmat(int64_t num_nodes, uint64_t seed, double a, double b, double c, double d, bool scatter);

    // in_degrees is indexed by the node's place in the recursion; out[i] belongs to id begin + i.
    void degrees(NodeRange nodes, const uint32_t* in_degrees, int64_t* out, ThreadPool& pool) const;
    void sources(NodeRange nodes, const int64_t* offsets, int64_t* sources, ThreadPool& pool) const;

private:
    uint64_t place_of(int64_t node) const { return scatter_ ? permutation_.inverse(node) : node; }

    uint64_t num_nodes_, seed_;
    uint32_t one_given_zero_, one_given_one_, one_;  // chance of source bit 1, in units of 2^-32
    bool scatter_;
    Permutation permutation_;
};

// Row v = centroid of its class * signal + noise, both fixed by (seed, v): out is [nodes.size(), dim]. The centroid has
// entries
// +-1/sqrt(dim); the noise is a sum of four uniforms, scaled to variance 1 (no libm: equal bits on every machine).
void class_features(NodeRange nodes, const int64_t* labels, int64_t dim, uint64_t seed, double signal, float* out,
                    ThreadPool& pool);

// out[i] = id of place begin + i in a random order of all nodes.
void shuffled_ids(int64_t num_nodes, uint64_t seed, NodeRange places, int64_t* out, ThreadPool& pool);

}  // namespace gids
