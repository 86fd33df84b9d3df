// Entry points of weighted sampling, of LADIES, and of the subgraphs that ShaDow takes.
#pragma once

#include "entry.cuh"
#include "entry_sampling.cuh"
#include "ladies.cuh"
#include "unique.cuh"
#include "weighted.cuh"

// As count_edges, for edges chosen by weight: positive[i] of a node's edges can be chosen at all.
GIDS_KERNEL count_weighted(const gids::int64_t* indptr, gids::int64_t num_nodes, const float* weights,
                           const gids::int64_t* nodes, const gids::int64_t* num_dst, gids::int64_t fanout, int replace,
                           gids::int64_t* first, gids::int64_t* degree, gids::int64_t* positive,
                           gids::int64_t* counts) {
    const gids::Group<8> group;
    for (gids::int64_t i = group_index(group); i < *num_dst; i += group_count(group)) {
        const bool exists = static_cast<gids::uint64_t>(nodes[i]) < static_cast<gids::uint64_t>(num_nodes);
        const gids::int64_t begin = exists ? indptr[nodes[i]] : 0;
        const gids::int64_t edges = exists ? indptr[nodes[i] + 1] - begin : 0;
        const gids::int64_t eligible = gids::count_positive(group, weights + begin, edges);
        if (group.lane() != 0) continue;
        first[i] = begin;
        degree[i] = edges;
        positive[i] = eligible;
        counts[i] = gids::sampled_count(eligible, fanout, replace != 0);
    }
}
GIDS_REGISTER(count_weighted)

// `times` is scratch, one number per chosen edge.
GIDS_WIDE_KERNEL choose_weighted_edges(gids::uint32_t k0, gids::uint32_t k1, const float* weights,
                                       const gids::int64_t* nodes, const gids::int64_t* num_dst,
                                       const gids::int64_t* first, const gids::int64_t* degree,
                                       const gids::int64_t* positive, const gids::int64_t* within,
                                       const gids::int64_t* before, const gids::int64_t* total, int replace,
                                       gids::int64_t* begins, double* times, gids::int64_t* positions) {
    const gids::Group<8> group;
    gids::choose_by_node(group, {within, before, total, *num_dst}, begins,
                         [&](gids::int64_t i, gids::int64_t begin, gids::int64_t count) {
                             gids::choose_weighted(group, {k0, k1}, static_cast<gids::uint64_t>(nodes[i]), first[i],
                                                   degree[i], positive[i], count, replace != 0, weights + first[i],
                                                   times + begin, positions + begin);
                         });
}
GIDS_REGISTER(choose_weighted_edges)

// Numbers of nodes that have one, -1 for others.
GIDS_KERNEL unique_find_ids(gids::uint64_t* slot_nodes, gids::uint64_t* slot_positions, int capacity_log2,
                            const gids::int64_t* ids, gids::int64_t count, gids::int64_t* out) {
    const gids::UniqueTable table{slot_nodes, slot_positions, capacity_log2};
    const gids::Group<1> lane;
    for (gids::int64_t i = group_index(lane); i < count; i += group_count(lane)) {
        const gids::uint64_t slot = gids::unique_find(table, static_cast<gids::uint64_t>(ids[i]));
        out[i] = slot == table.capacity() ? -1 : static_cast<gids::int64_t>(gids::unique_id(table, slot));
    }
}
GIDS_REGISTER(unique_find_ids)

GIDS_KERNEL flag_numbered(const gids::int64_t* numbers, gids::int64_t count, gids::int64_t* flags) {
    const gids::Group<1> lane;
    for (gids::int64_t i = group_index(lane); i < count; i += group_count(lane)) flags[i] = numbers[i] >= 0;
}
GIDS_REGISTER(flag_numbered)

// Moves the flagged of two arrays together; `before` is the prefix sum of the flags.
GIDS_KERNEL keep_pairs(const gids::int64_t* flags, const gids::int64_t* before, const gids::int64_t* count,
                       const gids::int64_t* a, const gids::int64_t* b, gids::int64_t* out_a, gids::int64_t* out_b) {
    const gids::Group<1> lane;
    for (gids::int64_t e = group_index(lane); e < *count; e += group_count(lane)) {
        if (flags[e] == 0) continue;
        out_a[before[e]] = a[e];
        out_b[before[e]] = b[e];
    }
}
GIDS_REGISTER(keep_pairs)

