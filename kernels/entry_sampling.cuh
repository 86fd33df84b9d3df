// Entry points of neighbour sampling, and of numbering nodes by first occurrence.
#pragma once

#include "entry.cuh"
#include "instances.cuh"
#include "sample.cuh"
#include "unique.cuh"

// counts[i] in-edges are sampled of nodes[i]; the node's edges begin at first[i] and there are degree[i] of them.
GIDS_KERNEL count_edges(const gids::int64_t* indptr, const gids::int64_t* nodes, gids::int64_t num_dst,
                        gids::int64_t fanout, int replace, gids::int64_t* first, gids::int64_t* degree,
                        gids::int64_t* counts) {
    const gids::Group<1> lane;
    for (gids::int64_t i = group_index(lane); i < num_dst; i += group_count(lane)) {
        first[i] = indptr[nodes[i]];
        degree[i] = indptr[nodes[i] + 1] - first[i];
        counts[i] = gids::sampled_count(degree[i], fanout, replace != 0);
    }
}
GIDS_REGISTER(count_edges)

namespace gids {

template <int Lanes>
GIDS_DEVICE void choose_edges(RandomKey key, const int64_t* nodes, int64_t num_dst, const int64_t* first,
                              const int64_t* degree, const int64_t* begins, bool replace, int64_t* positions) {
    const Group<Lanes> group;
    for (int64_t i = group_index(group); i < num_dst; i += group_count(group))
        choose_uniform(group, key, static_cast<uint64_t>(nodes[i]), first[i], degree[i], begins[i + 1] - begins[i],
                       replace, positions + begins[i]);
}

template <class Index>
GIDS_DEVICE void gather_neighbors(const Index* indices, const int64_t* positions, int64_t edges, int64_t num_src,
                                  int64_t* out, uint32_t* bad) {
    const Group<1> lane;
    for (int64_t e = group_index(lane); e < edges; e += group_count(lane)) {
        const auto node = static_cast<int64_t>(indices[positions[e]]);
        // relaxed: any lane that sees a bad neighbour sets it; the host reads it after the kernel.
        if (static_cast<uint64_t>(node) >= static_cast<uint64_t>(num_src))
            atomic_ref<uint32_t>(*bad).store(1u, memory_order_relaxed);
        out[e] = node;
    }
}

}  // namespace gids

