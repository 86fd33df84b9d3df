// Entry point between storage and the group's buffer: rows come out of reads that were merged over gaps.
#pragma once

#include "entry.cuh"
#include "gather.cuh"

// Piece i is bytes[i] long, from staging + from[i] to out + to[i]. Pieces do not overlap.
GIDS_KERNEL unpack_pieces(const gids::uint8_t* staging, const gids::int64_t* from, const gids::int64_t* to,
                          const gids::int64_t* bytes, gids::int64_t count, gids::uint8_t* out) {
    const gids::Group<32> warp;
    for (gids::int64_t i = group_index(warp); i < count; i += group_count(warp))
        gids::copy_row(warp, out + to[i], staging + from[i], bytes[i]);
}
GIDS_REGISTER(unpack_pieces)
