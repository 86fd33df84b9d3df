// HotLists: a bitmap with ranks, and the lists one after the other.
#include "sampling/hot_lists.hpp"

#include <algorithm>
#include <string>

#include "errors.hpp"

namespace gids {

HotLists::HotLists(std::span<const int64_t> nodes, std::span<const int64_t> indptr, bool wide) : wide_(wide) {
    const int64_t num_nodes = static_cast<int64_t>(indptr.size()) - 1;
    const int64_t num_words = num_nodes / 64 + 1;
    words_ = Array<uint64_t>(num_words);
    ranks_ = Array<uint32_t>(num_words);
    std::fill(words_.begin(), words_.end(), 0);
    starts_.push_back(0);
    int64_t last = -1;
    for (const int64_t node : nodes) {
        if (node <= last || node >= num_nodes)
            throw ConfigError("hot nodes must ascend within [0, " + std::to_string(num_nodes) + ") (got " +
                              std::to_string(node) + " after " + std::to_string(last) + ")");
        last = node;
        words_[node >> 6] |= uint64_t{1} << (node & 63);
        const auto at = static_cast<size_t>(node);
        firsts_.push_back(indptr[at]);
        starts_.push_back(starts_.back() + indptr[at + 1] - indptr[at]);
    }
    uint32_t rank = 0;
    for (int64_t w = 0; w < num_words; ++w) {
        ranks_[w] = rank;
        rank += static_cast<uint32_t>(std::popcount(words_[w]));
    }
    if (wide) wide_values_ = Array<int64_t>(starts_.back());
    else narrow_values_ = Array<int32_t>(starts_.back());
}

template <class Value>
void HotLists::fill_any(int64_t begin, std::span<const Value> values) {
    const int64_t end = begin + static_cast<int64_t>(values.size());
    // The first list that ends behind `begin` is the one before the first that starts behind it, or later.
    const auto after = std::upper_bound(firsts_.begin(), firsts_.end(), begin);
    for (size_t i = after == firsts_.begin() ? 0 : static_cast<size_t>(after - firsts_.begin()) - 1;
         i < firsts_.size() && firsts_[i] < end; ++i) {
        const int64_t from = std::max(begin, firsts_[i]);
        const int64_t to = std::min(end, firsts_[i] + starts_[i + 1] - starts_[i]);
        for (int64_t p = from; p < to; ++p) {
            const int64_t at = starts_[i] + p - firsts_[i];
            const Value value = values[static_cast<size_t>(p - begin)];
            if (wide_) wide_values_[at] = value;
            else narrow_values_[at] = static_cast<int32_t>(value);
        }
    }
}

template void HotLists::fill_any(int64_t, std::span<const int32_t>);
template void HotLists::fill_any(int64_t, std::span<const int64_t>);

}  // namespace gids
