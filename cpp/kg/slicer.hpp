// Divides subgraphs into slices of bounded size that other subgraphs can use again: SiGMa of paper 003, over atoms.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "kg/atoms.hpp"
#include "kg/slice_row.hpp"
#include "kg/subgraph.hpp"

namespace gids::kg {

struct SlicerOptions {
    int64_t slice_words = 4096;
    double alpha = 0.75;  // share of a row that a slice must fill to be used again
    int near_hops =
        1;  // k of the paper: entities this near are roots of the search, and their slices are matched first
    bool reuse = true;  // false: every subgraph gets slices of its own (for comparison)
};

// A subgraph's atoms and what is known of their neighbourhood: entities in breadth first order, and for the first of
// them, up to edge_ptr.size() - 1, the numbers of their tails.
struct AtomGraph {
    std::span<const int32_t> entities;
    std::span<const uint8_t> distance;
    std::span<const int64_t> edge_ptr;
    std::span<const int32_t> tails;
};

// Slices so far, by number: which atoms each has. Invariant: every subgraph that was sliced is the disjoint union of
// its slices.
class Slicer {
public:
    Slicer(int64_t num_entities, const int64_t* indptr, SlicerOptions options);

    // Divides the subgraph of entities[0]; appends the numbers of its slices, those made new last.
    void slice(const AtomGraph& graph, std::vector<int32_t>& slices);

    // slice() for every query of a batch whose atoms were walked one hop less than its subgraphs have; one list of
    // slices each.
    void slice_all(const Subgraphs& walked, std::vector<int64_t>& ptr, std::vector<int32_t>& slices,
                   std::vector<int64_t>& triples);

    // Puts back slices of a former run: atoms of slice i are ptr[i]..ptr[i + 1]; part as in slice_row.hpp.
    void restore(std::span<const int64_t> ptr, std::span<const int32_t> atoms, std::span<const int32_t> parts);
    // Counts a subgraph of a former run, with its slices and the triples of its atoms.
    void restore_use(std::span<const int32_t> slices, int64_t triples);

    int64_t num_slices() const { return static_cast<int64_t>(parts_.size()); }
    std::span<const int32_t> atoms(int64_t slice) const {
        const auto s = static_cast<size_t>(slice);
        return std::span(atoms_).subspan(static_cast<size_t>(begin_[s]),
                                         static_cast<size_t>(begin_[s + 1] - begin_[s]));
    }
    int32_t part(int64_t slice) const { return parts_[static_cast<size_t>(slice)]; }
    // Row of a slice; atoms must have been gathered.
    void render(int64_t slice, const AtomGather& gather, int32_t* row) const;

    // Figures of the paper: sums over sliced subgraphs.
    struct Figures {
        int64_t subgraphs = 0, triples = 0;  // triples of all subgraphs, counted in each
        int64_t slices = 0;                  // |S|
        int64_t used = 0;                    // sum of |S_q|
        int64_t needed = 0;                  // sum of ceil(|G_q| / h)
        int64_t atom_triples = 0;            // of every atom that occurs, once
        int64_t matched = 0;                 // of used: slices that were there before
    };
    const Figures& figures() const { return figures_; }
    int64_t memory_bytes() const;

private:
    enum class State : uint8_t { kOpen, kVisited, kPacked, kDone };
    struct Candidate {
        int32_t slice;
        int32_t words;
        int32_t uses;
        bool near;
    };
    struct Bin {
        std::vector<int32_t> nodes;
        int32_t words = kHeaderWords;
    };

    int64_t weight(int32_t entity) const {
        return indptr_[static_cast<size_t>(entity) + 1] - indptr_[static_cast<size_t>(entity)];
    }
    int64_t rest(int32_t entity) const { return weight(entity) % slice_triples_; }
    bool is_large(int32_t entity) const { return weight(entity) > slice_triples_; }
    // Triples that the entity has in ordinary slices.
    int64_t packed_triples(int32_t entity) const { return is_large(entity) ? rest(entity) : weight(entity); }

    int32_t add_slice(std::span<const int32_t> entities, int32_t part, int32_t words);
    void full_pieces(const AtomGraph& graph, std::vector<int32_t>& slices);
    void match(const AtomGraph& graph, std::vector<int32_t>& slices);
    void take(const Candidate& candidate, std::vector<int32_t>& slices);
    void generate(const AtomGraph& graph, std::vector<int32_t>& slices);
    void search(const AtomGraph& graph, int32_t root);
    void pack(int32_t node);
    void emit(const AtomGraph& graph, const Bin& bin, std::vector<int32_t>& slices);
    void count_atoms(std::span<const int32_t> entities);

    const int64_t* indptr_;
    const SlicerOptions options_;
    const int64_t slice_triples_;
    const int32_t alpha_words_;

    std::vector<int64_t> begin_{0};  // of a slice's atoms; one more than slices
    std::vector<int32_t> atoms_;
    std::vector<int32_t> parts_, words_, uses_;
    // A slice is found through its lightest atom: whoever contains the slice contains that atom, and few subgraphs do.
    std::vector<int32_t> found_by_;  // entity -> last slice found by it, -1: none
    std::vector<int32_t> found_next_;
    std::unordered_map<int32_t, int32_t> first_piece_;  // large entity -> slice of its first full piece
    std::vector<bool> counted_;                         // entities in figures_.atom_triples
    Figures figures_;

    // Of the subgraph at hand; -1 and empty between calls.
    std::vector<int32_t> node_of_;  // entity -> node
    std::vector<State> state_;
    std::vector<int32_t> cost_;  // words of the atom in a slice
    std::vector<int32_t> stack_, neighbours_;
    std::vector<Bin> bins_;
    std::vector<int32_t> free_tree_;  // tournament of the bins' free words
    int64_t open_nodes_ = 0;

    void clear_bins();
};

}  // namespace gids::kg