#define GIDS_CHOOSE_EDGES(lanes)                                                                                     \
    GIDS_KERNEL choose_edges_##lanes(gids::uint32_t k0, gids::uint32_t k1, const gids::int64_t* nodes,               \
                                     gids::int64_t num_dst, const gids::int64_t* first, const gids::int64_t* degree, \
                                     const gids::int64_t* begins, int replace, gids::int64_t* positions) {           \
        gids::choose_edges<lanes>({k0, k1}, nodes, num_dst, first, degree, begins, replace != 0, positions);         \
    }                                                                                                                \
    GIDS_REGISTER(choose_edges_##lanes)
GIDS_LANES_PER_NODE(GIDS_CHOOSE_EDGES)

#define GIDS_GATHER_NEIGHBORS(bits, index)                                                                         \
    GIDS_KERNEL gather_neighbors_##bits(const index* indices, const gids::int64_t* positions, gids::int64_t edges, \
                                        gids::int64_t num_src, gids::int64_t* out, gids::uint32_t* bad) {          \
        gids::gather_neighbors(indices, positions, edges, num_src, out, bad);                                      \
    }                                                                                                              \
    GIDS_REGISTER(gather_neighbors_##bits)
GIDS_INDEX_TYPES(GIDS_GATHER_NEIGHBORS)

// out[i] = from[index[i]]: ids of edges by their positions, nodes by their ids.
GIDS_KERNEL take_values(const gids::int64_t* from, const gids::int64_t* index, gids::int64_t count,
                        gids::int64_t* out) {
    const gids::Group<1> lane;
    for (gids::int64_t i = group_index(lane); i < count; i += group_count(lane)) out[i] = from[index[i]];
}
GIDS_REGISTER(take_values)

// Sets *bad where an id is outside [0, limit).
GIDS_KERNEL check_ids(const gids::int64_t* ids, gids::int64_t count, gids::int64_t limit, gids::uint32_t* bad) {
    const gids::Group<1> lane;
    for (gids::int64_t i = group_index(lane); i < count; i += group_count(lane))
        if (static_cast<gids::uint64_t>(ids[i]) >= static_cast<gids::uint64_t>(limit))
            gids::atomic_ref<gids::uint32_t>(*bad).store(1u, gids::memory_order_relaxed);
}
GIDS_REGISTER(check_ids)

GIDS_KERNEL unique_clear_slots(gids::uint64_t* slot_nodes, gids::uint64_t* slot_positions, int capacity_log2) {
    const gids::UniqueTable table{slot_nodes, slot_positions, capacity_log2};
    const gids::Group<1> lane;
    const auto capacity = static_cast<gids::int64_t>(table.capacity());
    for (gids::int64_t slot = group_index(lane); slot < capacity; slot += group_count(lane))
        gids::unique_clear(table, static_cast<gids::uint64_t>(slot));
}
GIDS_REGISTER(unique_clear_slots)

// Occurrence i of `ids` has position base + i; base is the number of nodes that have ids already.
GIDS_KERNEL unique_insert_nodes(gids::uint64_t* slot_nodes, gids::uint64_t* slot_positions, int capacity_log2,
                                const gids::int64_t* ids, gids::int64_t count, gids::int64_t base,
                                gids::int64_t* slot_of) {
    const gids::UniqueTable table{slot_nodes, slot_positions, capacity_log2};
    const gids::Group<1> lane;
    for (gids::int64_t i = group_index(lane); i < count; i += group_count(lane))
        slot_of[i] = static_cast<gids::int64_t>(
            gids::unique_insert(table, static_cast<gids::uint64_t>(ids[i]), static_cast<gids::uint64_t>(base + i)));
}
GIDS_REGISTER(unique_insert_nodes)

GIDS_KERNEL unique_flag_firsts(gids::uint64_t* slot_nodes, gids::uint64_t* slot_positions, int capacity_log2,
                               const gids::int64_t* slot_of, gids::int64_t count, gids::int64_t base,
                               gids::int64_t* flags) {
    const gids::UniqueTable table{slot_nodes, slot_positions, capacity_log2};
    const gids::Group<1> lane;
    for (gids::int64_t i = group_index(lane); i < count; i += group_count(lane))
        flags[i] = gids::unique_is_first(table, static_cast<gids::uint64_t>(slot_of[i]),
                                         static_cast<gids::uint64_t>(base + i));
}
GIDS_REGISTER(unique_flag_firsts)

// First occurrences give their node the id base + before[i] and add it to the list of nodes.
GIDS_KERNEL unique_assign_ids(gids::uint64_t* slot_nodes, gids::uint64_t* slot_positions, int capacity_log2,
                              const gids::int64_t* ids, const gids::int64_t* slot_of, gids::int64_t count,
                              gids::int64_t base, const gids::int64_t* flags, const gids::int64_t* before,
                              gids::int64_t* nodes) {
    const gids::UniqueTable table{slot_nodes, slot_positions, capacity_log2};
    const gids::Group<1> lane;
    for (gids::int64_t i = group_index(lane); i < count; i += group_count(lane)) {
        if (flags[i] == 0) continue;
        const gids::int64_t id = base + before[i];
        gids::unique_assign(table, static_cast<gids::uint64_t>(slot_of[i]), static_cast<gids::uint64_t>(id));
        nodes[id] = ids[i];
    }
}
GIDS_REGISTER(unique_assign_ids)

GIDS_KERNEL unique_read_ids(gids::uint64_t* slot_nodes, gids::uint64_t* slot_positions, int capacity_log2,
                            const gids::int64_t* slot_of, gids::int64_t count, gids::int64_t* out) {
    const gids::UniqueTable table{slot_nodes, slot_positions, capacity_log2};
    const gids::Group<1> lane;
    for (gids::int64_t i = group_index(lane); i < count; i += group_count(lane))
        out[i] = static_cast<gids::int64_t>(gids::unique_id(table, static_cast<gids::uint64_t>(slot_of[i])));
}
GIDS_REGISTER(unique_read_ids)
