// SieveQueue: count the unvisited per piece, scan, then decide every item by its rank.
#include "tiers/sieve.hpp"

#include <algorithm>

namespace gids {

namespace {
constexpr int64_t kSweepGrain = 8192;
}

void SieveQueue::clear() {
    queue_.clear();
    hand_ = 0;
}

void SieveQueue::append(const std::vector<int64_t>& slots) { queue_.insert(queue_.end(), slots.begin(), slots.end()); }

std::vector<int64_t> SieveQueue::evict(ThreadPool& pool, std::vector<SlotState>& slots, int64_t wanted) {
    const int64_t size = static_cast<int64_t>(queue_.size());
    const SieveSweep sweep{queue_.data(), size, hand_, std::min(wanted, size)};
    if (sweep.wanted == 0) return {};
    const int64_t pieces = (size + kSweepGrain - 1) / kSweepGrain;
    std::vector<int64_t> ranks(pieces);
    pool.parallel_for(size, kSweepGrain, [&](int64_t begin, int64_t end) {
        for (int64_t k = begin; k < end; ++k) ranks[begin / kSweepGrain] += sweep.takes_first(slots.data(), k);
    });
    int64_t unvisited = 0;
    for (int64_t& rank : ranks) {
        const int64_t here = rank;
        rank = unvisited;
        unvisited += here;
    }
    std::vector<std::vector<int64_t>> first(pieces), second(pieces), kept(pieces);
    std::vector<int64_t> last_first(pieces, -1), last_second(pieces, -1);
    pool.parallel_for(size, kSweepGrain, [&](int64_t begin, int64_t end) {
        const int64_t piece = begin / kSweepGrain;
        int64_t rank = ranks[piece];
        for (int64_t k = begin; k < end; ++k) {
            const int64_t slot = sweep.slot(k);
            const bool visited = slots[slot].next == kVisited;
            if (!sweep.evicts(visited, k, rank, unvisited)) kept[piece].push_back(k);
            else (visited ? second : first)[piece].push_back(slot), (visited ? last_second : last_first)[piece] = k;
            if (sweep.clears(rank)) slots[slot].next = kNever;
            rank += !visited;
        }
    });
    const auto last = [](const std::vector<int64_t>& of) { return *std::max_element(of.begin(), of.end()); };
    const int64_t met = (last(last_second) >= 0 ? last(last_second) : last(last_first)) + 1;  // where the hand stops

    std::vector<int64_t> victims;
    for (const auto* circle : {&first, &second})
        for (const auto& piece : *circle) victims.insert(victims.end(), piece.begin(), piece.end());
    // Survivors in queue order: item k is at index hand + k, so items from size - hand on come first.
    std::vector<int64_t> survivors, wrapped;
    int64_t before_stop = 0, before_hand = 0;
    for (const auto& piece : kept)
        for (const int64_t k : piece) {
            const bool wraps = hand_ + k >= size;
            (wraps ? survivors : wrapped).push_back(sweep.slot(k));
            before_stop += k < met && !wraps;
            before_hand += wraps && k < met;
        }
    const int64_t old_first = static_cast<int64_t>(survivors.size());
    survivors.insert(survivors.end(), wrapped.begin(), wrapped.end());
    hand_ = hand_ + met > size ? before_hand : old_first + before_stop;
    if (hand_ >= static_cast<int64_t>(survivors.size())) hand_ = 0;  // past the newest: start at the oldest again
    queue_ = std::move(survivors);
    return victims;
}

}  // namespace gids
