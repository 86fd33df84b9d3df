// Balanced min-cut partitions of a graph that is only streamed.
#include "partition/partitioner.hpp"

#include <algorithm>
#include <atomic>
#include <limits>
#include <numeric>
#include <queue>

namespace gids {
namespace {

constexpr uint32_t kStay = std::numeric_limits<uint32_t>::max();
constexpr int64_t kGrain = 256;

uint32_t mix(uint64_t seed, uint32_t group) {
    uint64_t h = (seed ^ group) * 0x9E3779B97F4A7C15ull;
    h = (h ^ h >> 32) * 0xD6E8FEB86659FD93ull;
    return static_cast<uint32_t>(h >> 32);
}

Tally& cleared_tally() {
    thread_local Tally tally;
    tally.clear();
    return tally;
}

int64_t chunk_nodes(int64_t num_nodes) { return std::clamp<int64_t>(num_nodes / 128, 64, 65536); }

int64_t checked_nodes(int64_t num_nodes) {
    if (num_nodes < 1 || num_nodes >= kStay)
        throw ConfigError("nodes of a graph to partition must be in [1, 2^32 - 1) (got " + std::to_string(num_nodes) +
                          ")");
    return num_nodes;
}

}  // namespace

Partitioner::Partitioner(int64_t num_nodes, int64_t num_parts, const uint8_t* train, PartLimits limits, int width,
                         uint64_t seed)
    : num_nodes_(checked_nodes(num_nodes)),
      num_parts_(num_parts),
      limits_(limits),
      seed_(seed),
      chunk_(chunk_nodes(num_nodes)),
      sketch_(std::in_place, num_nodes, width, seed),
      group_(static_cast<size_t>(num_nodes)),
      loads_(static_cast<size_t>(num_nodes)),
      wanted_(static_cast<size_t>(std::min(chunk_, num_nodes))) {
    if (num_parts < 1 || num_parts > num_nodes)
        throw ConfigError("parts must be in [1, " + std::to_string(num_nodes) + "] (got " + std::to_string(num_parts) +
                          ")");
    if (limits.nodes * num_parts < num_nodes)
        throw ConfigError("nodes of a part must be at least " + std::to_string((num_nodes - 1) / num_parts + 1) +
                          " (got " + std::to_string(limits.nodes) + ")");
    if (train != nullptr) train_.assign(train, train + num_nodes);
    std::iota(group_.begin(), group_.end(), 0u);  // every node is a cluster of its own
    for (int64_t node = 0; node < num_nodes; ++node) loads_[static_cast<size_t>(node)] = {1, train_of(node)};
}

void Partitioner::add(const ListPiece& piece, ThreadPool& pool) { sketch_->add(piece, pool); }

void Partitioner::finish_sketch() { sketch_->add_reverse(); }

// propose(i) returns the group that i wants, or kStay; commit(i, group) returns whether it was carried out.
template <class Propose, class Commit>
int64_t Partitioner::in_chunks(int64_t begin, int64_t end, ThreadPool& pool, const Propose& propose,
                               const Commit& commit) {
    int64_t moved = 0;
    for (int64_t first = begin; first < end; first += chunk_) {
        const int64_t count = std::min(chunk_, end - first);
        if (wanted_.size() < static_cast<size_t>(count)) wanted_.resize(static_cast<size_t>(count));
        for_pieces(&pool, count, kGrain, [&](int64_t lo, int64_t hi) {
            for (int64_t i = lo; i < hi; ++i) wanted_[static_cast<size_t>(i)] = propose(first + i);
        });
        for (int64_t i = 0; i < count; ++i)
            if (wanted_[static_cast<size_t>(i)] != kStay) moved += commit(first + i, wanted_[static_cast<size_t>(i)]);
    }
    return moved;
}

void Partitioner::gather_sketch(int64_t node, Tally& tally) const {
    // What the nodes after this one will look up, so that the lookups of several nodes are on their way at once.
    constexpr int64_t kListAhead = 16, kGroupAhead = 8, kLoadAhead = 3;
    if (node + kListAhead < num_nodes_) {
        sketch_->prefetch(node + kListAhead);
        for (const uint32_t neighbor : sketch_->neighbors(node + kGroupAhead)) __builtin_prefetch(&group_[neighbor]);
        for (const uint32_t neighbor : sketch_->neighbors(node + kLoadAhead))
            __builtin_prefetch(&loads_[group_[neighbor]]);
    }
    for (const uint32_t neighbor : sketch_->neighbors(node)) tally.add(group_[neighbor]);
}

int64_t Partitioner::cluster_nodes(ThreadPool& pool) {
    const auto propose = [&](int64_t node) {
        Tally& tally = cleared_tally();
        gather_sketch(node, tally);
        const uint32_t own = group_[static_cast<size_t>(node)], train = train_of(node);
        uint32_t best = kStay, best_nodes = 0;
        int64_t best_count = 0, own_count = 0;
        tally.for_groups(loads_.size(), [&](uint32_t group, int64_t count) {
            if (group == own) own_count = count;
            else if (count >= best_count && fits(loads_[group], {1, train})) {
                // Of equally near clusters the larger one, so that few grow instead of many.
                const uint32_t nodes = loads_[group].nodes;
                if (count > best_count || nodes > best_nodes ||
                    (nodes == best_nodes && mix(seed_, group) < mix(seed_, best)))
                    best = group, best_count = count, best_nodes = nodes;
            }
        });
        const bool nearer = best_count > own_count || (best_count == own_count && best_nodes > loads_[own].nodes);
        return best != kStay && nearer ? best : kStay;
    };
    return in_chunks(0, num_nodes_, pool, propose, [&](int64_t node, uint32_t to) {
        // An empty cluster was left by all it had in this chunk: to follow them there would only swap places.
        return loads_[to].nodes != 0 && move(group_[static_cast<size_t>(node)], to, {1, train_of(node)});
    });
}

bool Partitioner::move(uint32_t& group, uint32_t to, const Load& load) {
    if (!fits(loads_[to], load)) return false;
    loads_[group].nodes -= load.nodes;
    loads_[group].train -= load.train;
    loads_[to].nodes += load.nodes;
    loads_[to].train += load.train;
    group = to;
    return true;
}

void Partitioner::number_groups() {
    std::vector<uint32_t> number(loads_.size(), kStay);
    uint32_t next = 0;
    for (uint32_t& group : group_) {
        if (number[group] == kStay) number[group] = next++;
        group = number[group];
    }
    std::vector<Load> numbered(next);
    for (size_t group = 0; group < number.size(); ++group)
        if (number[group] != kStay) numbered[number[group]] = loads_[group];
    loads_ = std::move(numbered);
}

int64_t Partitioner::merge_clusters(ThreadPool& pool) {
    number_groups();
    const std::vector<Load> clusters = loads_;
    const int64_t count = static_cast<int64_t>(clusters.size());
    std::vector<uint32_t> begin(static_cast<size_t>(count) + 1), members(static_cast<size_t>(num_nodes_));
    for (size_t c = 0; c < clusters.size(); ++c) begin[c + 1] = begin[c] + clusters[c].nodes;
    {
        std::vector<uint32_t> next(begin.begin(), begin.end() - 1);
        for (int64_t node = 0; node < num_nodes_; ++node)
            members[next[group_[static_cast<size_t>(node)]]++] = static_cast<uint32_t>(node);
    }
    std::vector<uint32_t> merged(static_cast<size_t>(count));  // group of clusters that each cluster is in
    std::iota(merged.begin(), merged.end(), 0u);
    const auto propose = [&](int64_t cluster) {
        const size_t c = static_cast<size_t>(cluster);
        if (clusters[c].nodes * 2 > limits_.nodes) return kStay;  // only small clusters look for others
        Tally& tally = cleared_tally();
        const uint32_t own = merged[c];
        constexpr uint32_t kListAhead = 12, kGroupAhead = 6;  // members of the next clusters follow in the same array
        for (uint32_t m = begin[c]; m < begin[c + 1]; ++m) {
            if (m + kListAhead < members.size()) {
                sketch_->prefetch(members[m + kListAhead]);
                for (const uint32_t neighbor : sketch_->neighbors(members[m + kGroupAhead]))
                    __builtin_prefetch(&group_[neighbor]);
            }
            for (const uint32_t neighbor : sketch_->neighbors(members[m])) {
                const uint32_t cluster_there = group_[neighbor];
                if (cluster_there != c) tally.add(merged[cluster_there]);
            }
        }
        uint32_t best = kStay, best_mix = 0;
        int64_t best_count = 0, own_count = 0;
        tally.for_groups(clusters.size(), [&](uint32_t group, int64_t ties) {
            if (group == own) own_count = ties;
            else if (ties >= best_count && fits(loads_[group], clusters[c])) {
                const uint32_t tie = mix(seed_, group);
                if (ties > best_count || tie < best_mix) best = group, best_count = ties, best_mix = tie;
            }
        });
        return best_count > own_count ? best : kStay;
    };
    const int64_t moved = in_chunks(0, count, pool, propose, [&](int64_t cluster, uint32_t to) {
        const size_t c = static_cast<size_t>(cluster);
        return loads_[to].nodes != 0 && move(merged[c], to, clusters[c]);
    });
    for (uint32_t& group : group_) group = merged[group];
    number_groups();
    return moved;
}

void Partitioner::pack() {
    number_groups();
    const size_t count = loads_.size(), parts = static_cast<size_t>(num_parts_);
    std::vector<uint32_t> by_size(count), part_of(count, kStay);
    std::iota(by_size.begin(), by_size.end(), 0u);
    // Clusters with training nodes before those that fit wherever nodes do; of each kind the largest first, in
    // whichever of the two limits they fill more of: late ones find little room of either.
    const auto fill = [&](uint32_t cluster) {
        const uint64_t nodes = loads_[cluster].nodes, train = loads_[cluster].train;
        return std::pair{train > 0, std::max(nodes * static_cast<uint64_t>(std::max<int64_t>(limits_.train, 1)),
                                             train * static_cast<uint64_t>(limits_.nodes))};
    };
    std::stable_sort(by_size.begin(), by_size.end(), [&](uint32_t a, uint32_t b) { return fill(a) > fill(b); });
    std::vector<Load> packed(parts);
    // Parts by load, least first; an entry whose load is no longer that of its part is dropped when it comes up.
    using Entry = std::pair<std::pair<uint32_t, uint32_t>, uint32_t>;
    using Heap = std::priority_queue<Entry, std::vector<Entry>, std::greater<>>;
    Heap by_nodes, by_train;
    // A part without room is in neither: what is left to place always finds one that has some.
    const auto enter = [&](uint32_t part) {
        if (packed[part].nodes >= limits_.nodes) return;
        by_nodes.push({{packed[part].nodes, packed[part].train}, part});
        by_train.push({{packed[part].train, packed[part].nodes}, part});
    };
    for (uint32_t part = 0; part < parts; ++part) enter(part);
    const auto least = [&](Heap& heap, uint32_t Load::*first, uint32_t Load::*second) {
        const auto load = [&](uint32_t part) { return std::pair{packed[part].*first, packed[part].*second}; };
        while (heap.top().first != load(heap.top().second)) heap.pop();
        return heap.top().second;
    };
    const auto choose = [&](const Load& load) {
        const uint32_t part = least(by_nodes, &Load::nodes, &Load::train);
        if (fits(packed[part], load)) return part;
        const uint32_t other = least(by_train, &Load::train, &Load::nodes);
        return fits(packed[other], load) ? other : kStay;
    };
    const auto place = [&](uint32_t part, const Load& load) {
        packed[part].nodes += load.nodes;
        packed[part].train += load.train;
        enter(part);
    };
    for (const uint32_t cluster : by_size) {
        const uint32_t part = choose(loads_[cluster]);
        if (part == kStay) continue;
        part_of[cluster] = part;
        place(part, loads_[cluster]);
    }
    // Clusters that fit nowhere as a whole are dealt out node by node, training nodes first. Room for a node there
    // always is; where none has room for a training node, the limit on nodes is the one that is kept.
    for (const uint32_t kind : {1u, 0u}) {
        for (int64_t node = 0; node < num_nodes_; ++node) {
            const uint32_t train = train_of(node);
            if (train != kind) continue;
            uint32_t& group = group_[static_cast<size_t>(node)];
            uint32_t part = part_of[group];
            if (part == kStay) {
                part = choose({1, train});
                if (part == kStay) part = least(by_nodes, &Load::nodes, &Load::train);
                place(part, {1, train});
            }
            group = part;
        }
    }
    loads_ = std::move(packed);
    packed_ = true;
}

// gather(tally) adds the parts of the node's neighbours.
template <class Gather>
uint32_t Partitioner::best_part(int64_t node, const Gather& gather) const {
    Tally& tally = cleared_tally();
    gather(tally);
    const uint32_t own = group_[static_cast<size_t>(node)], train = train_of(node);
    uint32_t best = kStay;
    int64_t best_count = 0, best_nodes = 0, own_count = 0;
    tally.for_groups(loads_.size(), [&](uint32_t part, int64_t count) {
        if (part == own) own_count = count;
        else if (count >= best_count && fits(loads_[part], {1, train})) {
            // A full part costs less than one neighbour, so among equally near ones the emptier is the best.
            const int64_t nodes = loads_[part].nodes;
            if (count > best_count || nodes < best_nodes) best = part, best_count = count, best_nodes = nodes;
        }
    });
    return best_count > own_count || (best_count == own_count && best_nodes < loads_[own].nodes) ? best : kStay;
}

template <class Gather>
int64_t Partitioner::refine_nodes(int64_t begin, int64_t end, ThreadPool& pool, const Gather& gather) {
    if (!packed_) throw ConfigError("parts must be packed before they are refined");
    const auto propose = [&](int64_t node) { return best_part(node, [&](Tally& tally) { gather(node, tally); }); };
    return in_chunks(begin, end, pool, propose, [&](int64_t node, uint32_t to) {
        return move(group_[static_cast<size_t>(node)], to, {1, train_of(node)});
    });
}

int64_t Partitioner::refine(ThreadPool& pool) {
    return refine_nodes(0, num_nodes_, pool, [&](int64_t node, Tally& tally) { gather_sketch(node, tally); });
}

int64_t Partitioner::refine(const ListPiece& piece, ThreadPool& pool) {
    return refine_nodes(piece.first, piece.first + piece.count, pool, [&](int64_t node, Tally& tally) {
        piece.for_sources(node - piece.first, [&](uint32_t source) {
            if (source != node) tally.add(group_[source]);
        });
    });
}

int64_t Partitioner::num_groups() const {
    return std::ranges::count_if(loads_, [](const Load& load) { return load.nodes > 0; });
}

int64_t count_cut(const int32_t* parts, const ListPiece& piece, ThreadPool& pool) {
    std::atomic<int64_t> cut{0};
    pool.parallel_for(piece.count, 4096, [&](int64_t begin, int64_t end) {
        int64_t mine = 0;
        for (int64_t i = begin; i < end; ++i) {
            const int32_t own = parts[piece.first + i];
            piece.for_sources(i, [&](uint32_t source) { mine += parts[source] != own; });
        }
        cut.fetch_add(mine, std::memory_order_relaxed);  // relaxed: the end of parallel_for orders the sum
    });
    return cut.load(std::memory_order_relaxed);
}

}  // namespace gids