// LADIES: what part of its destination each edge carries, and the sum of the parts. weights may be null: equal parts.
// They are by edge position; positions may be null: by edge.
GIDS_KERNEL ladies_parts(const float* weights, const gids::int64_t* begins, const gids::int64_t* positions,
                         gids::int64_t num_dst, gids::uint64_t* part, gids::uint64_t* whole) {
    const gids::Group<8> group;
    for (gids::int64_t i = group_index(group); i < num_dst; i += group_count(group)) {
        const gids::int64_t from = begins[i], degree = begins[i + 1] - from;
        gids::uint64_t sum = static_cast<gids::uint64_t>(degree);
        if (weights != nullptr && degree > 0) {
            // All in-edges of a node have positions that follow each other.
            const float* list = weights + (positions != nullptr ? positions[from] : from);
            const float largest = gids::largest_weight(group, list, degree);
            for (gids::int64_t e = group.lane(); e < degree; e += 8)
                part[from + e] = gids::fixed_weight(list[e], largest);
            sum = gids::fixed_sum(group, list, degree, largest);
        } else {
            for (gids::int64_t e = group.lane(); e < degree; e += 8) part[from + e] = 1;
        }
        if (group.lane() == 0) whole[i] = sum;
    }
}
GIDS_REGISTER(ladies_parts)

GIDS_KERNEL ladies_masses(const gids::int64_t* begins, gids::int64_t num_dst, const gids::uint64_t* part,
                          const gids::uint64_t* whole, const gids::int64_t* candidate, int bits,
                          gids::uint64_t* masses) {
    const gids::Group<8> group;
    for (gids::int64_t i = group_index(group); i < num_dst; i += group_count(group))
        for (gids::int64_t e = begins[i] + group.lane(); e < begins[i + 1]; e += 8)
            // relaxed: sums of integers, read after the kernel.
            if (part[e] > 0)
                gids::atomic_ref<gids::uint64_t>(masses[candidate[e]])
                    .fetch_add(gids::edge_mass(part[e], whole[i], bits), gids::memory_order_relaxed);
}
GIDS_REGISTER(ladies_masses)

// Candidates with a mass race; times are not negative, so their bits sort as they do. Also adds up the masses.
GIDS_KERNEL ladies_race(gids::uint32_t k0, gids::uint32_t k1, const gids::int64_t* nodes, const gids::uint64_t* masses,
                        gids::int64_t count, gids::int64_t* flags, gids::int64_t* times, gids::uint64_t* total) {
    const gids::Group<1> lane;
    gids::uint64_t sum = 0;
    for (gids::int64_t c = group_index(lane); c < count; c += group_count(lane)) {
        flags[c] = masses[c] > 0;
        const double time =
            masses[c] > 0 ? gids::candidate_time({k0, k1}, static_cast<gids::uint64_t>(nodes[c]), masses[c]) : 0.0;
        gids::copy_bytes(times + c, &time, sizeof time);
        sum += masses[c];
    }
    gids::int64_t block_sum = 0;
    gids::block_exclusive_scan(static_cast<gids::int64_t>(sum), block_sum);
    if (threadIdx.x != 0 || block_sum == 0) return;
    // relaxed: only summed; read after the kernel.
    gids::atomic_ref<gids::uint64_t>(*total).fetch_add(static_cast<gids::uint64_t>(block_sum),
                                                       gids::memory_order_relaxed);
}
GIDS_REGISTER(ladies_race)

// kept[items[i]] = 1; items are distinct, negative ones are left out.
GIDS_KERNEL mark_items(const gids::int64_t* items, gids::int64_t count, gids::int64_t* kept) {
    const gids::Group<1> lane;
    for (gids::int64_t i = group_index(lane); i < count; i += group_count(lane))
        if (items[i] >= 0) kept[items[i]] = 1;
}
GIDS_REGISTER(mark_items)

GIDS_KERNEL ladies_flag(const gids::int64_t* candidate, const gids::uint64_t* part, const gids::int64_t* kept,
                        gids::int64_t edges, gids::int64_t* flags) {
    const gids::Group<1> lane;
    for (gids::int64_t e = group_index(lane); e < edges; e += group_count(lane))
        flags[e] = kept[candidate[e]] != 0 && part[e] > 0;
}
GIDS_REGISTER(ladies_flag)

// One lane per destination adds in the order of its edges: floating point sums depend on it.
GIDS_KERNEL ladies_weights(const gids::int64_t* begins, gids::int64_t num_dst, const gids::int64_t* flags,
                           const gids::int64_t* before, const gids::int64_t* candidate, const gids::uint64_t* part,
                           const gids::uint64_t* whole, const gids::uint64_t* masses, const gids::uint64_t* total,
                           gids::int64_t chosen, float* out) {
    const gids::Group<1> lane;
    for (gids::int64_t i = group_index(lane); i < num_dst; i += group_count(lane)) {
        const auto weight = [&](gids::int64_t e) {
            return gids::importance(part[e], whole[i], masses[candidate[e]], *total, chosen);
        };
        double sum = 0.0;
        for (gids::int64_t e = begins[i]; e < begins[i + 1]; ++e)
            if (flags[e] != 0) sum += weight(e);
        for (gids::int64_t e = begins[i]; e < begins[i + 1]; ++e)
            if (flags[e] != 0) out[before[e]] = static_cast<float>(weight(e) / sum);
    }
}
GIDS_REGISTER(ladies_weights)
