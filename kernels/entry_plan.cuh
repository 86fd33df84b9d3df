// Entry points of planning: window and next use, lookup, duplicates, victims, slots. One launch per pass and batch, in
// the order of the CPU planner, whose passes these are.
#pragma once

#include "block_counts.cuh"
#include "cache_plan.cuh"
#include "entry.cuh"
#include "entry_scan.cuh"
#include "policy_gids.cuh"
#include "policy_lru.cuh"
#include "policy_random.cuh"
#include "policy_sieve.cuh"
#include "policy_window.cuh"

namespace gids {

enum PolicyNumber : int { kPolicyRandom, kPolicyLru, kPolicySieve, kPolicyGids, kPolicyWindow };

// What the ranking policies need; `ahead` is used by window only.
struct Ranking {
    int policy;
    RandomKey key;
    uint32_t group_end;
    uint32_t ahead;

    GIDS_DEVICE uint32_t classes() const {
        switch (policy) {
            case kPolicyRandom:
                return RandomPolicy{key, group_end}.classes();
            case kPolicyLru:
                return LruPolicy{group_end}.classes();
            case kPolicyGids:
                return GidsPolicy{key, group_end}.classes();
            default:
                return WindowPolicy{group_end, ahead}.classes();
        }
    }
    GIDS_DEVICE uint32_t resident(SlotState state, int64_t slot) const {
        switch (policy) {
            case kPolicyRandom:
                return RandomPolicy{key, group_end}.resident(state, slot);
            case kPolicyLru:
                return LruPolicy{group_end}.resident(state, slot);
            case kPolicyGids:
                return GidsPolicy{key, group_end}.resident(state, slot);
            default:
                return WindowPolicy{group_end, ahead}.resident(state, slot);
        }
    }
    GIDS_DEVICE uint32_t miss(SlotState state, int64_t position) const {
        switch (policy) {
            case kPolicyRandom:
                return RandomPolicy{key, group_end}.miss(state, position);
            case kPolicyLru:
                return LruPolicy{group_end}.miss(state, position);
            case kPolicyGids:
                return GidsPolicy{key, group_end}.miss(state, position);
            default:
                return WindowPolicy{group_end, ahead}.miss(state, position);
        }
    }
};

}  // namespace gids

// What the host must know to allocate: bytes of a slot's state, and classes of a policy that sees `ahead` batches.
GIDS_KERNEL plan_shape(int policy, gids::uint32_t ahead, gids::int64_t* out) {
    if (blockIdx.x != 0 || threadIdx.x != 0) return;
    out[0] = sizeof(gids::SlotState);
    out[1] = gids::Ranking{policy, {0, 0}, 0, ahead}.classes();
}
GIDS_REGISTER(plan_shape)

GIDS_KERNEL map_clear(gids::RowEntry* entries, gids::int64_t count) {
    const gids::Group<1> lane;
    for (gids::int64_t i = group_index(lane); i < count; i += group_count(lane))
        entries[i] = {gids::kNoRow, gids::kNoValue};
}
GIDS_REGISTER(map_clear)

// Copies the entries worth keeping: of the cache map those not erased (first_batch 0), of the window map those whose
// occurrence is still to be served.
GIDS_KERNEL map_rebuild(const gids::RowEntry* from, gids::int64_t count, gids::uint32_t first_batch, gids::RowEntry* to,
                        gids::uint64_t to_mask) {
    const gids::RowMap map{to, to_mask};
    const gids::Group<1> lane;
    for (gids::int64_t i = group_index(lane); i < count; i += group_count(lane)) {
        const gids::RowEntry entry = from[i];
        if (entry.row == gids::kNoRow || entry.value == gids::kNoValue) continue;
        if (static_cast<gids::uint32_t>(static_cast<gids::uint64_t>(entry.value) >> 32) < first_batch) continue;
        bool added = false;
        map.claim(entry.row, added)->value = entry.value;
    }
}
GIDS_REGISTER(map_rebuild)

GIDS_KERNEL slots_reset(gids::SlotState* slots, gids::int64_t* row_of, gids::int64_t capacity, int window_only) {
    const gids::Group<1> lane;
    for (gids::int64_t i = group_index(lane); i < capacity; i += group_count(lane)) {
        if (window_only != 0) {
            slots[i].next = gids::kNever;
            continue;
        }
        slots[i] = {gids::kNever, gids::kFree, 0};
        row_of[i] = gids::kNoRow;
    }
}
GIDS_REGISTER(slots_reset)

