// HotLists: choosing by a histogram of worth, which takes no memory per node, and filling in one pass over the edges.
#include "sampling/hot_lists.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "errors.hpp"
#include "neighbors.cuh"

namespace gids {
namespace {

constexpr int kBucketsPerOctave = 32, kOctaves = 64, kBuckets = kBucketsPerOctave * kOctaves;

// The first node from `node` on whose bit is set, or num_nodes.
int64_t next_set(const Array<uint64_t>& words, int64_t node, int64_t num_nodes) {
    while (node < num_nodes) {
        const uint64_t rest = words[node >> 6] >> (node & 63);
        if (rest != 0) return node + std::countr_zero(rest);
        node = (node | 63) + 1;
    }
    return num_nodes;
}

int64_t count_set(const Array<uint64_t>& words) {
    int64_t count = 0;
    for (const uint64_t word : words) count += std::popcount(word);
    return count;
}

PackedOffsets lengths(const Array<uint64_t>& words, const PackedOffsets& offsets) {
    PackedOffsets starts(count_set(words));
    int64_t total = 0;
    starts.append({&total, 1});
    for (int64_t node = next_set(words, 0, offsets.num_nodes()); node < offsets.num_nodes();
         node = next_set(words, node + 1, offsets.num_nodes())) {
        total += offsets.range(node).degree;
        starts.append({&total, 1});
    }
    starts.finish();
    return starts;
}

}  // namespace

HotLists::HotLists(Array<uint64_t> words, const PackedOffsets& offsets, int64_t num_sources)
    : offsets_(offsets),
      num_sources_(num_sources),
      width_(bits_for(static_cast<uint64_t>(std::max<int64_t>(num_sources - 1, 0)))),
      words_(std::move(words)),
      ranks_(words_.size()),
      starts_(lengths(words_, offsets)),
      values_(static_cast<int64_t>(static_cast<uint64_t>(starts_.num_edges()) * static_cast<uint64_t>(width_) / 8) + 1 +
              kBitsPadding) {
    uint32_t rank = 0;
    for (int64_t w = 0; w < words_.size(); ++w) {
        ranks_[w] = rank;
        rank += static_cast<uint32_t>(std::popcount(words_[w]));
    }
    if (!values_.zeroed()) std::memset(values_.data(), 0, static_cast<size_t>(values_.size()));
}

template <class Value>
void HotLists::fill_any(std::span<const Value> values) {
    const int64_t end = filled_ + static_cast<int64_t>(values.size());
    const int64_t num_nodes = offsets_.num_nodes();
    for (fill_node_ = next_set(words_, fill_node_, num_nodes); fill_node_ < num_nodes;
         fill_node_ = next_set(words_, fill_node_ + 1, num_nodes)) {
        const EdgeRange list = offsets_.range(fill_node_);
        const int64_t to = std::min(end, list.first + list.degree);
        for (int64_t p = std::max(filled_, list.first); p < to; ++p) {
            const auto value = static_cast<int64_t>(values[static_cast<size_t>(p - filled_)]);
            if (value < 0 || value >= num_sources_)
                throw DatasetError("neighbours must be in [0, " + std::to_string(num_sources_) + ") (got " +
                                   std::to_string(value) + " at edge position " + std::to_string(p) + ")");
            store_bits(values_.data(), static_cast<uint64_t>(fill_at_++) * static_cast<uint64_t>(width_),
                       static_cast<uint64_t>(value));
        }
        if (list.first + list.degree > end || list.first >= end) break;
    }
    filled_ = end;
}

template void HotLists::fill_any(std::span<const int32_t>);
template void HotLists::fill_any(std::span<const int64_t>);

ListCost ListCost::packed(int64_t num_sources) {
    return {
        .value_bytes = bits_for(static_cast<uint64_t>(std::max<int64_t>(num_sources - 1, 0))) / 8.0,
        .list_bytes = HotLists::kListBytes,
        .read_bytes = 16384,            // what lies between two edges of a list is read along with them
        .find_bytes_per_node = 0.1875,  // a bit, and a 32-bit rank per 64 nodes
        .fixed_bytes = 4096,
    };
}

ListCost ListCost::pieces(int item_bytes) {
    return {
        .value_bytes = static_cast<double>(item_bytes),
        .list_bytes = kPieceBytes,  // of neighbours that share its first and its last piece
        .read_bytes = 32,           // a sector
        .find_bytes_per_node = 0,
        .fixed_bytes = 0,
    };
}

HotRanking::HotRanking(const PackedOffsets& offsets, std::span<const float> visits, double visits_per_batch,
                       int64_t fanout, int item_bytes, const ListCost& cost)
    : offsets_(offsets), visits_(visits), fanout_(fanout), item_bytes_(item_bytes), cost_(cost) {
    double all = 0;
    for (const float count : visits) all += count;
    if (all > 0) per_visit_ = visits_per_batch / all;
}

// A batch reads a list at most once however often it comes by, hence the saturation.
HotRanking::List HotRanking::list(int64_t node) const {
    const int64_t degree = offsets_.range(node).degree;
    const double seen = -std::expm1(-static_cast<double>(visits_[static_cast<size_t>(node)]) * per_visit_);
    const double reads = std::min(static_cast<double>(std::min(degree, fanout_)),
                                  1 + static_cast<double>(degree * item_bytes_) / cost_.read_bytes);
    return {static_cast<double>(degree) * cost_.value_bytes + cost_.list_bytes, seen * reads};
}

// Of the logarithm of (reads saved per byte); -1 for lists that save nothing.
int HotRanking::bucket(const List& list) const {
    const double worth = list.reads / list.bytes;
    if (!(worth > 0)) return -1;
    const double place = (std::log2(worth) + kOctaves - 4) * kBucketsPerOctave;  // at most 10 reads per 2 bytes
    return static_cast<int>(std::clamp(place, 0.0, static_cast<double>(kBuckets - 1)));
}

ListWorth HotRanking::worth() const {
    std::vector<double> bytes(kBuckets, 0.0), reads(kBuckets, 0.0);
    for (int64_t node = 0; node < offsets_.num_nodes(); ++node) {
        const List one = list(node);
        const int at = bucket(one);
        if (at < 0) continue;
        bytes[static_cast<size_t>(at)] += one.bytes;
        reads[static_cast<size_t>(at)] += one.reads;
    }
    ListWorth worth;
    double used = static_cast<double>(offsets_.num_nodes()) * cost_.find_bytes_per_node + cost_.fixed_bytes, saved = 0;
    for (size_t at = kBuckets; at-- > 0;) {
        if (bytes[at] == 0) continue;
        worth.bytes.push_back(used += bytes[at]);
        worth.reads.push_back(saved += reads[at]);
    }
    return worth;
}

Array<uint64_t> HotRanking::choose(int64_t budget_bytes) const {
    const int64_t num_nodes = offsets_.num_nodes();
    std::vector<double> cost(kBuckets, 0.0);
    for (int64_t node = 0; node < num_nodes; ++node) {
        const List one = list(node);
        if (const int at = bucket(one); at >= 0) cost[static_cast<size_t>(at)] += one.bytes;
    }
    double left = static_cast<double>(budget_bytes) - static_cast<double>(num_nodes) * cost_.find_bytes_per_node -
                  cost_.fixed_bytes;
    int least = kBuckets;  // buckets from here on fit whole
    while (least > 0 && cost[static_cast<size_t>(least - 1)] <= left) left -= cost[static_cast<size_t>(--least)];
    Array<uint64_t> words(num_nodes / 64 + 1);
    std::fill(words.begin(), words.end(), 0);
    for (int64_t node = 0; node < num_nodes; ++node) {
        const List one = list(node);
        const int at = bucket(one);
        if (at < 0 || at < least - 1) continue;
        if (at == least - 1) {  // of the first bucket that does not fit, as many as there is room for
            if (one.bytes > left) continue;
            left -= one.bytes;
        }
        words[node >> 6] |= uint64_t{1} << (node & 63);
    }
    return words;
}

std::vector<uint64_t> choose_pieces(const HotRanking& ranking, const PackedOffsets& offsets, int item_bytes,
                                    int64_t budget_bytes) {
    const int64_t piece = kPieceBytes / item_bytes;
    const int64_t pieces = (offsets.num_edges() + piece - 1) / piece, entries = (pieces + 63) / 64;
    std::vector<uint64_t> found(static_cast<size_t>(2 * entries), 0);
    int64_t left = (budget_bytes - entries * static_cast<int64_t>(sizeof(HeldPieces))) / kPieceBytes;
    const Array<uint64_t> words = ranking.choose(left * kPieceBytes);
    for (int64_t node = next_set(words, 0, offsets.num_nodes()); node < offsets.num_nodes();
         node = next_set(words, node + 1, offsets.num_nodes())) {
        const EdgeRange list = offsets.range(node);
        for (int64_t p = list.first / piece; p * piece < list.first + list.degree; ++p) {
            uint64_t& bits = found[static_cast<size_t>(2 * (p / 64))];
            if (bits >> (p & 63) & 1) continue;  // shared with the list before
            if (left-- <= 0) break;
            bits |= uint64_t{1} << (p & 63);
        }
        if (left <= 0) break;
    }
    uint64_t before = 0;
    for (size_t entry = 0; entry < found.size(); entry += 2) {
        found[entry + 1] = before;
        before += static_cast<uint64_t>(std::popcount(found[entry]));
    }
    return found;
}

}  // namespace gids
