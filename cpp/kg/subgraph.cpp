// Complete subgraphs: the same walk over atoms from memory, from disk and from slices.
#include "kg/subgraph.hpp"

#include <algorithm>
#include <atomic>
#include <string>

namespace gids::kg {
namespace {

// Numbers of entities, which are forgotten all at once: what is below base_ is of an earlier query, so nothing is reset
// one by one. On huge pages: entities of a subgraph lie anywhere.
class Numbers {
public:
    explicit Numbers(int64_t count)
        : bytes_(static_cast<size_t>(count) * sizeof(uint32_t)),
          values_(reinterpret_cast<uint32_t*>(bytes_.data())),
          count_(count) {}

    uint32_t* values() const { return values_; }
    uint32_t base() const { return base_; }
    bool has(int32_t entity) const { return values_[entity] >= base_; }
    int32_t of(int32_t entity) const { return static_cast<int32_t>(values_[entity] - base_); }
    void set(int32_t entity, size_t number) const { values_[entity] = base_ + static_cast<uint32_t>(number); }

    // Forgets numbers, all below `used`.
    void forget(int64_t used) {
        base_ += static_cast<uint32_t>(used);
        if (base_ >= kLastBase) clear();
    }
    void clear() {
        std::fill(values_, values_ + count_, 0);
        base_ = 1;
    }

private:
    static constexpr uint32_t kLastBase = uint32_t{1} << 31;  // numbers are below 2^31, so that none overflows

    HugeBytes bytes_;
    uint32_t* values_;
    int64_t count_;
    uint32_t base_ = 1;
};

// A piece of an atom, as it lies in a slice; pieces of one atom are chained in order.
struct Piece {
    const Triple* triples;
    int32_t count, part, next;

    std::span<const Triple> span() const { return {triples, static_cast<size_t>(count)}; }
};

// Where a walk gets atoms from: prefetch(entity) touches what finds an atom, first(entity) returns its first piece, and
// each(entity, use) calls use(span) for every piece in order.
struct StoredAtoms {
    const int64_t* indptr;
    const Triple* triples;

    void prefetch(int32_t entity) const { __builtin_prefetch(indptr + entity); }
    std::span<const Triple> first(int32_t entity) const {
        return {triples + indptr[entity], static_cast<size_t>(indptr[entity + 1] - indptr[entity])};
    }
    template <class Use>
    void each(int32_t entity, const Use& use) const {
        use(first(entity));
    }
};

struct GatheredAtoms {
    const AtomGather& atoms;

    void prefetch(int32_t entity) const { atoms.prefetch(entity); }
    std::span<const Triple> first(int32_t entity) const { return atoms.atom(entity); }
    template <class Use>
    void each(int32_t entity, const Use& use) const {
        use(first(entity));
    }
};

struct PlacedAtoms {
    const Numbers& places;
    const std::vector<Piece>& pieces;

    void prefetch(int32_t entity) const { __builtin_prefetch(places.values() + entity); }
    std::span<const Triple> first(int32_t entity) const {
        return places.has(entity) ? pieces[static_cast<size_t>(places.of(entity))].span() : std::span<const Triple>{};
    }
    template <class Use>
    void each(int32_t entity, const Use& use) const {
        for (int32_t at = places.has(entity) ? places.of(entity) : -1; at >= 0;) {
            const Piece& piece = pieces[static_cast<size_t>(at)];
            use(piece.span());
            at = piece.next;
        }
    }
};

struct Removed {
    int32_t head = -1, relation = -1, reverse = -1, tail = -1;

    bool concerns(int32_t entity) const { return entity == head || entity == tail; }
    bool is(int32_t entity, const Triple& t) const {
        return (entity == head && t.relation == relation && t.tail == tail) ||
               (entity == tail && t.relation == reverse && t.tail == head);
    }
};

// Room for so many more elements, without setting them.
template <class T>
void grow(Array<T>& values, int64_t more) {
    if (values.capacity() < values.size() + more) values.reserve(std::max(values.size() + more, values.capacity() * 2));
}

template <class T>
void append_to(Array<T>& values, T value) {
    grow(values, 1);
    values[values.size()] = value;
    values.set_size(values.size() + 1);
}

}  // namespace

// Result of one query.
struct Extractor::Part {
    Array<int32_t> entities;
    Array<uint8_t> distance;
    Array<int32_t> heads, relations, tails;
    int32_t wanted = -1;  // the node of the entity whose place is asked for

    void set_triples(int64_t count) {
        heads.set_size(count);
        relations.set_size(count);
        tails.set_size(count);
    }
    // Room for so many triples and the entities of as many nodes.
    void grow_by(int64_t count) {
        grow(heads, count);
        grow(relations, count);
        grow(tails, count);
        grow(entities, count);
    }
    void clear() {
        entities.set_size(0);
        distance.set_size(0);
        set_triples(0);
    }
};

// What one thread needs. Nothing is numbered or placed between queries.
struct Extractor::Worker {
    explicit Worker(int64_t num_entities) : entities(num_entities), numbers(num_entities), places(num_entities) {}

