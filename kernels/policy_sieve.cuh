// sieve at group granularity: a hand sweeps the queue from oldest to newest, spares rows used since its last pass
// (once) and takes the others. Survivors keep their place; new rows join at the newest end. (Zhang et al., NSDI 2024.)
#pragma once

#include "next_use.cuh"

namespace gids {

constexpr uint32_t kVisited = 0xfffffffeu;  // SlotState::next under sieve; kNever is "not visited"

// One sweep that wants `wanted` victims of a queue of `size` slots. Item k is the k-th that the hand meets. Two circles
// are enough: the first spares visited rows and clears them, so the second takes whatever it meets.
struct SieveSweep {
    const int64_t* queue;  // slots, oldest first
    int64_t size;
    int64_t hand;    // index of item 0
    int64_t wanted;  // <= size

    GIDS_DEVICE int64_t slot(int64_t k) const {
        const int64_t at = hand + k;
        return queue[at < size ? at : at - size];
    }
    GIDS_DEVICE bool takes_first(const SlotState* slots, int64_t k) const { return slots[slot(k)].next != kVisited; }

    // `rank`: items before k that are not visited; `unvisited`: all of them.
    GIDS_DEVICE bool evicts(bool visited, int64_t k, int64_t rank, int64_t unvisited) const {
        return visited ? k - rank < wanted - unvisited : rank < wanted;
    }
    GIDS_DEVICE bool clears(int64_t rank) const { return rank < wanted; }
};

}  // namespace gids