// Rows outside [0, num_rows) set *bad and are not observed.
GIDS_KERNEL observe_rows(gids::RowEntry* latest, gids::uint64_t latest_mask, gids::RowEntry* cached,
                         gids::uint64_t cached_mask, gids::SlotState* slots, gids::uint32_t* const* uses,
                         gids::uint32_t first, gids::uint32_t batch, gids::int64_t num_rows, const gids::int64_t* rows,
                         gids::int64_t count, gids::int64_t* bad) {
    const gids::Window window{{latest, latest_mask}, {cached, cached_mask}, slots, uses, first};
    const gids::Group<1> lane;
    for (gids::int64_t i = group_index(lane); i < count; i += group_count(lane)) {
        if (static_cast<gids::uint64_t>(rows[i]) < static_cast<gids::uint64_t>(num_rows))
            gids::observe_row(window, rows[i], batch, static_cast<gids::uint32_t>(i));
        else gids::atomic_ref<gids::int64_t>(*bad).store(1, gids::memory_order_relaxed);  // read after the kernel
    }
}
GIDS_REGISTER(observe_rows)

// Locations of one batch's rows. Its misses get themselves as keys to be sorted by, other rows a key behind all of
// them; numbers are occurrences, counted from first_occurrence. counters: requests, cache, host, disk, duplicates.
GIDS_KERNEL classify_rows(gids::RowEntry* cached, gids::uint64_t cached_mask, gids::RowEntry* hosted,
                          gids::uint64_t hosted_mask, gids::int64_t capacity, gids::int64_t host_rows,
                          gids::int64_t num_rows, const gids::uint8_t* popularity, gids::SlotState* slots,
                          const gids::int64_t* rows, gids::int64_t count, gids::uint32_t batch,
                          const gids::uint32_t* uses, gids::uint32_t unknown_use, gids::uint32_t group_end,
                          gids::int64_t first_occurrence, gids::int64_t* keys, gids::int64_t* numbers,
                          gids::int64_t* location, gids::int64_t* counters, gids::int64_t* misses, gids::int64_t* bad) {
    const gids::Tiers tiers{{cached, cached_mask}, {hosted, hosted_mask}, capacity, host_rows, num_rows, popularity};
    const gids::Group<1> lane;
    gids::uint32_t from_cache = 0, from_host = 0, missed = 0;
    for (gids::int64_t i = group_index(lane); i < count; i += group_count(lane)) {
        const gids::uint32_t next = uses != nullptr ? uses[i] : unknown_use;
        const gids::int64_t at = gids::classify_row(tiers, slots, rows[i], batch, next, group_end);
        if (at == gids::kBadRow) gids::atomic_ref<gids::int64_t>(*bad).store(1, gids::memory_order_relaxed);
        keys[i] = at == gids::kMiss ? rows[i] : num_rows;
        numbers[i] = first_occurrence + i;
        location[i] = at;
        missed += at == gids::kMiss;
        from_cache += at >= 0 && at < capacity;
        from_host += at >= capacity;
    }
    GIDS_SHARED(gids::uint32_t, owners, gids::kBlockCells);
    GIDS_SHARED(gids::uint32_t, sums, gids::kBlockCells);
    const gids::BlockCounts counted(owners, sums);
    const auto at = [&](gids::uint32_t number) { return number == 0 ? misses : counters + number; };
    counted.add(0, missed, at);
    counted.add(1, from_cache, at);
    counted.add(2, from_host, at);
    counted.flush(at);
}
GIDS_REGISTER(classify_rows)

// Prefix sums of the first of equal rows.
GIDS_KERNEL flag_new_rows(const gids::int64_t* miss_rows, const gids::int64_t* count, gids::int64_t* within,
                          gids::int64_t* before, gids::int64_t* unique, gids::uint32_t* turnstile) {
    const auto is_new = [&](gids::int64_t j) -> gids::int64_t { return j == 0 || miss_rows[j] != miss_rows[j - 1]; };
    gids::scan_values(is_new, *count, within, before, unique, turnstile);
}
GIDS_REGISTER(flag_new_rows)

