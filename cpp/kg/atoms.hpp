// Atoms (an entity's own triples) from disk: which blocks hold those of a frontier, and where each atom is once they
// are read.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace gids::kg {

struct Triple {
    int32_t relation, tail;
};

constexpr int64_t kBlockTriples = 64;  // gids.dataset.knowledge_writer.BLOCK_TRIPLES

// Atoms in memory for good, e.g. of entities with many triples: one run of triples and, for every entity, where its own
// are.
class AtomCache {
public:
    // triples of entities[i] follow those of entities[i - 1]; the arrays must outlive the cache.
    AtomCache(int64_t num_entities, std::span<const int32_t> entities, const int64_t* indptr, const Triple* triples);

    const Triple* find(int32_t entity) const {
        const int64_t at = place_[static_cast<size_t>(entity)];
        return at < 0 ? nullptr : triples_ + at;
    }

private:
    std::vector<int64_t> place_;  // -1: not here
    const Triple* triples_;
};

// Breadth first over atoms that are read hop by hop, for many roots at once:
//     start(roots); while (hops) { read blocks(); take(data); advance(); }
// Atoms stay where take() was given them until clear(). One thread at a time.
class AtomGather {
public:
    AtomGather(int64_t num_entities, const int64_t* indptr, const AtomCache* cache);

    void start(std::span<const int32_t> roots);
    // Adds entities to the frontier that are not known yet, without following anything.
    void want(std::span<const int32_t> entities);
    // Blocks that hold the frontier's atoms, ascending, each once; those of cached atoms are not among them.
    const std::vector<int64_t>& blocks() const { return blocks_; }
    // data holds blocks() in their order and must stay until clear().
    void take(const Triple* data);
    // The next frontier: tails of this one that are new.
    void advance();
    void clear();

    const std::vector<int32_t>& frontier() const { return frontier_; }
    std::span<const Triple> atom(int32_t entity) const {
        const auto e = static_cast<size_t>(entity);
        return {where_[e], where_[e] == nullptr ? 0 : static_cast<size_t>(indptr_[e + 1] - indptr_[e])};
    }
    void prefetch(int32_t entity) const {
        __builtin_prefetch(where_.data() + entity);
        __builtin_prefetch(indptr_ + entity);
    }
    int64_t num_entities() const { return static_cast<int64_t>(where_.size()); }
    const int64_t* indptr() const { return indptr_; }

private:
    void find_blocks();

    const int64_t* indptr_;
    const AtomCache* cache_;
    std::vector<const Triple*> where_;  // where an entity's atom is; null: not read, or empty
    std::vector<bool> known_;           // is or was in a frontier
    std::vector<int32_t> touched_;      // known entities
    std::vector<int32_t> frontier_;
    std::vector<int32_t> missing_;  // of the frontier, not empty and not cached, ascending
    std::vector<int64_t> blocks_;
};

}  // namespace gids::kg