    // Entities ahead of the one being walked whose place is touched, whose atom is, and whose tails' numbers are; and
    // tails ahead within an atom. Without it a walk waits for memory most of the time.
    static constexpr int64_t kPlaceAhead = 12, kAtomAhead = 6, kTailsAhead = 2, kTails = 8;

    int64_t entities;
    Numbers numbers, places;
    std::vector<Piece> pieces;

    int32_t number(Part& part, int32_t entity, int hop) {
        if (!numbers.has(entity)) {
            numbers.set(entity, static_cast<size_t>(part.entities.size()));
            append_to(part.entities, entity);
            append_to(part.distance, static_cast<uint8_t>(hop));
        }
        return numbers.of(entity);
    }

    template <class Atoms>
    void walk(Part& part, std::span<const int32_t> roots, int hops, const Removed& removed, const Atoms& atoms) {
        for (const int32_t root : roots) number(part, root, 0);
        int64_t begin = 0;
        for (int hop = 0; hop < hops; ++hop) {
            const int64_t end = part.entities.size();
            for (int64_t node = begin; node < end; ++node) {
                prefetch(part, node, end, atoms);
                const int32_t entity = part.entities[node];
                atoms.each(entity, [&](std::span<const Triple> triples) {
                    append(part, static_cast<int32_t>(node), entity, triples, removed);
                });
            }
            const int64_t found = part.entities.size();
            grow(part.distance, found - part.distance.size());
            std::fill(part.distance.begin() + end, part.distance.begin() + found, static_cast<uint8_t>(hop + 1));
            part.distance.set_size(found);
            begin = end;
        }
    }

    template <class Atoms>
    void prefetch(const Part& part, int64_t node, int64_t end, const Atoms& atoms) const {
        if (node + kPlaceAhead < end) atoms.prefetch(part.entities[node + kPlaceAhead]);
        if (node + kAtomAhead < end) __builtin_prefetch(atoms.first(part.entities[node + kAtomAhead]).data());
        if (node + kTailsAhead < end) {
            const auto triples = atoms.first(part.entities[node + kTailsAhead]);
            for (size_t i = 0; i < std::min<size_t>(triples.size(), kTails); ++i)
                __builtin_prefetch(numbers.values() + static_cast<uint32_t>(triples[i].tail), 1);
        }
    }

    void append(Part& part, int32_t node, int32_t entity, std::span<const Triple> triples, const Removed& removed) {
        const auto count = static_cast<int64_t>(triples.size());
        part.grow_by(count + 1);  // one more, because a tail is written before it is known to be new
        int64_t nodes = part.entities.size(), at = part.heads.size();
        int32_t *found = part.entities.data(), *heads = part.heads.data(), *tails = part.tails.data();
        int32_t* relations = part.relations.data();
        uint32_t* const known = numbers.values();
        const uint32_t base = numbers.base();
        const bool careful = removed.concerns(entity);
        for (int64_t i = 0; i < count; ++i) {
            const Triple triple = triples[static_cast<size_t>(i)];
            if (i + kTails < count)
                __builtin_prefetch(known + static_cast<uint32_t>(triples[static_cast<size_t>(i + kTails)].tail), 1);
            if (static_cast<uint64_t>(static_cast<uint32_t>(triple.tail)) >= static_cast<uint64_t>(entities))
                throw DatasetError("tail of entity " + std::to_string(entity) + " must be in [0, " +
                                   std::to_string(entities) + ") (got " + std::to_string(triple.tail) + ")");
            if (careful && removed.is(entity, triple)) continue;
            // No branch on whether the tail is new: it is as often as not, and a wrong guess stops all loads ahead.
            const uint32_t before = known[triple.tail];
            const bool fresh = before < base;
            const uint32_t number = fresh ? base + static_cast<uint32_t>(nodes) : before;
            known[triple.tail] = number;
            found[nodes] = triple.tail;
            nodes += static_cast<int64_t>(fresh);
            heads[at] = node;
            relations[at] = triple.relation;
            tails[at++] = static_cast<int32_t>(number - base);
        }
        part.entities.set_size(nodes);
        part.set_triples(at);
    }

