// Owns the entries of a RowMap on the host: grows, forgets erased keys, and looks rows up with the misses overlapped.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "row_map.cuh"

namespace gids {

// Smallest power of two that keeps `keys` keys below two thirds of the entries.
inline int64_t map_entries_for(int64_t keys) {
    int64_t entries = 16;
    while (entries * 2 < keys * 3) entries *= 2;
    return entries;
}

class HostRowMap {
public:
    explicit HostRowMap(int64_t keys = 0) { clear(keys); }

    void clear(int64_t keys) {
        entries_.assign(map_entries_for(keys), RowEntry{kNoRow, kNoValue});
        used_ = 0;
    }

    RowMap ref() { return {entries_.data(), entries_.size() - 1}; }

    // Whether `more` keys can be added before it must be rebuilt.
    bool fits(int64_t more) const { return (used_ + more) * 3 <= static_cast<int64_t>(entries_.size()) * 2; }
    void count_added(int64_t keys) { used_ += keys; }

    // Keeps the entries for which keep(entry) holds and makes room for `more`.
    template <class Keep>
    void rebuild(int64_t more, const Keep& keep) {
        std::vector<RowEntry> live;
        for (const RowEntry& entry : entries_)
            if (entry.row != kNoRow && keep(entry)) live.push_back(entry);
        // Half again as much room, so that the next rebuild is as far away as the map is large.
        clear((static_cast<int64_t>(live.size()) + more) * 3 / 2);
        for (const RowEntry& entry : live) insert(entry.row, entry.value);
    }

    void insert(int64_t row, int64_t value) {
        bool added = false;
        ref().claim(row, added)->value = value;
        used_ += added;
    }

    template <class Keep>
    int64_t count(const Keep& keep) const {
        return std::ranges::count_if(entries_, [&](const RowEntry& e) { return e.row != kNoRow && keep(e); });
    }
    const std::vector<RowEntry>& entries() const { return entries_; }
    int64_t bytes() const { return static_cast<int64_t>(entries_.capacity() * sizeof(RowEntry)); }

private:
    std::vector<RowEntry> entries_;
    int64_t used_ = 0;  // keys ever claimed since the last clear, erased ones included
};

// A value for every row of a table, in the place of a map that would be as large.
struct RowArray {
    int64_t* values;

    int64_t exchange(int64_t row, int64_t value, bool& added) const {
        added = false;
        return std::exchange(values[row], value);
    }
};

// Calls body(i) for [begin, end) with the entries of the rows a few steps ahead on their way from memory.
template <class Body>
void for_rows_prefetched(const RowArray& array, const int64_t* rows, int64_t begin, int64_t end, const Body& body) {
    constexpr int64_t kAhead = 16;
    for (int64_t i = begin; i < end; ++i) {
        if (i + kAhead < end) __builtin_prefetch(&array.values[rows[i + kAhead]], 1);
        body(i);
    }
}

template <class Body>
void for_rows_prefetched(const RowMap& map, const int64_t* rows, int64_t begin, int64_t end, const Body& body) {
    constexpr int64_t kAhead = 16;
    for (int64_t i = begin; i < end && i < begin + kAhead; ++i) __builtin_prefetch(&map.entries[map.home(rows[i])]);
    for (int64_t i = begin; i < end; ++i) {
        if (i + kAhead < end) __builtin_prefetch(&map.entries[map.home(rows[i + kAhead])]);
        body(i);
    }
}

}  // namespace gids
