// Next uses within the window: each occurrence of a row is linked to the next batch that needs the row.
//
// Batches have sequence numbers. When batch T enters the window, every row of it looks up its latest occurrence that
// is still to be served: that occurrence's next use is T. A row with no such occurrence that is in the cache gets T as
// its slot's next use. So each batch costs one map operation per row, once, however long the window is.
#pragma once

#include "row_map.cuh"

namespace gids {

constexpr uint32_t kNever = 0xffffffffu;  // no next use is known
constexpr uint32_t kFree = 0xffffffffu;   // SlotState::last of a slot that holds no row

struct SlotState {
    uint32_t next;  // batch that needs the row next, or kNever
    uint32_t last;  // batch that used it last, or kFree
    uint32_t uses;  // batches that used it since it was read; where popularity is known, what it stands for
};

// An occurrence is (batch, index in the batch), packed into a map value; never negative.
GIDS_DEVICE int64_t pack_occurrence(uint32_t batch, uint32_t index) {
    return static_cast<int64_t>(static_cast<uint64_t>(batch) << 32 | index) & 0x7fffffffffffffffll;
}

// Latest is a RowMap, or what has its exchange().
template <class Latest>
struct WindowOf {
    Latest latest;          // row -> its latest occurrence in the window (stale if before `first`)
    RowMap cached;          // row -> cache slot
    SlotState* slots;       //
    uint32_t* const* uses;  // uses[b - first][i]: next use of row i of batch b
    uint32_t first;         // the oldest batch that is still to be served
};

using Window = WindowOf<RowMap>;

// Row `index` of batch `batch` enters the window. True if the map got a new key. One batch per pass.
template <class Latest>
GIDS_DEVICE bool observe_row(const WindowOf<Latest>& window, int64_t row, uint32_t batch, uint32_t index) {
    bool added = false;
    const int64_t before = window.latest.exchange(row, pack_occurrence(batch, index), added);
    window.uses[batch - window.first][index] = kNever;
    const uint32_t before_batch = static_cast<uint32_t>(static_cast<uint64_t>(before) >> 32);
    if (before != kNoValue && before_batch >= window.first) {
        window.uses[before_batch - window.first][static_cast<uint32_t>(before)] = batch;
    } else {
        const int64_t slot = window.cached.find(row);
        if (slot != kNoValue) window.slots[slot].next = batch;
    }
    return added;
}

}  // namespace gids
