// Stable sort of (row, occurrence) pairs by row, in parallel; the result does not depend on the number of threads.
#pragma once

#include <cstdint>
#include <vector>

#include "thread_pool.hpp"

namespace gids {

struct RowAt {
    int64_t row;
    int64_t at;
};

// Sorts by row; rows are in [0, limit).
void radix_sort(ThreadPool& pool, std::vector<RowAt>& pairs, int64_t limit);

}  // namespace gids
