// Numbers node ids by first occurrence, in bulk passes whose result does not depend on the order of execution:
//   1. insert    every occurrence (node, position): claim a slot, keep the smallest position
//   2. is_first  flag the occurrences whose position is the smallest one of their node
//   3. (prefix sum of the flags gives every first occurrence its id)
//   4. assign    first occurrences write their id into the slot
//   5. id_of     every occurrence reads its id
// Nodes that have ids already (seeds, earlier layers) occupy the first positions, so they keep them.
#pragma once

#include "exec.cuh"

namespace gids {

constexpr uint64_t kNoNode = ~uint64_t{0};

GIDS_DEVICE uint64_t hash_node(uint64_t node) { return node * 0x9E3779B97F4A7C15ull; }

// Trivially copyable reference to the slots; capacity is a power of two above the number of distinct nodes.
struct UniqueTable {
    uint64_t* nodes;      // kNoNode where free
    uint64_t* positions;  // smallest position of the node; later its id
    int capacity_log2;

    GIDS_DEVICE uint64_t capacity() const { return uint64_t{1} << capacity_log2; }
    GIDS_DEVICE uint64_t home(uint64_t node) const { return hash_node(node) >> (64 - capacity_log2); }
};

GIDS_DEVICE void unique_clear(UniqueTable table, uint64_t slot) {
    table.nodes[slot] = kNoNode;
    table.positions[slot] = ~uint64_t{0};
}

// Pass 1. Returns the slot of the node.
GIDS_DEVICE uint64_t unique_insert(UniqueTable table, uint64_t node, uint64_t position) {
    const uint64_t mask = table.capacity() - 1;
    uint64_t slot = table.home(node);
    for (;; slot = (slot + 1) & mask) {
        atomic_ref<uint64_t> owner(table.nodes[slot]);
        // relaxed: slots only ever go from free to one node, and passes are separated by a barrier.
        uint64_t found = owner.load(memory_order_relaxed);
        if (found == kNoNode) owner.compare_exchange_strong(found, node, memory_order_relaxed);
        if (found == kNoNode || found == node) break;
    }
    atomic_ref<uint64_t> smallest(table.positions[slot]);
    uint64_t current = smallest.load(memory_order_relaxed);
    while (position < current && !smallest.compare_exchange_weak(current, position, memory_order_relaxed)) {
    }
    return slot;
}

// Pass 2.
GIDS_DEVICE bool unique_is_first(UniqueTable table, uint64_t slot, uint64_t position) {
    return table.positions[slot] == position;
}

// Pass 4.
GIDS_DEVICE void unique_assign(UniqueTable table, uint64_t slot, uint64_t id) { table.positions[slot] = id; }

// Pass 5.
GIDS_DEVICE uint64_t unique_id(UniqueTable table, uint64_t slot) { return table.positions[slot]; }

// The slot of a node, or capacity() where the table does not have it. Not while inserts run.
GIDS_DEVICE uint64_t unique_find(UniqueTable table, uint64_t node) {
    const uint64_t mask = table.capacity() - 1;
    for (uint64_t slot = table.home(node);; slot = (slot + 1) & mask) {
        if (table.nodes[slot] == node) return slot;
        if (table.nodes[slot] == kNoNode) return table.capacity();
    }
}

}  // namespace gids