    // Notes where the atoms of a slice are; returns their triples. A piece that is there already is not noted again.
    int64_t place(const int32_t* row, int64_t slice_words) {
        int64_t total = 0;
        for_atoms(row, slice_words, [&](int32_t entity, int32_t part, const Triple* triples, int64_t count) {
            if (entity < 0 || entity >= entities)
                throw DatasetError("a slice is damaged: it has an atom of entity " + std::to_string(entity));
            total += count;
            const auto added = static_cast<int32_t>(pieces.size());
            const Piece piece{triples, static_cast<int32_t>(count), part, -1};
            if (!places.has(entity)) {
                places.set(entity, pieces.size());
                pieces.push_back(piece);
                return;
            }
            // Unsigned: the rest of an atom, part -1, comes after all others.
            int32_t before = -1, at = places.of(entity);
            while (at >= 0 &&
                   static_cast<uint32_t>(pieces[static_cast<size_t>(at)].part) < static_cast<uint32_t>(part)) {
                before = at;
                at = pieces[static_cast<size_t>(at)].next;
            }
            if (at >= 0 && pieces[static_cast<size_t>(at)].part == part) return;
            pieces.push_back(piece);
            pieces.back().next = at;
            if (before < 0) places.set(entity, static_cast<size_t>(added));
            else pieces[static_cast<size_t>(before)].next = added;
        });
        return total;
    }

