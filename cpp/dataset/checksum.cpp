// Sums that name the damaged row; see the header for why there are two.
#include "dataset/checksum.hpp"

#include <algorithm>
#include <cstring>

namespace gids {
namespace {

constexpr uint64_t kOdd = 0x9E3779B97F4A7C15ull;

}  // namespace

uint64_t row_digest(const uint8_t* row, int64_t bytes) {
    uint64_t digest = 0, factor = kOdd;
    const int64_t words = bytes / 4;
    for (int64_t j = 0; j < words; ++j, factor += 2 * kOdd) {
        uint32_t word;
        std::memcpy(&word, row + 4 * j, 4);
        digest += factor * word;
    }
    if (const int64_t rest = bytes % 4) {
        uint32_t word = 0;
        std::memcpy(&word, row + 4 * words, static_cast<size_t>(rest));
        digest += factor * word;
    }
    return digest;
}

void row_sums(const uint8_t* data, int64_t num_rows, int64_t row_bytes, int64_t chunk_rows, uint64_t* sums,
              ThreadPool& pool) {
    const int64_t chunks = (num_rows + chunk_rows - 1) / chunk_rows;
    pool.parallel_for(chunks, 16, [&](int64_t begin, int64_t end) {
        for (int64_t chunk = begin; chunk < end; ++chunk) {
            const int64_t first = chunk * chunk_rows, count = std::min(chunk_rows, num_rows - first);
            uint64_t plain = 0, weighted = 0;
            for (int64_t i = 0; i < count; ++i) {
                const uint64_t digest = row_digest(data + (first + i) * row_bytes, row_bytes);
                plain += digest;
                weighted += static_cast<uint64_t>(i + 1) * digest;
            }
            sums[2 * chunk] = plain;
            sums[2 * chunk + 1] = weighted;
        }
    });
}

}  // namespace gids