// Sorted misses get their places in the group's buffer; `begins` are the first occurrences of the batches and then the
// number of all, `uses` the next uses by occurrence or null.
GIDS_KERNEL place_misses(const gids::int64_t* miss_rows, const gids::int64_t* miss_at, const gids::int64_t* count,
                         const gids::int64_t* within, const gids::int64_t* before, const gids::int64_t* unique,
                         const gids::int64_t* begins, int batches, gids::uint32_t first_batch,
                         gids::uint32_t* const* uses, gids::int64_t buffer, const gids::uint8_t* popularity,
                         gids::int64_t* location, gids::int64_t* disk_rows, gids::SlotState* states,
                         gids::int64_t* counters) {
    const gids::Prefix firsts{within, before, unique, *count};
    GIDS_SHARED(gids::uint32_t, owners, gids::kBlockCells);
    GIDS_SHARED(gids::uint32_t, sums, gids::kBlockCells);
    const gids::BlockCounts counted(owners, sums);
    const auto counter = [&](gids::uint32_t number) { return counters + number; };
    const gids::Group<1> lane;
    for (gids::int64_t j = group_index(lane); j < *count; j += group_count(lane)) {
        const bool first = j == 0 || miss_rows[j] != miss_rows[j - 1];
        const gids::int64_t position = firsts[j] + first - 1;
        const gids::int64_t at = miss_at[j];
        int b = 0;
        while (b + 1 < batches && begins[b + 1] <= at) ++b;
        location[at] = buffer + position;
        if (first) disk_rows[position] = miss_rows[j];
        counted.add(static_cast<gids::uint32_t>(5 * b + (first ? 3 : 4)), 1, counter);
        if (j + 1 == *count || miss_rows[j + 1] != miss_rows[j]) {  // the row's last use in the group
            const gids::uint32_t next = uses != nullptr ? uses[b][at - begins[b]] : gids::kNever;
            gids::int64_t head = j;
            while (head > 0 && miss_rows[head - 1] == miss_rows[j]) --head;
            states[position] = {next, first_batch + static_cast<gids::uint32_t>(b),
                                gids::uses_of(popularity, miss_rows[j], j - head + 1)};
        }
    }
    counted.flush(counter);
}
GIDS_REGISTER(place_misses)

namespace gids {

// Of what competes for the cache: slots [0, capacity), then the rows that are read.
struct Contest {
    Ranking ranking;
    const SlotState* slots;
    int64_t capacity;
    const SlotState* states;
    int64_t unique;

    GIDS_DEVICE int64_t size() const { return capacity + unique; }
    GIDS_DEVICE bool is_free(int64_t i) const { return i < capacity && slots[i].last == kFree; }
    GIDS_DEVICE uint32_t class_of(int64_t i) const {
        return i < capacity ? ranking.resident(slots[i], i) : ranking.miss(states[i - capacity], i - capacity);
    }
};

}  // namespace gids

// How many residents and misses each class has (zero before), and from the last block the cut, as choose_cut() makes
// it.
GIDS_KERNEL count_classes(int policy, gids::uint32_t k0, gids::uint32_t k1, gids::uint32_t group_end,
                          gids::uint32_t ahead, const gids::SlotState* slots, gids::int64_t capacity,
                          const gids::SlotState* states, const gids::int64_t* unique, gids::uint32_t classes,
                          gids::int64_t* residents, gids::int64_t* misses, gids::int64_t* cut,
                          gids::uint32_t* turnstile) {
    const gids::Contest contest{{policy, {k0, k1}, group_end, ahead}, slots, capacity, states, *unique};
    GIDS_SHARED(gids::uint32_t, owners, gids::kBlockCells);
    GIDS_SHARED(gids::uint32_t, sums, gids::kBlockCells);
    const gids::BlockCounts counted(owners, sums);
    const auto counter = [&](gids::uint32_t number) { return (number % 2 == 0 ? residents : misses) + number / 2; };
    const gids::Group<1> lane;
    for (gids::int64_t i = group_index(lane); i < contest.size(); i += group_count(lane))
        if (!contest.is_free(i)) counted.add(2 * contest.class_of(i) + (i < capacity ? 0u : 1u), 1, counter);
    counted.flush(counter);
    if (!gids::is_last_block(turnstile)) return;
    // Each lane adds up its share of the classes; the one whose share goes over the capacity looks for the edge in it.
    const gids::int64_t share = (classes + blockDim.x - 1) / blockDim.x;
    const gids::int64_t begin = threadIdx.x * share, stop = begin + share;
    const gids::int64_t end = stop < classes ? stop : classes;
    gids::int64_t sum = 0, total = 0;
    for (gids::int64_t c = begin; c < end; ++c) sum += residents[c] + misses[c];
    gids::int64_t room = capacity - gids::block_exclusive_scan(sum, total);
    if (threadIdx.x == 0 && total <= capacity) {
        cut[0] = classes;
        cut[1] = cut[2] = 0;
    }
    if (room < 0 || sum <= room) return;
    gids::int64_t c = begin;
    for (; residents[c] + misses[c] <= room; ++c) room -= residents[c] + misses[c];
    const gids::int64_t kept = residents[c] < room ? residents[c] : room;
    cut[0] = c;
    cut[1] = kept;
    cut[2] = room - kept;
}
GIDS_REGISTER(count_classes)

