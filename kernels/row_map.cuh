// Row -> value hash map (open addressing, linear probing). Sized by what it holds, never by the table's rows.
#pragma once

#include "exec.cuh"

namespace gids {

constexpr int64_t kNoRow = -1;    // key of an entry never used; rows are >= 0
constexpr int64_t kNoValue = -1;  // value of a key that was erased: the key stays, so probe chains stay whole

struct RowEntry {
    int64_t row;
    int64_t value;
};

// View of 2^k entries, initialised to {kNoRow, kNoValue}. The owner keeps at least one entry unused, so probes end.
// Lookups and claims of one pass may run in parallel; values are written only by whoever owns the row in that pass.
struct RowMap {
    RowEntry* entries;
    uint64_t mask;

    GIDS_DEVICE uint64_t home(int64_t row) const {
        uint64_t x = static_cast<uint64_t>(row);
        x ^= x >> 32;
        x *= 0xd6e8feb86659fd93ull;
        x ^= x >> 32;
        return x & mask;
    }

    GIDS_DEVICE int64_t find(int64_t row) const {
        for (uint64_t at = home(row);; at = (at + 1) & mask) {
            const RowEntry& entry = entries[at];
            if (entry.row == row) return entry.value;
            if (entry.row == kNoRow) return kNoValue;
        }
    }

    // Entry of `row`, made if there is none; `added` says so.
    GIDS_DEVICE RowEntry* claim(int64_t row, bool& added) const {
        added = false;
        for (uint64_t at = home(row);; at = (at + 1) & mask) {
            // relaxed: the key alone decides who owns the entry; values are read in a later pass.
            atomic_ref<int64_t> key(entries[at].row);
            int64_t seen = key.load(memory_order_relaxed);
            if (seen == kNoRow) {
                added = key.compare_exchange_strong(seen, row, memory_order_relaxed);
                if (added) return &entries[at];
            }
            if (seen == row) return &entries[at];
        }
    }

    // Sets the value of `row` and returns the one before, kNoValue if there was none; `added`: the key is new.
    GIDS_DEVICE int64_t exchange(int64_t row, int64_t value, bool& added) const {
        RowEntry* entry = claim(row, added);
        const int64_t before = added ? kNoValue : entry->value;
        entry->value = value;
        return before;
    }

    GIDS_DEVICE void erase(int64_t row) const {
        for (uint64_t at = home(row);; at = (at + 1) & mask) {
            // relaxed: other rows may be claimed meanwhile; this one's entry is there already.
            const int64_t seen = atomic_ref<int64_t>(entries[at].row).load(memory_order_relaxed);
            if (seen == row) {
                entries[at].value = kNoValue;
                return;
            }
            if (seen == kNoRow) return;
        }
    }
};

}  // namespace gids
