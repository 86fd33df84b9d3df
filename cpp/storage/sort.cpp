// One partition by the top key bits, so that every bucket fits the L2 cache; then each bucket on its own, in parallel.
#include "storage/sort.hpp"

#include <algorithm>
#include <bit>
#include <utility>
#include <vector>

namespace gids::storage {
namespace {

constexpr int kDigitBits = 11;
constexpr int64_t kDigits = int64_t{1} << kDigitBits;
constexpr int64_t kSmall = 96;                        // below this, comparing beats counting
constexpr int64_t kBucketWords = int64_t{1} << 14;    // 128 KiB of words and as much spare: half an L2 cache
constexpr int64_t kParallelWords = int64_t{1} << 16;  // below this, waking threads costs more than it saves

// LSD radix sort of the bits [low, high) of the words; leaves the result in `words`.
void sort_bits(uint64_t* words, uint64_t* spare, int64_t count, int low, int high) {
    if (count < kSmall) {
        // Positions make all words distinct and ascending for equal keys, so comparing whole words is stable.
        std::sort(words, words + count);
        return;
    }
    const int bits = high - low;
    const int passes = std::max(1, (bits + kDigitBits - 1) / kDigitBits);
    const int digit_bits = (bits + passes - 1) / passes;
    uint64_t *from = words, *to = spare;
    std::vector<int64_t> place(size_t{1} << digit_bits);
    for (int pass = 0; pass < passes; ++pass) {
        const int shift = low + pass * digit_bits;
        const uint64_t mask = (uint64_t{1} << digit_bits) - 1;
        std::fill(place.begin(), place.end(), 0);
        for (int64_t i = 0; i < count; ++i) ++place[from[i] >> shift & mask];
        int64_t sum = 0;
        for (auto& slot : place) sum += std::exchange(slot, sum);
        for (int64_t i = 0; i < count; ++i) to[place[from[i] >> shift & mask]++] = from[i];
        std::swap(from, to);
    }
    if (from != words) std::copy(from, from + count, words);
}

}  // namespace

void sort_words(uint64_t* words, uint64_t* spare, int64_t count, int key_shift, uint64_t low_key, uint64_t high_key,
                ThreadPool* pool) {
    // Words differ only below the highest bit in which the extreme keys differ.
    const int key_bits = std::bit_width(low_key ^ high_key);
    if (key_bits == 0 || count < 2) return;
    const int high = key_shift + key_bits;
    if (count <= kBucketWords) {
        sort_bits(words, spare, count, key_shift, high);
        return;
    }
    const int top_bits =
        std::min<int>({kDigitBits, key_bits, static_cast<int>(std::bit_width(static_cast<uint64_t>(count / kSmall)))});
    const int shift = high - top_bits;
    const uint64_t mask = (uint64_t{1} << top_bits) - 1;
    const int64_t buckets = int64_t{1} << top_bits;

    if (count < kParallelWords) pool = nullptr;
    const int64_t chunks = pool ? pool->threads() : 1;
    const int64_t chunk = (count + chunks - 1) / chunks;
    std::vector<int64_t> place(static_cast<size_t>(chunks * kDigits), 0);  // [chunk][bucket]
    for_pieces(pool, chunks, 1, [&](int64_t first, int64_t last) {
        for (int64_t c = first; c < last; ++c) {
            int64_t* counts = place.data() + c * kDigits;
            const int64_t end = std::min(count, (c + 1) * chunk);
            for (int64_t i = c * chunk; i < end; ++i) ++counts[words[i] >> shift & mask];
        }
    });
    std::vector<int64_t> begins(static_cast<size_t>(buckets + 1), count);
    int64_t sum = 0;
    for (int64_t b = 0; b < buckets; ++b) {
        begins[static_cast<size_t>(b)] = sum;
        for (int64_t c = 0; c < chunks; ++c) sum += std::exchange(place[static_cast<size_t>(c * kDigits + b)], sum);
    }
    for_pieces(pool, chunks, 1, [&](int64_t first, int64_t last) {
        for (int64_t c = first; c < last; ++c) {
            int64_t* to = place.data() + c * kDigits;
            const int64_t end = std::min(count, (c + 1) * chunk);
            for (int64_t i = c * chunk; i < end; ++i) spare[to[words[i] >> shift & mask]++] = words[i];
        }
    });
    for_pieces(pool, buckets, std::max<int64_t>(1, buckets / 64), [&](int64_t first, int64_t last) {
        for (int64_t b = first; b < last; ++b) {
            const int64_t begin = begins[static_cast<size_t>(b)], size = begins[static_cast<size_t>(b) + 1] - begin;
            if (size == 0) continue;
            if (shift > key_shift) sort_bits(spare + begin, words + begin, size, key_shift, shift);
            std::copy(spare + begin, spare + begin + size, words + begin);
        }
    });
}

}  // namespace gids::storage
