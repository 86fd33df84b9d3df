// How a slice lies in its row: words of 32 bits, so that a row is a row of an int32 table.
//     [atoms, part] [entity, triples] * atoms [relation, tail] * triples, and zeros
// part is -1, or the number of the piece where the slice is a full piece of one large atom. Pieces of an atom follow
// each other by that number, and the rest of the atom, in a slice with part -1, comes last.
#pragma once

#include <cstdint>
#include <string>

#include "errors.hpp"
#include "kg/atoms.hpp"

namespace gids::kg {

constexpr int64_t kHeaderWords = 2;
constexpr int64_t kAtomWords = 2;
constexpr int64_t kTripleWords = 2;

// Most triples of a row: those of one atom.
constexpr int64_t triples_of(int64_t slice_words) { return (slice_words - kHeaderWords - kAtomWords) / kTripleWords; }

// Calls body(entity, part, triples, count) for every atom of a row; throws DatasetError where the row contradicts
// itself.
template <class Body>
void for_atoms(const int32_t* row, int64_t slice_words, Body&& body) {
    const int64_t atoms = row[0];
    int64_t at = kHeaderWords + atoms * kAtomWords;
    if (atoms < 0 || at > slice_words)
        throw DatasetError("a slice is damaged: it claims " + std::to_string(atoms) + " atoms");
    for (int64_t i = 0; i < atoms; ++i) {
        const int32_t* entry = row + kHeaderWords + i * kAtomWords;
        const int64_t count = entry[1];
        if (count < 0 || at + count * kTripleWords > slice_words)
            throw DatasetError("a slice is damaged: it claims " + std::to_string(count) + " triples of entity " +
                               std::to_string(entry[0]));
        body(entry[0], row[1], reinterpret_cast<const Triple*>(row + at), count);
        at += count * kTripleWords;
    }
}

}  // namespace gids::kg
