// Passes that plan one group of batches: classify rows, find duplicates, choose what stays in the cache.
//
// The rows of a group are read once and stay in the group's buffer until its end, so a cache slot may change hands only
// after the batches that read it. What stays is the best `capacity` of (resident rows + rows read) by the policy's
// class: 0 is kept first. Ties go to residents (no copy), then to the lower slot or position. Nothing is pinned,
// nothing waits.
#pragma once

#include "next_use.cuh"
#include "row_map.cuh"
#include "use_level.cuh"

namespace gids {

// Where rows are: [0, C) cache slots, [C, C + H) host buffer slots, [C + H, ...) positions in the group's buffer.
struct Tiers {
    RowMap cached;  // row -> slot
    RowMap hosted;  // row -> host slot
    int64_t capacity;
    int64_t host_rows;
    int64_t num_rows;           // of the table, to refuse rows that it does not have
    const uint8_t* popularity;  // row -> use level that a ranking expects, or null: uses are counted
};

// SlotState::uses of a row that was read and used `counted` times in its group.
GIDS_DEVICE uint32_t uses_of(const uint8_t* popularity, int64_t row, int64_t counted) {
    return popularity != nullptr ? uses_at_level(popularity[row]) : static_cast<uint32_t>(counted);
}

constexpr int64_t kMiss = -1;
constexpr int64_t kBadRow = -2;

// The location of a row in cache or host buffer, or kMiss. A hit tells its slot about the use; `group_end` is the first
// batch after the group, so exactly one occurrence of a row in the group (the last) knows a use that is beyond it.
GIDS_DEVICE int64_t classify_row(const Tiers& tiers, SlotState* slots, int64_t row, uint32_t batch, uint32_t next,
                                 uint32_t group_end) {
    if (row < 0 || row >= tiers.num_rows) return kBadRow;
    const int64_t slot = tiers.capacity > 0 ? tiers.cached.find(row) : kNoValue;
    if (slot != kNoValue) {
        slots[slot].last = batch;
        slots[slot].uses += tiers.popularity == nullptr;
        if (next >= group_end) slots[slot].next = next;
        return slot;
    }
    const int64_t host = tiers.host_rows > 0 ? tiers.hosted.find(row) : kNoValue;
    return host != kNoValue ? tiers.capacity + host : kMiss;
}

// How many of each class stay: everything below `edge`, and at `edge` the first `edge_residents` slots and the first
// `edge_misses` positions.
struct Cut {
    uint32_t edge;
    int64_t edge_residents;
    int64_t edge_misses;
};

GIDS_DEVICE Cut choose_cut(const int64_t* residents, const int64_t* misses, uint32_t classes, int64_t capacity) {
    int64_t room = capacity;
    for (uint32_t c = 0; c < classes; ++c) {
        if (residents[c] + misses[c] > room) {
            const int64_t kept = residents[c] < room ? residents[c] : room;
            return {c, kept, room - kept};
        }
        room -= residents[c] + misses[c];
    }
    return {classes, 0, 0};
}

}  // namespace gids