    void forget(const Part& part) {
        numbers.forget(part.entities.size());
        places.forget(static_cast<int64_t>(pieces.size()));
        pieces.clear();
    }
    // After a failure, when it is not known how far numbers went.
    void clear() {
        numbers.clear();
        places.clear();
        pieces.clear();
    }
};

Extractor::Extractor(int64_t num_entities, int workers) : num_entities_(num_entities) {
    for (int i = 0; i < std::max(workers, 1); ++i) workers_.push_back(std::make_unique<Worker>(num_entities));
}

Extractor::~Extractor() = default;

template <class Body>
Subgraphs Extractor::run(const QueryBatch& queries, ThreadPool* pool, const Body& body) {
    for (const auto entities : {queries.roots, queries.wanted})
        for (const int32_t entity : entities)
            if (entity < 0 || entity >= num_entities_)
                throw ConfigError("query entity must be in [0, " + std::to_string(num_entities_) + ") (got " +
                                  std::to_string(entity) + ")");
    if (queries.hops < 0 || queries.hops > 255)
        throw ConfigError("hops must be in [0, 255] (got " + std::to_string(queries.hops) + ")");
    const std::lock_guard lock(mutex_);
    const int64_t count = queries.size();
    if (static_cast<int64_t>(parts_.size()) < count) parts_.resize(static_cast<size_t>(count));
    const auto used = std::min<int64_t>(static_cast<int64_t>(workers_.size()), pool == nullptr ? 1 : pool->threads());
    std::atomic<int64_t> next{0};
    const auto work = [&](int64_t number, int64_t) {
        Worker& worker = *workers_[static_cast<size_t>(number)];
        // relaxed: a query is worked on by whoever counts to it; parallel_for orders the results before join
        for (int64_t q = next.fetch_add(1, std::memory_order_relaxed); q < count;
             q = next.fetch_add(1, std::memory_order_relaxed)) {
            Part& part = parts_[static_cast<size_t>(q)];
            part.clear();
            Removed removed;
            if (!queries.removed.empty()) {
                const auto four = queries.removed.subspan(static_cast<size_t>(q) * 4, 4);
                removed = {four[0], four[1], four[2], four[3]};
            }
            try {
                body(worker, part, q, removed);
            } catch (...) {
                worker.clear();
                throw;
            }
            part.wanted = -1;
            if (!queries.wanted.empty()) {
                const int32_t wanted = queries.wanted[static_cast<size_t>(q)];
                if (worker.numbers.has(wanted)) part.wanted = worker.numbers.of(wanted);
            }
            worker.forget(part);
        }
    };
    if (pool == nullptr || used <= 1) work(0, 1);
    else pool->parallel_for(used, 1, work);
    return join(queries, used <= 1 ? nullptr : pool);
}

Subgraphs Extractor::join(const QueryBatch& queries, ThreadPool* pool) {
    const int64_t count = queries.size();
    Subgraphs out{Array<int64_t>(count + 1), Array<int64_t>(count + 1), {}, {}, {}, {}, {}, {}};
    out.wanted = Array<int64_t>(queries.wanted.empty() ? 0 : count);
    out.node_ptr[0] = out.edge_ptr[0] = 0;
    for (int64_t q = 0; q < count; ++q) {
        const Part& part = parts_[static_cast<size_t>(q)];
        out.node_ptr[q + 1] = out.node_ptr[q] + part.entities.size();
        out.edge_ptr[q + 1] = out.edge_ptr[q] + part.heads.size();
    }
    const int64_t nodes = out.node_ptr[count], edges = out.edge_ptr[count];
    if (queries.max_triples > 0 && edges > queries.max_triples)
        throw ConfigError("subgraphs of " + std::to_string(count) + " queries have " + std::to_string(edges) +
                          " triples and the budget holds " + std::to_string(queries.max_triples) +
                          ": smaller batches, fewer hops, or a budget " +
                          std::to_string(edges / std::max<int64_t>(queries.max_triples, 1) + 1) +
                          " times as large hold them");
    out.entities = Array<int32_t>(nodes);
    out.distance = Array<uint8_t>(nodes);
    out.heads = Array<int32_t>(edges);
    out.relations = Array<int32_t>(edges);
    out.tails = Array<int32_t>(edges);
    const auto copy = [&](int64_t q, int64_t) {
        const Part& part = parts_[static_cast<size_t>(q)];
        const auto first = static_cast<int32_t>(out.node_ptr[q]);
        if (out.wanted.size() > 0) out.wanted[q] = part.wanted < 0 ? -1 : first + part.wanted;
        std::copy(part.entities.begin(), part.entities.end(), out.entities.begin() + out.node_ptr[q]);
        std::copy(part.distance.begin(), part.distance.end(), out.distance.begin() + out.node_ptr[q]);
        std::copy(part.relations.begin(), part.relations.end(), out.relations.begin() + out.edge_ptr[q]);
        const auto shift = [first](int32_t node) { return node + first; };
        std::transform(part.heads.begin(), part.heads.end(), out.heads.begin() + out.edge_ptr[q], shift);
        std::transform(part.tails.begin(), part.tails.end(), out.tails.begin() + out.edge_ptr[q], shift);
    };
    if (pool == nullptr) {
        for (int64_t q = 0; q < count; ++q) copy(q, q + 1);
    } else {
        pool->parallel_for(count, 1, copy);
    }
    return out;
}

Subgraphs Extractor::from_memory(const QueryBatch& queries, const int64_t* indptr, const Triple* triples,
                                 ThreadPool* pool) {
    return run(queries, pool, [&](Worker& worker, Part& part, int64_t q, const Removed& removed) {
        worker.walk(part, queries.roots_of(q), queries.hops, removed, StoredAtoms{indptr, triples});
    });
}

Subgraphs Extractor::from_gather(const QueryBatch& queries, const AtomGather& atoms, ThreadPool* pool) {
    return run(queries, pool, [&](Worker& worker, Part& part, int64_t q, const Removed& removed) {
        worker.walk(part, queries.roots_of(q), queries.hops, removed, GatheredAtoms{atoms});
    });
}

Subgraphs Extractor::from_slices(const QueryBatch& queries, const SliceBatch& slices, ThreadPool* pool) {
    return run(queries, pool, [&](Worker& worker, Part& part, int64_t q, const Removed& removed) {
        const auto roots = queries.roots_of(q);
        for (int64_t k = 0; k < queries.roots_per_query; ++k) {
            const auto root = static_cast<size_t>(q * queries.roots_per_query + k);
            int64_t total = 0;
            for (int64_t i = slices.ptr[root]; i < slices.ptr[root + 1]; ++i)
                total += worker.place(slices.rows.data() + slices.slices[static_cast<size_t>(i)] * slices.slice_words,
                                      slices.slice_words);
            if (total != slices.triples[root])
                throw DatasetError("slices of entity " + std::to_string(roots[static_cast<size_t>(k)]) + " must hold " +
                                   std::to_string(slices.triples[root]) + " triples (got " + std::to_string(total) +
                                   "): they are damaged, or of another graph");
        }
        worker.walk(part, roots, queries.hops, removed, PlacedAtoms{worker.places, worker.pieces});
    });
}

Subgraphs Extractor::from_triples(const QueryBatch& queries, std::span<const int32_t> triples,
                                  std::span<const int64_t> ranges, ThreadPool* pool) {
    return run(queries, pool, [&](Worker& worker, Part& part, int64_t q, const Removed&) {
        for (const int32_t root : queries.roots_of(q)) worker.number(part, root, 0);
        const int64_t begin = ranges[static_cast<size_t>(2 * q)], end = ranges[static_cast<size_t>(2 * q + 1)];
        part.grow_by(end - begin);
        for (int64_t i = begin; i < end; ++i) {
            const int32_t* triple = triples.data() + i * 3;
            if (triple[0] < 0 || triple[0] >= num_entities_ || triple[2] < 0 || triple[2] >= num_entities_)
                throw DatasetError("a stored triple has an entity that is not in [0, " + std::to_string(num_entities_) +
                                   ")");
            const int32_t head = worker.number(part, triple[0], 0);
            const int hop = part.distance[head] + 1;
            const int64_t at = i - begin;
            part.heads[at] = head;
            part.relations[at] = triple[1];
            part.tails[at] = worker.number(part, triple[2], hop);
        }
        part.set_triples(end - begin);
    });
}

}  // namespace gids::kg