// Prefix sums over the contest of what is in the class at the edge: they rank it.
GIDS_KERNEL rank_edge(int policy, gids::uint32_t k0, gids::uint32_t k1, gids::uint32_t group_end, gids::uint32_t ahead,
                      const gids::SlotState* slots, gids::int64_t capacity, const gids::SlotState* states,
                      const gids::int64_t* unique, const gids::int64_t* cut, gids::int64_t* within,
                      gids::int64_t* before, gids::int64_t* total, gids::uint32_t* turnstile) {
    const gids::Contest contest{{policy, {k0, k1}, group_end, ahead}, slots, capacity, states, *unique};
    const auto at_edge = [&](gids::int64_t i) -> gids::int64_t {
        return !contest.is_free(i) && contest.class_of(i) == cut[0];
    };
    gids::scan_values(at_edge, contest.size(), within, before, total, turnstile);
}
GIDS_REGISTER(rank_edge)

// Prefix sums over the contest of the slots that can be given away and of the misses that are admitted.
GIDS_KERNEL rank_moves(int policy, gids::uint32_t k0, gids::uint32_t k1, gids::uint32_t group_end, gids::uint32_t ahead,
                       const gids::SlotState* slots, gids::int64_t capacity, const gids::SlotState* states,
                       const gids::int64_t* unique, const gids::int64_t* cut, const gids::int64_t* edge_within,
                       const gids::int64_t* edge_before, const gids::int64_t* edge_total, gids::int64_t* within,
                       gids::int64_t* before, gids::int64_t* total, gids::uint32_t* turnstile) {
    const gids::Contest contest{{policy, {k0, k1}, group_end, ahead}, slots, capacity, states, *unique};
    const gids::Prefix edge{edge_within, edge_before, edge_total, contest.size()};
    const gids::int64_t edge_slots = edge[capacity];
    const auto moves = [&](gids::int64_t i) -> gids::int64_t {
        if (contest.is_free(i)) return 1;
        const gids::int64_t c = contest.class_of(i);
        const gids::int64_t rank = edge[i] - (i < capacity ? 0 : edge_slots);
        const bool stays = c < cut[0] || (c == cut[0] && rank < cut[i < capacity ? 1 : 2]);
        return stays == (i >= capacity);  // a row that is read moves where it stays, a resident where it does not
    };
    gids::scan_values(moves, contest.size(), within, before, total, turnstile);
}
GIDS_REGISTER(rank_moves)

// The first `limit` slots and rows that move, in order, and how many rows do.
GIDS_KERNEL collect_moves(const gids::int64_t* within, const gids::int64_t* before, const gids::int64_t* total,
                          gids::int64_t capacity, const gids::int64_t* unique, gids::int64_t limit,
                          gids::int64_t* slots_out, gids::int64_t* positions_out, gids::int64_t* admitted) {
    const gids::Prefix moves{within, before, total, capacity + *unique};
    const gids::int64_t moved_slots = moves[capacity];
    const gids::Group<1> lane;
    for (gids::int64_t i = group_index(lane); i < moves.count; i += group_count(lane)) {
        const gids::int64_t rank = moves[i] - (i < capacity ? 0 : moved_slots);
        if (moves[i + 1] == moves[i] || rank >= limit) continue;
        if (i < capacity) slots_out[rank] = i;
        else positions_out[rank] = i - capacity;
    }
    if (blockIdx.x == 0 && threadIdx.x == 0) *admitted = *total - moved_slots;
}
GIDS_REGISTER(collect_moves)

// After which batch each admission is made, and its number, to be sorted by it; also counts them by batch.
GIDS_KERNEL choose_turns(const gids::SlotState* slots, const gids::int64_t* admit_slot, const gids::int64_t* count,
                         int batches, gids::uint32_t group_begin, gids::int64_t* turn, gids::int64_t* number,
                         gids::int64_t* by_batch) {
    GIDS_SHARED(gids::uint32_t, owners, gids::kBlockCells);
    GIDS_SHARED(gids::uint32_t, sums, gids::kBlockCells);
    const gids::BlockCounts counted(owners, sums);
    const auto counter = [&](gids::uint32_t number) { return by_batch + number; };
    const gids::Group<1> lane;
    const gids::int64_t n = *count;
    for (gids::int64_t k = group_index(lane); k < n; k += group_count(lane)) {
        const gids::uint32_t last = slots[admit_slot[k]].last;
        const gids::int64_t read = last != gids::kFree && last >= group_begin ? last - group_begin : 0;
        const gids::int64_t even = k * batches / n;
        turn[k] = read > even ? read : even;
        number[k] = k;
        counted.add(static_cast<gids::uint32_t>(turn[k]), 1, counter);
    }
    counted.flush(counter);
}
GIDS_REGISTER(choose_turns)

