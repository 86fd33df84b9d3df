// Entry points of neighbour sampling, and of numbering nodes by first occurrence.
#pragma once

#include "entry.cuh"
#include "entry_scan.cuh"
#include "instances.cuh"
#include "neighbors.cuh"
#include "sample.cuh"
#include "unique.cuh"

// Of nodes[i], whose edges begin at first[i] and are degree[i], the prefix sums of how many are sampled. A node that
// does not exist has none: whoever found it has set a flag.
GIDS_KERNEL count_edges(const gids::int64_t* indptr, gids::int64_t num_nodes, const gids::int64_t* nodes,
                        const gids::int64_t* num_dst, gids::int64_t fanout, int replace, gids::int64_t* first,
                        gids::int64_t* degree, gids::int64_t* within, gids::int64_t* before, gids::int64_t* total,
                        gids::uint32_t* turnstile) {
    const auto count_of = [&](gids::int64_t i) {
        const bool exists = static_cast<gids::uint64_t>(nodes[i]) < static_cast<gids::uint64_t>(num_nodes);
        first[i] = exists ? indptr[nodes[i]] : 0;
        degree[i] = exists ? indptr[nodes[i] + 1] - first[i] : 0;
        return gids::sampled_count(degree[i], fanout, replace != 0);
    };
    gids::scan_values(count_of, *num_dst, within, before, total, turnstile);
}
GIDS_REGISTER(count_edges)

namespace gids {

// The edges of each node, by the prefix sums of their numbers; `begins` are those sums as a block's offsets.
template <class Exec, class Choose>
GIDS_DEVICE void choose_by_node(Exec group, Prefix counts, int64_t* begins, const Choose& choose) {
    for (int64_t i = group_index(group); i < counts.count; i += group_count(group)) {
        const int64_t begin = counts[i], end = counts[i + 1];
        if (group.lane() == 0) begins[i] = begin;
        if (begin < end) choose(i, begin, end - begin);
    }
    if (blockIdx.x == 0 && threadIdx.x == 0) begins[counts.count] = *counts.total;
}

template <int Lanes>
GIDS_DEVICE void choose_edges(RandomKey key, const int64_t* nodes, Prefix counts, const int64_t* first,
                              const int64_t* degree, bool replace, int64_t* begins, int64_t* positions) {
    const Group<Lanes> group;
    choose_by_node(group, counts, begins, [&](int64_t i, int64_t begin, int64_t count) {
        choose_uniform(group, key, static_cast<uint64_t>(nodes[i]), first[i], degree[i], count, replace,
                       positions + begin);
    });
}

// Nodes that got ids in the pass before hold the position of their first occurrence; their ids take its place. Later
// positions are greater than both, so inserts may run meanwhile.
GIDS_DEVICE void settle_ids(UniqueTable table, const int64_t* slot_of_id, const int64_t* begin, const int64_t* end) {
    if (begin == nullptr) return;
    const Group<1> lane;
    for (int64_t id = *begin + group_index(lane); id < *end; id += group_count(lane))
        // relaxed: read after the kernel; inserts only compare it with positions that are greater.
        atomic_ref<uint64_t>(table.positions[slot_of_id[id]]).store(static_cast<uint64_t>(id), memory_order_relaxed);
}

template <class Index>
GIDS_DEVICE void gather_neighbors(Neighbors<Index> neighbors, const int64_t* positions, int64_t edges, int64_t num_src,
                                  int64_t* out, uint32_t* bad, UniqueTable table, int64_t base, int64_t* slot_of) {
    const Group<1> lane;
    for (int64_t e = group_index(lane); e < edges; e += group_count(lane)) {
        auto node = static_cast<int64_t>(neighbors[positions[e]]);
        if (static_cast<uint64_t>(node) >= static_cast<uint64_t>(num_src)) {
            // relaxed: any lane that sees a bad neighbour sets it; the host reads it after the kernel.
            atomic_ref<uint32_t>(*bad).store(1u, memory_order_relaxed);
            node = 0;
        }
        out[e] = node;
        if (slot_of != nullptr)
            slot_of[e] = static_cast<int64_t>(
                unique_insert(table, static_cast<uint64_t>(node), static_cast<uint64_t>(base + e)));
    }
}

}  // namespace gids

