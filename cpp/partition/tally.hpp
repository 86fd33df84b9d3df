// How often each group occurs among the groups of a node's neighbours: counted, never sorted.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <vector>

namespace gids {

// Belongs to one thread. A few ids are compared each with each, which a compiler makes a handful of vector instructions
// without a branch; more are counted in an array with an entry for every group.
class Tally {
public:
    void clear() { ids_.clear(); }
    void add(uint32_t group) { ids_.push_back(group); }

    // Calls body(group, how often) for every group that was added, those with few ids perhaps more than once; groups
    // must be below num_groups.
    template <class Body>
    void for_groups(size_t num_groups, const Body& body) {
        if (ids_.size() <= kFew) for_few(body);
        else for_many(num_groups, body);
    }

private:
    static constexpr size_t kFew = 16;

    template <class Body>
    void for_few(const Body& body) {
        std::array<uint32_t, kFew> ids, counts{};
        ids.fill(std::numeric_limits<uint32_t>::max());
        for (size_t i = 0; i < ids_.size(); ++i) ids[i] = ids_[i];
        for (size_t i = 0; i < ids_.size(); ++i)
            for (size_t j = 0; j < kFew; ++j) counts[j] += ids[j] == ids[i];
        for (size_t i = 0; i < ids_.size(); ++i) body(ids[i], static_cast<int64_t>(counts[i]));
    }

    template <class Body>
    void for_many(size_t num_groups, const Body& body) {
        if (counts_.size() < num_groups) counts_.resize(num_groups);
        size_t distinct = 0;
        for (const uint32_t group : ids_)
            if (counts_[group]++ == 0) ids_[distinct++] = group;
        for (size_t i = 0; i < distinct; ++i) {
            const int64_t count = counts_[ids_[i]];
            counts_[ids_[i]] = 0;  // all are 0 between calls
            body(ids_[i], count);
        }
    }

    std::vector<uint32_t> ids_, counts_;
};

}  // namespace gids