// order[j] is the admission that comes j-th; slots and positions follow it.
GIDS_KERNEL order_admissions(const gids::int64_t* order, const gids::int64_t* count, const gids::int64_t* admit_slot,
                             const gids::int64_t* admit_position, gids::int64_t* slots_out,
                             gids::int64_t* positions_out) {
    const gids::Group<1> lane;
    for (gids::int64_t j = group_index(lane); j < *count; j += group_count(lane)) {
        slots_out[j] = admit_slot[order[j]];
        positions_out[j] = admit_position[order[j]];
    }
}
GIDS_REGISTER(order_admissions)

// Slots change hands: the map forgets who was there and learns who comes. Nobody who comes was there.
GIDS_KERNEL fill_slots(gids::RowEntry* cached, gids::uint64_t cached_mask, const gids::int64_t* admit_slot,
                       const gids::int64_t* admit_position, const gids::int64_t* count, const gids::int64_t* disk_rows,
                       const gids::SlotState* states, gids::int64_t* row_of, gids::SlotState* slots) {
    const gids::RowMap map{cached, cached_mask};
    const gids::Group<1> lane;
    for (gids::int64_t k = group_index(lane); k < *count; k += group_count(lane)) {
        const gids::int64_t slot = admit_slot[k], position = admit_position[k];
        if (row_of[slot] != gids::kNoRow) map.erase(row_of[slot]);
        bool added = false;
        map.claim(disk_rows[position], added)->value = slot;
        row_of[slot] = disk_rows[position];
        slots[slot] = states[position];
    }
}
GIDS_REGISTER(fill_slots)

// Sieve: flags of the items that the hand takes on its first circle.
GIDS_KERNEL sieve_flag(const gids::int64_t* queue, gids::int64_t size, gids::int64_t hand, gids::int64_t wanted,
                       const gids::SlotState* slots, gids::int64_t* flags) {
    const gids::SieveSweep sweep{queue, size, hand, wanted};
    const gids::Group<1> lane;
    for (gids::int64_t k = group_index(lane); k < size; k += group_count(lane)) flags[k] = sweep.takes_first(slots, k);
}
GIDS_REGISTER(sieve_flag)

// Decides every item by its rank; `flags` of visited items are 0. Item k becomes a victim of the first or second circle
// or is kept.
GIDS_KERNEL sieve_decide(const gids::int64_t* queue, gids::int64_t size, gids::int64_t hand, gids::int64_t wanted,
                         gids::SlotState* slots, const gids::int64_t* flags, const gids::int64_t* ranks,
                         gids::int64_t* first, gids::int64_t* second, gids::int64_t* kept) {
    const gids::SieveSweep sweep{queue, size, hand, wanted};
    const gids::Group<1> lane;
    for (gids::int64_t k = group_index(lane); k < size; k += group_count(lane)) {
        const bool visited = flags[k] == 0;
        const bool evicted = sweep.evicts(visited, k, ranks[k], ranks[size]);
        first[k] = evicted && !visited;
        second[k] = evicted && visited;
        kept[k] = !evicted;
        if (sweep.clears(ranks[k])) slots[sweep.slot(k)].next = gids::kNever;
    }
}
GIDS_REGISTER(sieve_decide)

// The slots of items, by number.
GIDS_KERNEL sieve_slots(const gids::int64_t* queue, gids::int64_t size, gids::int64_t hand, const gids::int64_t* items,
                        gids::int64_t count, gids::int64_t* out) {
    const gids::SieveSweep sweep{queue, size, hand, 0};
    const gids::Group<1> lane;
    for (gids::int64_t i = group_index(lane); i < count; i += group_count(lane)) out[i] = sweep.slot(items[i]);
}
GIDS_REGISTER(sieve_slots)

// out[i] = first + i.
GIDS_KERNEL count_up(gids::int64_t first, gids::int64_t count, gids::int64_t* out) {
    const gids::Group<1> lane;
    for (gids::int64_t i = group_index(lane); i < count; i += group_count(lane)) out[i] = first + i;
}
GIDS_REGISTER(count_up)
