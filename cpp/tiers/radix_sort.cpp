// Least significant digit first: count digits per piece, scan, scatter. Pieces keep their order, so it is stable.
#include "tiers/radix_sort.hpp"

#include <algorithm>
#include <array>

namespace gids {

namespace {
constexpr int kDigitBits = 11;
constexpr int64_t kDigits = int64_t{1} << kDigitBits;
using Counts = std::array<int64_t, kDigits>;

int64_t digit_of(int64_t row, int shift) { return (row >> shift) & (kDigits - 1); }
}  // namespace

void radix_sort(ThreadPool& pool, std::vector<RowAt>& pairs, int64_t limit) {
    const int64_t n = static_cast<int64_t>(pairs.size());
    const auto by_row = [](const RowAt& a, const RowAt& b) { return a.row < b.row; };
    if (n < 4 * kDigits) {  // counting digits costs more than comparing
        std::stable_sort(pairs.begin(), pairs.end(), by_row);
        return;
    }
    const int64_t grain = std::max<int64_t>((n + pool.threads() - 1) / pool.threads(), 1);
    const int64_t pieces = (n + grain - 1) / grain;
    std::vector<RowAt> other(n);
    std::vector<Counts> counts(pieces);
    for (int shift = 0; shift < 63 && (limit - 1) >> shift > 0; shift += kDigitBits) {
        pool.parallel_for(pieces, 1, [&](int64_t piece, int64_t) {
            counts[piece].fill(0);
            for (int64_t i = piece * grain; i < std::min(n, (piece + 1) * grain); ++i)
                ++counts[piece][digit_of(pairs[i].row, shift)];
        });
        int64_t sum = 0;
        for (int64_t digit = 0; digit < kDigits; ++digit)
            for (Counts& count : counts) {
                const int64_t here = count[digit];
                count[digit] = sum;
                sum += here;
            }
        pool.parallel_for(pieces, 1, [&](int64_t piece, int64_t) {
            for (int64_t i = piece * grain; i < std::min(n, (piece + 1) * grain); ++i)
                other[counts[piece][digit_of(pairs[i].row, shift)]++] = pairs[i];
        });
        pairs.swap(other);
    }
}

}  // namespace gids