#define GIDS_CHOOSE_EDGES(lanes)                                                                                   \
    GIDS_WIDE_KERNEL choose_edges_##lanes(gids::uint32_t k0, gids::uint32_t k1, const gids::int64_t* nodes,        \
                                          const gids::int64_t* num_dst, const gids::int64_t* first,                \
                                          const gids::int64_t* degree, const gids::int64_t* within,                \
                                          const gids::int64_t* before, const gids::int64_t* total, int replace,    \
                                          gids::int64_t* begins, gids::int64_t* positions) {                       \
        gids::choose_edges<lanes>({k0, k1}, nodes, {within, before, total, *num_dst}, first, degree, replace != 0, \
                                  begins, positions);                                                              \
    }                                                                                                              \
    GIDS_REGISTER(choose_edges_##lanes)
GIDS_LANES_PER_NODE(GIDS_CHOOSE_EDGES)

// Neighbours by edge positions. Where slot_of is not null, edge e is inserted into the table as occurrence base + e of
// its neighbour, and ids [*id_begin, *id_end) are settled.
#define GIDS_GATHER_NEIGHBORS(bits, index)                                                                             \
    GIDS_KERNEL gather_neighbors_##bits(const index* indices, const gids::HeldPieces* held, const index* values,       \
                                        const gids::int64_t* positions, const gids::int64_t* edges,                    \
                                        gids::int64_t num_src, gids::int64_t* out, gids::uint32_t* bad,                \
                                        gids::uint64_t* slot_nodes, gids::uint64_t* slot_positions, int capacity_log2, \
                                        gids::int64_t base, gids::int64_t* slot_of, const gids::int64_t* slot_of_id,   \
                                        const gids::int64_t* id_begin, const gids::int64_t* id_end) {                  \
        const gids::UniqueTable table{slot_nodes, slot_positions, capacity_log2};                                      \
        gids::settle_ids(table, slot_of_id, id_begin, id_end);                                                         \
        gids::gather_neighbors<index>({indices, held, values}, positions, *edges, num_src, out, bad, table, base,      \
                                      slot_of);                                                                        \
    }                                                                                                                  \
    GIDS_REGISTER(gather_neighbors_##bits)
GIDS_INDEX_TYPES(GIDS_GATHER_NEIGHBORS)

// Fills the held pieces of a relation's lists, once.
#define GIDS_HOLD_NEIGHBORS(bits, index)                                                                              \
    GIDS_KERNEL hold_neighbors_##bits(const index* indices, gids::int64_t edges, const gids::HeldPieces* held,        \
                                      index* values) {                                                                \
        constexpr gids::int64_t kPiece = gids::Neighbors<index>::kPiece;                                              \
        const gids::Group<1> lane;                                                                                    \
        for (gids::int64_t e = group_index(lane); e < edges; e += group_count(lane)) {                                \
            const gids::int64_t piece = e / kPiece;                                                                   \
            if (held[piece / 64].has(piece)) values[held[piece / 64].rank(piece) * kPiece + e % kPiece] = indices[e]; \
        }                                                                                                             \
    }                                                                                                                 \
    GIDS_REGISTER(hold_neighbors_##bits)
GIDS_INDEX_TYPES(GIDS_HOLD_NEIGHBORS)

// out[i] = from[index[i]] for i < *count + more; count may be null.
GIDS_KERNEL take_values(const gids::int64_t* from, const gids::int64_t* index, const gids::int64_t* count,
                        gids::int64_t more, gids::int64_t* out) {
    const gids::Group<1> lane;
    const gids::int64_t all = (count != nullptr ? *count : 0) + more;
    for (gids::int64_t i = group_index(lane); i < all; i += group_count(lane)) out[i] = from[index[i]];
}
GIDS_REGISTER(take_values)

// Occurrence i of `ids` has position base + i, which is at least the number of nodes that have ids. Where bad is not
// null, it is set by an id outside [0, limit), and node 0 taken instead. Ids [*id_begin, *id_end) are settled.
GIDS_KERNEL unique_insert_nodes(gids::uint64_t* slot_nodes, gids::uint64_t* slot_positions, int capacity_log2,
                                const gids::int64_t* ids, const gids::int64_t* count, gids::int64_t base,
                                gids::int64_t limit, gids::uint32_t* bad, gids::int64_t* slot_of,
                                const gids::int64_t* slot_of_id, const gids::int64_t* id_begin,
                                const gids::int64_t* id_end) {
    const gids::UniqueTable table{slot_nodes, slot_positions, capacity_log2};
    const gids::Group<1> lane;
    gids::settle_ids(table, slot_of_id, id_begin, id_end);
    for (gids::int64_t i = group_index(lane); i < *count; i += group_count(lane)) {
        auto node = static_cast<gids::uint64_t>(ids[i]);
        if (bad != nullptr && node >= static_cast<gids::uint64_t>(limit)) {
            // relaxed: the host reads it after the kernel.
            gids::atomic_ref<gids::uint32_t>(*bad).store(1u, gids::memory_order_relaxed);
            node = 0;
        }
        slot_of[i] =
            static_cast<gids::int64_t>(gids::unique_insert(table, node, static_cast<gids::uint64_t>(base + i)));
    }
}
GIDS_REGISTER(unique_insert_nodes)

// Prefix sums of the first occurrences.
GIDS_KERNEL unique_flag_firsts(gids::uint64_t* slot_nodes, gids::uint64_t* slot_positions, int capacity_log2,
                               const gids::int64_t* slot_of, const gids::int64_t* count, gids::int64_t base,
                               gids::int64_t* within, gids::int64_t* before, gids::int64_t* total,
                               gids::uint32_t* turnstile) {
    const gids::UniqueTable table{slot_nodes, slot_positions, capacity_log2};
    const auto is_first = [&](gids::int64_t i) -> gids::int64_t {
        return gids::unique_is_first(table, static_cast<gids::uint64_t>(slot_of[i]),
                                     static_cast<gids::uint64_t>(base + i));
    };
    gids::scan_values(is_first, *count, within, before, total, turnstile);
}
GIDS_REGISTER(unique_flag_firsts)

// Ids of all occurrences: new nodes are numbered from *size in the order of their first occurrences and added to the
// list of nodes; *new_size is then their number. The table learns their ids in the next pass.
GIDS_KERNEL unique_number_nodes(gids::uint64_t* slot_nodes, gids::uint64_t* slot_positions, int capacity_log2,
                                const gids::int64_t* slot_of, const gids::int64_t* count, gids::int64_t base,
                                const gids::int64_t* within, const gids::int64_t* before, const gids::int64_t* total,
                                const gids::int64_t* size, gids::int64_t* new_size, gids::int64_t* nodes,
                                gids::int64_t* slot_of_id, gids::int64_t* out) {
    const gids::UniqueTable table{slot_nodes, slot_positions, capacity_log2};
    const gids::Prefix firsts{within, before, total, *count};
    const gids::Group<1> lane;
    for (gids::int64_t i = group_index(lane); i < *count; i += group_count(lane)) {
        const auto slot = static_cast<gids::uint64_t>(slot_of[i]);
        const auto first = static_cast<gids::int64_t>(gids::unique_id(table, slot));
        const gids::int64_t id = first >= base ? *size + firsts[first - base] : first;
        out[i] = id;
        if (first == base + i) {
            nodes[id] = static_cast<gids::int64_t>(slot_nodes[slot]);
            slot_of_id[id] = slot_of[i];
        }
    }
    if (blockIdx.x == 0 && threadIdx.x == 0) *new_size = *size + *total;
}
GIDS_REGISTER(unique_number_nodes)
