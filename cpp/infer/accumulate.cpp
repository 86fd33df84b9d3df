// group_edges: sort every list, then a counting sort by block. add_rows: threads own destinations, so nothing is
// atomic.
#include "infer/accumulate.hpp"

#include <algorithm>
#include <atomic>
#include <limits>
#include <string>

#include "errors.hpp"

namespace gids::infer {

namespace {

constexpr int64_t kListsGrain = 4096;
constexpr int64_t kEdgesGrain = 4096;
constexpr int64_t kAhead = 8;

std::string text(int64_t value) { return std::to_string(value); }

}  // namespace

template <class Id>
EdgeBlocks group_edges(ThreadPool& pool, std::span<const int64_t> offsets, std::span<Id> sources, int64_t num_sources,
                       int64_t block_rows) {
    if (offsets.empty() || block_rows < 1) throw ConfigError("edges must have offsets, and blocks rows");
    const auto count = static_cast<int64_t>(offsets.size()) - 1;
    if (offsets[count] - offsets[0] != static_cast<int64_t>(sources.size()))
        throw ConfigError("offsets must span the " + text(sources.size()) + " edges (got " +
                          text(offsets[count] - offsets[0]) + ")");
    for (const int64_t most : {count, block_rows})
        if (most > std::numeric_limits<uint32_t>::max())
            throw ConfigError("destinations and rows of a block must be fewer than 2^32 (got " + text(most) + ")");
    std::atomic<int64_t> bad{-1};
    pool.parallel_for(count, kListsGrain, [&](int64_t first, int64_t last) {
        for (int64_t d = first; d < last; ++d) {
            const int64_t begin = offsets[d] - offsets[0], end = offsets[d + 1] - offsets[0];
            if (begin < 0 || end < begin || end > static_cast<int64_t>(sources.size())) {
                bad.store(d, std::memory_order_relaxed);  // relaxed: any bad destination will do for the message
                return;
            }
            std::sort(sources.begin() + begin, sources.begin() + end);
            if (begin < end && (sources[begin] < 0 || static_cast<int64_t>(sources[end - 1]) >= num_sources)) {
                bad.store(d, std::memory_order_relaxed);
                return;
            }
        }
    });
    if (bad >= 0)
        throw DatasetError("in-edges of destination " + text(bad) + " of this part must be sources in [0, " +
                           text(num_sources) + ")");
    EdgeBlocks found;
    const int64_t blocks = (num_sources + block_rows - 1) / block_rows;
    found.begin.assign(blocks + 1, 0);
    for (const Id source : sources) ++found.begin[source / block_rows + 1];
    for (int64_t b = 0; b < blocks; ++b) found.begin[b + 1] += found.begin[b];
    found.source.resize(sources.size());
    found.destination.resize(sources.size());
    std::vector<int64_t> next(found.begin.begin(), found.begin.end() - 1);
    for (int64_t d = 0; d < count; ++d) {
        for (int64_t e = offsets[d] - offsets[0]; e < offsets[d + 1] - offsets[0]; ++e) {
            const int64_t block = sources[e] / block_rows, place = next[block]++;
            found.source[place] = static_cast<uint32_t>(sources[e] - block * block_rows);
            found.destination[place] = static_cast<uint32_t>(d);
        }
    }
    return found;
}

template <class Value>
void add_rows(ThreadPool& pool, std::span<const uint32_t> source, std::span<const uint32_t> destination,
              const Value* rows, int64_t num_rows, Value* sums, int64_t num_sums, int64_t dim) {
    const auto count = static_cast<int64_t>(source.size());
    if (destination.size() != source.size()) throw ConfigError("every edge must have a source and a destination");
    std::atomic<int64_t> bad{-1};
    pool.parallel_for(count, kEdgesGrain, [&](int64_t begin, int64_t end) {
        // A destination belongs to the piece in which its first edge lies.
        while (begin > 0 && begin < end && destination[begin] == destination[begin - 1]) ++begin;
        if (begin == end) return;
        while (end < count && destination[end] == destination[end - 1]) ++end;
        for (int64_t e = begin; e < end; ++e) {
            if (source[e] >= num_rows || destination[e] >= num_sums) {
                bad.store(e, std::memory_order_relaxed);  // relaxed: any bad edge will do for the message
                return;
            }
        }
        for (int64_t e = begin; e < end; ++e) {
            if (e + kAhead < end) __builtin_prefetch(rows + source[e + kAhead] * dim);
            const Value* const row = rows + source[e] * dim;
            Value* const sum = sums + destination[e] * dim;
            for (int64_t k = 0; k < dim; ++k) sum[k] += row[k];
        }
    });
    if (bad >= 0)
        throw ConfigError("edges must lead from " + text(num_rows) + " rows to " + text(num_sums) + " sums (got " +
                          text(source[bad]) + " to " + text(destination[bad]) + ")");
}

template EdgeBlocks group_edges<int32_t>(ThreadPool&, std::span<const int64_t>, std::span<int32_t>, int64_t, int64_t);
template EdgeBlocks group_edges<int64_t>(ThreadPool&, std::span<const int64_t>, std::span<int64_t>, int64_t, int64_t);
template void add_rows<float>(ThreadPool&, std::span<const uint32_t>, std::span<const uint32_t>, const float*, int64_t,
                              float*, int64_t, int64_t);
template void add_rows<double>(ThreadPool&, std::span<const uint32_t>, std::span<const uint32_t>, const double*,
                               int64_t, double*, int64_t, int64_t);

}  // namespace gids::infer
