// Neighbour lists in two memories: all of them where the host has them, and pieces of the hottest on the device.
#pragma once

#include "exec.cuh"

namespace gids {

// Two sectors: lists are longer than one on average, and finding a piece costs 16 bytes for 64 of them.
inline constexpr int kPieceBytes = 64;

// Which of 64 pieces in a row are held, and how many are held before them.
struct alignas(16) HeldPieces {
    uint64_t bits;
    int64_t before;

    GIDS_DEVICE bool has(int64_t piece) const { return (bits >> (piece & 63) & 1) != 0; }
    GIDS_DEVICE int64_t rank(int64_t piece) const {
        return before + count_bits64(bits & ((uint64_t{1} << (piece & 63)) - 1));
    }
};

// Neighbours by edge position, from `first` on. One in a held piece is read there, any other over the link.
template <class Index>
struct Neighbors {
    static constexpr int64_t kPiece = kPieceBytes / static_cast<int64_t>(sizeof(Index));

    const Index* all;
    const HeldPieces* held;  // by piece / 64; null: there is one memory
    const Index* values;     // of the held pieces, one behind the other
    int64_t first = 0;

    GIDS_DEVICE Neighbors from(int64_t position) const { return {all, held, values, first + position}; }
    GIDS_DEVICE Index operator[](int64_t position) const {
        const int64_t at = first + position;
        if (held != nullptr) {
            const int64_t piece = at / kPiece;
            const HeldPieces& pieces = held[piece / 64];
            if (pieces.has(piece)) return values[pieces.rank(piece) * kPiece + at % kPiece];
        }
        return all[at];
    }
};

}  // namespace gids
