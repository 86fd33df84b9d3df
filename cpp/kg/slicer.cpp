// SiGMa: match slices that are there, then make new ones by depth first search with first fit.
#include "kg/slicer.hpp"

#include <algorithm>
#include <cmath>
#include <string>
#include <tuple>
#include <utility>

namespace gids::kg {

Slicer::Slicer(int64_t num_entities, const int64_t* indptr, SlicerOptions options)
    : indptr_(indptr),
      options_(options),
      slice_triples_(triples_of(options.slice_words)),
      alpha_words_(static_cast<int32_t>(std::ceil(options.alpha * static_cast<double>(options.slice_words)))),
      found_by_(static_cast<size_t>(num_entities), -1),
      counted_(static_cast<size_t>(num_entities), false),
      node_of_(static_cast<size_t>(num_entities), -1) {
    if (slice_triples_ < 1)
        throw ConfigError("slice_words must be at least " + std::to_string(kHeaderWords + kAtomWords + kTripleWords) +
                          " (got " + std::to_string(options.slice_words) + ")");
    if (options.alpha < 0 || options.alpha > 1)
        throw ConfigError("alpha must be in [0, 1] (got " + std::to_string(options.alpha) + ")");
}

int32_t Slicer::add_slice(std::span<const int32_t> entities, int32_t part, int32_t words) {
    const auto number = static_cast<int32_t>(parts_.size());
    atoms_.insert(atoms_.end(), entities.begin(), entities.end());
    begin_.push_back(static_cast<int64_t>(atoms_.size()));
    parts_.push_back(part);
    words_.push_back(words);
    uses_.push_back(0);
    int32_t next = -1;
    if (part < 0) {
        const int32_t key = *std::min_element(entities.begin(), entities.end(), [this](int32_t a, int32_t b) {
            return std::tuple(weight(a), a) < std::tuple(weight(b), b);
        });
        next = std::exchange(found_by_[static_cast<size_t>(key)], number);
    } else if (part == 0) {
        first_piece_.emplace(entities[0], number);
    }
    found_next_.push_back(next);
    figures_.slices = num_slices();
    return number;
}

void Slicer::slice(const AtomGraph& graph, std::vector<int32_t>& slices) {
    const size_t nodes = graph.entities.size();
    state_.assign(nodes, State::kOpen);
    cost_.assign(nodes, 0);
    open_nodes_ = 0;
    int64_t triples = 0;
    for (size_t i = 0; i < nodes; ++i) {
        const int32_t entity = graph.entities[i];
        node_of_[static_cast<size_t>(entity)] = static_cast<int32_t>(i);
        triples += weight(entity);
        const int64_t packed = packed_triples(entity);
        if (packed == 0) {
            state_[i] = State::kDone;
            continue;
        }
        cost_[i] = static_cast<int32_t>(kAtomWords + packed * kTripleWords);
        ++open_nodes_;
    }
    const auto before = static_cast<int32_t>(num_slices());
    const size_t first = slices.size();
    full_pieces(graph, slices);
    if (options_.reuse) match(graph, slices);
    generate(graph, slices);
    for (const int32_t entity : graph.entities) node_of_[static_cast<size_t>(entity)] = -1;
    for (size_t i = first; i < slices.size(); ++i) {
        ++uses_[static_cast<size_t>(slices[i])];
        figures_.matched += slices[i] < before;
    }
    figures_.subgraphs += 1;
    figures_.triples += triples;
    figures_.used += static_cast<int64_t>(slices.size() - first);
    figures_.needed += (triples + slice_triples_ - 1) / slice_triples_;
    count_atoms(graph.entities);
}

void Slicer::slice_all(const Subgraphs& walked, std::vector<int64_t>& ptr, std::vector<int32_t>& slices,
                       std::vector<int64_t>& triples) {
    ptr.assign(1, 0);
    std::vector<int64_t> edge_ptr;
    std::vector<int32_t> tails;
    for (int64_t q = 0; q + 1 < walked.node_ptr.size(); ++q) {
        const int64_t node = walked.node_ptr[q], edge = walked.edge_ptr[q];
        const auto nodes = static_cast<size_t>(walked.node_ptr[q + 1] - node);
        const auto edges = static_cast<size_t>(walked.edge_ptr[q + 1] - edge);
        // Triples are in the order of their heads, so offsets follow from counting.
        const int64_t heads = edges == 0 ? 0 : walked.heads[walked.edge_ptr[q + 1] - 1] - node + 1;
        edge_ptr.assign(static_cast<size_t>(heads) + 1, 0);
        tails.resize(edges);
        for (size_t e = 0; e < edges; ++e) {
            const int64_t at = edge + static_cast<int64_t>(e);
            ++edge_ptr[static_cast<size_t>(walked.heads[at] - node) + 1];
            tails[e] = static_cast<int32_t>(walked.tails[at] - node);
        }
        for (size_t i = 1; i < edge_ptr.size(); ++i) edge_ptr[i] += edge_ptr[i - 1];
        const std::span entities(walked.entities.data() + node, nodes);
        slice({entities, {walked.distance.data() + node, nodes}, edge_ptr, tails}, slices);
        ptr.push_back(static_cast<int64_t>(slices.size()));
        int64_t total = 0;
        for (const int32_t entity : entities) total += weight(entity);
        triples.push_back(total);
    }
}

void Slicer::count_atoms(std::span<const int32_t> entities) {
    for (const int32_t entity : entities) {
        if (counted_[static_cast<size_t>(entity)]) continue;
        counted_[static_cast<size_t>(entity)] = true;
        figures_.atom_triples += weight(entity);
    }
}

void Slicer::full_pieces(const AtomGraph& graph, std::vector<int32_t>& slices) {
    for (const int32_t entity : graph.entities) {
        if (!is_large(entity)) continue;
        const auto pieces = static_cast<int32_t>(weight(entity) / slice_triples_);
        const auto found = first_piece_.find(entity);
        int32_t first = found == first_piece_.end() || !options_.reuse ? -1 : found->second;
        if (first < 0) {
            first = static_cast<int32_t>(num_slices());
            const auto words = static_cast<int32_t>(options_.slice_words);
            for (int32_t part = 0; part < pieces; ++part) add_slice({&entity, 1}, part, words);
        }
        for (int32_t part = 0; part < pieces; ++part) slices.push_back(first + part);
    }
}

void Slicer::match(const AtomGraph& graph, std::vector<int32_t>& slices) {
    std::vector<Candidate> candidates;
    for (size_t i = 0; i < graph.entities.size(); ++i) {
        if (state_[i] != State::kOpen) continue;
        const int32_t entity = graph.entities[i];
        for (int32_t s = found_by_[static_cast<size_t>(entity)]; s >= 0; s = found_next_[static_cast<size_t>(s)]) {
            bool near = false, inside = true;
            for (const int32_t atom : atoms(s)) {
                const int32_t node = node_of_[static_cast<size_t>(atom)];
                inside = node >= 0 && state_[static_cast<size_t>(node)] == State::kOpen;
                if (!inside) break;
                near |= graph.distance[static_cast<size_t>(node)] <= options_.near_hops;
            }
            if (inside) candidates.push_back({s, words_[static_cast<size_t>(s)], uses_[static_cast<size_t>(s)], near});
        }
    }
    // Near ones by past use, then the others by payload, then, where one covers all that is left, slices below alpha.
    const auto rank = [this](const Candidate& c) {
        const int stage = c.words < alpha_words_ ? 2 : c.near ? 0 : 1;
        return std::tuple(stage, stage == 0 ? -c.uses : 0, -c.words, c.slice);
    };
    std::sort(candidates.begin(), candidates.end(),
              [&rank](const Candidate& a, const Candidate& b) { return rank(a) < rank(b); });
    for (const Candidate& candidate : candidates) {
        const bool low = candidate.words < alpha_words_;
        if (low && static_cast<int64_t>(atoms(candidate.slice).size()) != open_nodes_) continue;
        take(candidate, slices);
    }
}

void Slicer::take(const Candidate& candidate, std::vector<int32_t>& slices) {
    const auto members = atoms(candidate.slice);
    for (const int32_t atom : members)
        if (state_[static_cast<size_t>(node_of_[static_cast<size_t>(atom)])] != State::kOpen) return;
    for (const int32_t atom : members) state_[static_cast<size_t>(node_of_[static_cast<size_t>(atom)])] = State::kDone;
    open_nodes_ -= static_cast<int64_t>(members.size());
    slices.push_back(candidate.slice);
}

void Slicer::clear_bins() {
    bins_.clear();
    free_tree_.assign(2, 0);
}

// First fit in logarithmic time: a tournament tree over the bins' free words, leaves from free_tree_.size() / 2 on.
void Slicer::pack(int32_t node) {
    const int32_t cost = cost_[static_cast<size_t>(node)];
    size_t leaves = free_tree_.size() / 2;
    size_t at = 1;
    if (free_tree_[1] >= cost) {
        while (at < leaves) at = free_tree_[2 * at] >= cost ? 2 * at : 2 * at + 1;
    } else {
        const size_t bin = bins_.size();
        if (bin >= leaves) {
            // Twice the leaves: the old tree becomes the left half.
            std::vector<int32_t> wider(leaves * 4, 0);
            for (size_t i = 0; i < bins_.size(); ++i)
                wider[leaves * 2 + i] = static_cast<int32_t>(options_.slice_words) - bins_[i].words;
            leaves *= 2;
            for (size_t i = leaves; i-- > 1;) wider[i] = std::max(wider[2 * i], wider[2 * i + 1]);
            free_tree_ = std::move(wider);
        }
        bins_.emplace_back();
        at = leaves + bin;
    }
    Bin& bin = bins_[at - leaves];
    bin.nodes.push_back(node);
    bin.words += cost;
    free_tree_[at] = static_cast<int32_t>(options_.slice_words) - bin.words;
    for (at /= 2; at >= 1; at /= 2) free_tree_[at] = std::max(free_tree_[2 * at], free_tree_[2 * at + 1]);
}

void Slicer::emit(const AtomGraph& graph, const Bin& bin, std::vector<int32_t>& slices) {
    std::vector<int32_t> entities;
    entities.reserve(bin.nodes.size());
    for (const int32_t node : bin.nodes) {
        entities.push_back(graph.entities[static_cast<size_t>(node)]);
        state_[static_cast<size_t>(node)] = State::kDone;
    }
    slices.push_back(add_slice(entities, -1, bin.words));
}

void Slicer::generate(const AtomGraph& graph, std::vector<int32_t>& slices) {
    const auto nodes = static_cast<int32_t>(graph.entities.size());
    // An atom that fills a slice to alpha is one by itself: it fits every subgraph that has the atom.
    for (int32_t node = 0; node < nodes; ++node) {
        const auto n = static_cast<size_t>(node);
        if (state_[n] != State::kOpen || cost_[n] + kHeaderWords < alpha_words_) continue;
        emit(graph, Bin{{node}, static_cast<int32_t>(cost_[n] + kHeaderWords)}, slices);
    }
    for (int32_t root = 0; root < nodes; ++root) {
        const int hop = graph.distance[static_cast<size_t>(root)];
        if (hop == 0) continue;
        if (hop > options_.near_hops) break;  // breadth first order
        clear_bins();
        search(graph, root);
        for (const Bin& bin : bins_) {
            if (bin.words >= alpha_words_) emit(graph, bin, slices);
            else
                for (const int32_t node : bin.nodes) state_[static_cast<size_t>(node)] = State::kOpen;  // packed again
        }
    }
    std::vector<int32_t> left;
    for (int32_t node = 0; node < nodes; ++node)
        if (state_[static_cast<size_t>(node)] == State::kOpen) left.push_back(node);
    std::stable_sort(left.begin(), left.end(), [this](int32_t a, int32_t b) {
        return cost_[static_cast<size_t>(a)] > cost_[static_cast<size_t>(b)];
    });
    clear_bins();
    for (const int32_t node : left) pack(node);
    for (const Bin& bin : bins_) emit(graph, bin, slices);
}

// Packs open atoms in the order in which a depth first search from the root leaves them. It also goes through a root
// that is matched already: what lies around it belongs together all the same.
void Slicer::search(const AtomGraph& graph, int32_t root) {
    const auto known = static_cast<int32_t>(graph.edge_ptr.size()) - 1;
    const auto gather = [&](int32_t node) {
        if (node >= known) return;
        neighbours_.clear();
        for (int64_t e = graph.edge_ptr[static_cast<size_t>(node)]; e < graph.edge_ptr[static_cast<size_t>(node) + 1];
             ++e) {
            const int32_t tail = graph.tails[static_cast<size_t>(e)];
            if (state_[static_cast<size_t>(tail)] == State::kOpen) neighbours_.push_back(tail);
        }
        std::sort(neighbours_.begin(), neighbours_.end(), [this](int32_t a, int32_t b) {
            return std::tuple(cost_[static_cast<size_t>(a)], b) < std::tuple(cost_[static_cast<size_t>(b)], a);
        });
        neighbours_.erase(std::unique(neighbours_.begin(), neighbours_.end()), neighbours_.end());
        stack_.insert(stack_.end(), neighbours_.begin(), neighbours_.end());  // the heaviest on top
    };
    stack_.clear();
    if (state_[static_cast<size_t>(root)] == State::kOpen) stack_.push_back(root);
    else gather(root);
    while (!stack_.empty()) {
        const int32_t node = stack_.back();
        State& state = state_[static_cast<size_t>(node)];
        if (state == State::kOpen) {
            state = State::kVisited;
            gather(node);
            continue;
        }
        stack_.pop_back();
        if (state != State::kVisited) continue;  // it lay on the stack twice
        state = State::kPacked;
        pack(node);
    }
}

void Slicer::render(int64_t slice, const AtomGather& gather, int32_t* row) const {
    const auto members = atoms(slice);
    const int32_t piece = part(slice);
    row[0] = static_cast<int32_t>(members.size());
    row[1] = piece;
    int64_t at = kHeaderWords + static_cast<int64_t>(members.size()) * kAtomWords;
    for (size_t i = 0; i < members.size(); ++i) {
        const int32_t entity = members[i];
        const auto atom = gather.atom(entity);
        if (static_cast<int64_t>(atom.size()) != weight(entity))
            throw DatasetError("the atom of entity " + std::to_string(entity) + " was not read");
        const int64_t first = piece >= 0 ? piece * slice_triples_ : weight(entity) - packed_triples(entity);
        const int64_t count = piece >= 0 ? slice_triples_ : packed_triples(entity);
        row[kHeaderWords + static_cast<int64_t>(i) * kAtomWords] = entity;
        row[kHeaderWords + static_cast<int64_t>(i) * kAtomWords + 1] = static_cast<int32_t>(count);
        for (int64_t t = 0; t < count; ++t) {
            row[at++] = atom[static_cast<size_t>(first + t)].relation;
            row[at++] = atom[static_cast<size_t>(first + t)].tail;
        }
    }
    std::fill(row + at, row + options_.slice_words, 0);
}

void Slicer::restore(std::span<const int64_t> ptr, std::span<const int32_t> atoms, std::span<const int32_t> parts) {
    for (size_t i = 0; i + 1 < ptr.size(); ++i) {
        const auto members = atoms.subspan(static_cast<size_t>(ptr[i]), static_cast<size_t>(ptr[i + 1] - ptr[i]));
        int64_t words = kHeaderWords;
        for (const int32_t entity : members) {
            if (entity < 0 || static_cast<size_t>(entity) >= node_of_.size())
                throw DatasetError("slices must have atoms of this graph (got entity " + std::to_string(entity) + ")");
            words += kAtomWords + packed_triples(entity) * kTripleWords;
        }
        add_slice(members, parts[i], static_cast<int32_t>(parts[i] >= 0 ? options_.slice_words : words));
    }
}

void Slicer::restore_use(std::span<const int32_t> slices, int64_t triples) {
    for (const int32_t slice : slices) {
        if (slice < 0 || slice >= num_slices())
            throw DatasetError("a sliced entity must have slices below " + std::to_string(num_slices()) + " (got " +
                               std::to_string(slice) + ")");
        ++uses_[static_cast<size_t>(slice)];
        count_atoms(atoms(slice));
    }
    figures_.subgraphs += 1;
    figures_.triples += triples;
    figures_.used += static_cast<int64_t>(slices.size());
    figures_.needed += (triples + slice_triples_ - 1) / slice_triples_;
}

int64_t Slicer::memory_bytes() const {
    const auto bytes = [](const auto& v) { return static_cast<int64_t>(v.capacity() * sizeof(v[0])); };
    return bytes(begin_) + bytes(atoms_) + bytes(parts_) + bytes(words_) + bytes(uses_) + bytes(found_by_) +
           bytes(found_next_) + bytes(node_of_) + static_cast<int64_t>(counted_.size() / 8);
}

}  // namespace gids::kg
