// Entry points that move rows: gather with conversion out of cache, host buffer and group, and admission to the cache,
// by a copy or, where cache and groups share an arena of slots, by handing the row's slot over.
#pragma once

#include "convert.cuh"
#include "entry.cuh"
#include "gather.cuh"
#include "instances.cuh"

namespace gids {

// Numbers of dtypes: the order of gids.table.DTYPES.
enum DTypeNumber : int { kF16, kBF16, kF32, kF64, kU8, kI8, kI16, kI32, kI64 };

template <class To, class Exec>
GIDS_DEVICE void gather_row_to(const Exec& exec, To* out, const uint8_t* row, int from, int64_t dim) {
    switch (from) {  // the same for all lanes of a launch
        case kF16:
            return convert_row(exec, out, reinterpret_cast<const Float16*>(row), dim);
        case kBF16:
            return convert_row(exec, out, reinterpret_cast<const BFloat16*>(row), dim);
        case kF32:
            return convert_row(exec, out, reinterpret_cast<const float*>(row), dim);
        case kF64:
            return convert_row(exec, out, reinterpret_cast<const double*>(row), dim);
        case kU8:
            return convert_row(exec, out, reinterpret_cast<const uint8_t*>(row), dim);
        case kI8:
            return convert_row(exec, out, reinterpret_cast<const int8_t*>(row), dim);
        case kI16:
            return convert_row(exec, out, reinterpret_cast<const int16_t*>(row), dim);
        case kI32:
            return convert_row(exec, out, reinterpret_cast<const int32_t*>(row), dim);
        default:
            return convert_row(exec, out, reinterpret_cast<const int64_t*>(row), dim);
    }
}

template <int Lanes>
GIDS_DEVICE void gather_rows(const AddressSpace& space, const int64_t* location, int64_t count, int64_t dim, int to,
                             int from, uint8_t* out, uint32_t* bad) {
    const Group<Lanes> group;
    for (int64_t i = group_index(group); i < count; i += group_count(group)) {
        if (!space.holds(location[i])) {
            // relaxed: a flag that the host reads after the kernel.
            if (group.lane() == 0) atomic_ref<uint32_t>(*bad).store(1u, memory_order_relaxed);
            continue;
        }
        const uint8_t* row = space.row(location[i]);
        if (to == from) copy_row(group, out + i * space.row_bytes, row, space.row_bytes);
        else if (to == kF16) gather_row_to(group, reinterpret_cast<Float16*>(out) + i * dim, row, from, dim);
        else if (to == kBF16) gather_row_to(group, reinterpret_cast<BFloat16*>(out) + i * dim, row, from, dim);
        else if (to == kF32) gather_row_to(group, reinterpret_cast<float*>(out) + i * dim, row, from, dim);
        else gather_row_to(group, reinterpret_cast<double*>(out) + i * dim, row, from, dim);
    }
}

template <int Lanes>
GIDS_DEVICE void admit_rows(uint8_t* cache, const int64_t* slots, const uint8_t* group_rows, const int64_t* positions,
                            int64_t begin, int64_t end, int64_t row_bytes) {
    const Group<Lanes> group;
    for (int64_t k = begin + group_index(group); k < end; k += group_count(group))
        copy_row(group, cache + slots[k] * row_bytes, group_rows + positions[k] * row_bytes, row_bytes);
}

}  // namespace gids

#define GIDS_GATHER_ROWS(lanes)                                                                                        \
    GIDS_KERNEL gather_rows_##lanes(const gids::uint8_t* cache, const gids::uint8_t* host, const gids::uint8_t* read,  \
                                    gids::int64_t capacity, gids::int64_t host_rows, gids::int64_t read_rows,          \
                                    gids::int64_t row_bytes, const gids::int64_t* location, gids::int64_t count,       \
                                    gids::int64_t dim, int to, int from, gids::uint8_t* out, gids::uint32_t* bad) {    \
        gids::gather_rows<lanes>({cache, host, read, capacity, host_rows, read_rows, row_bytes}, location, count, dim, \
                                 to, from, out, bad);                                                                  \
    }                                                                                                                  \
    GIDS_REGISTER(gather_rows_##lanes)                                                                                 \
    GIDS_KERNEL admit_rows_##lanes(gids::uint8_t* cache, const gids::int64_t* slots, const gids::uint8_t* read,        \
                                   const gids::int64_t* positions, gids::int64_t begin, gids::int64_t end,             \
                                   gids::int64_t row_bytes) {                                                          \
        gids::admit_rows<lanes>(cache, slots, read, positions, begin, end, row_bytes);                                 \
    }                                                                                                                  \
    GIDS_REGISTER(admit_rows_##lanes)
GIDS_LANES_PER_ROW(GIDS_GATHER_ROWS)

// Locations of a plan as places: [0, A) slots of the arena, [A, A + H) host buffer, then rows of the group outside the
// arena. `cache_place` and `group_place` tell where each cache slot and each position of the group is.
GIDS_KERNEL resolve_places(const gids::int64_t* location, gids::int64_t count, gids::int64_t capacity,
                           gids::int64_t host_rows, gids::int64_t group_rows, const gids::int64_t* cache_place,
                           const gids::int64_t* group_place, gids::int64_t arena_rows, gids::int64_t* place) {
    const gids::Group<1> lane;
    for (gids::int64_t i = group_index(lane); i < count; i += group_count(lane)) {
        const gids::int64_t at = location[i], position = at - capacity - host_rows;
        if (at < 0 || position >= group_rows) place[i] = -1;
        else if (at < capacity) place[i] = cache_place[at];
        else place[i] = position < 0 ? arena_rows + at - capacity : group_place[position];
    }
}
GIDS_REGISTER(resolve_places)

// Admissions that copy nothing: the cache's slot is from now on where the row was read to. Rows outside the arena are
// left to admit_rows.
GIDS_KERNEL admit_places(const gids::int64_t* slots, const gids::int64_t* positions, gids::int64_t begin,
                         gids::int64_t end, const gids::int64_t* group_place, gids::int64_t arena_rows,
                         gids::int64_t* cache_place) {
    const gids::Group<1> lane;
    for (gids::int64_t k = begin + group_index(lane); k < end; k += group_count(lane))
        if (group_place[positions[k]] < arena_rows) cache_place[slots[k]] = group_place[positions[k]];
}
GIDS_REGISTER(admit_places)

// Half-precision rows that begin at any byte, as they come from storage, to float32.
GIDS_KERNEL widen_rows(int conversion, const gids::uint8_t* from, gids::int64_t row_stride, gids::int64_t rows,
                       gids::int64_t dim, gids::uint32_t* to) {
    const gids::Group<32> warp;
    for (gids::int64_t i = group_index(warp); i < rows; i += group_count(warp))
        gids::widen_row(warp, static_cast<gids::Conversion>(conversion), from + i * row_stride, to + i * dim, dim);
}
GIDS_REGISTER(widen_rows)
