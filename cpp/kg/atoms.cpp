// Atoms from disk: a frontier's atoms lie in blocks that are read in ascending order, so an atom is whole in what was
// read.
#include "kg/atoms.hpp"

#include <algorithm>
#include <string>

#include "errors.hpp"

namespace gids::kg {

AtomCache::AtomCache(int64_t num_entities, std::span<const int32_t> entities, const int64_t* indptr,
                     const Triple* triples)
    : place_(static_cast<size_t>(num_entities), -1), triples_(triples) {
    int64_t at = 0;
    for (const int32_t entity : entities) {
        const auto e = static_cast<size_t>(entity);
        place_[e] = at;
        at += indptr[e + 1] - indptr[e];
    }
}

AtomGather::AtomGather(int64_t num_entities, const int64_t* indptr, const AtomCache* cache)
    : indptr_(indptr),
      cache_(cache),
      where_(static_cast<size_t>(num_entities), nullptr),
      known_(static_cast<size_t>(num_entities), false) {}

void AtomGather::start(std::span<const int32_t> roots) {
    clear();
    want(roots);
}

void AtomGather::want(std::span<const int32_t> entities) {
    frontier_.clear();
    for (const int32_t entity : entities) {
        if (entity < 0 || entity >= num_entities())
            throw ConfigError("entity must be in [0, " + std::to_string(num_entities()) + ") (got " +
                              std::to_string(entity) + ")");
        const auto e = static_cast<size_t>(entity);
        if (known_[e]) continue;
        known_[e] = true;
        touched_.push_back(entity);
        frontier_.push_back(entity);
    }
    find_blocks();
}

void AtomGather::find_blocks() {
    missing_.clear();
    blocks_.clear();
    for (const int32_t entity : frontier_) {
        const auto e = static_cast<size_t>(entity);
        if (indptr_[e] == indptr_[e + 1]) continue;
        const Triple* cached = cache_ == nullptr ? nullptr : cache_->find(entity);
        if (cached != nullptr) where_[e] = cached;
        else missing_.push_back(entity);
    }
    std::sort(missing_.begin(), missing_.end());
    int64_t next = 0;  // first block that is not listed
    for (const int32_t entity : missing_) {
        const auto e = static_cast<size_t>(entity);
        const int64_t end = (indptr_[e + 1] - 1) / kBlockTriples + 1;
        for (int64_t block = std::max(next, indptr_[e] / kBlockTriples); block < end; ++block) blocks_.push_back(block);
        next = std::max(next, end);
    }
}

void AtomGather::take(const Triple* data) {
    size_t slot = 0;
    for (const int32_t entity : missing_) {
        const auto e = static_cast<size_t>(entity);
        const int64_t first = indptr_[e] / kBlockTriples;
        while (blocks_[slot] != first) ++slot;
        where_[e] = data + (static_cast<int64_t>(slot) * kBlockTriples + indptr_[e] % kBlockTriples);
    }
}

void AtomGather::advance() {
    std::vector<int32_t> next;
    for (const int32_t entity : frontier_) {
        for (const Triple& triple : atom(entity)) {
            const auto tail = static_cast<size_t>(triple.tail);
            if (tail >= known_.size())
                throw DatasetError("tail of entity " + std::to_string(entity) + " must be in [0, " +
                                   std::to_string(known_.size()) + ") (got " + std::to_string(triple.tail) + ")");
            if (known_[tail]) continue;
            known_[tail] = true;
            touched_.push_back(triple.tail);
            next.push_back(triple.tail);
        }
    }
    frontier_ = std::move(next);
    find_blocks();
}

void AtomGather::clear() {
    for (const int32_t entity : touched_) {
        where_[static_cast<size_t>(entity)] = nullptr;
        known_[static_cast<size_t>(entity)] = false;
    }
    touched_.clear();
    frontier_.clear();
    missing_.clear();
    blocks_.clear();
}

}  // namespace gids::kg
