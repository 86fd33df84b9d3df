// Sorting of packed (key, position) words, the expensive half of planning.
#pragma once

#include <cstdint>

#include "thread_pool.hpp"

namespace gids::storage {

// Sorts words[0, count) ascending by word >> key_shift, stable; all keys are in [low_key, high_key]. `spare` has room
// for count words and holds nothing useful afterwards. The result is in `words`. `pool` may be null.
void sort_words(uint64_t* words, uint64_t* spare, int64_t count, int key_shift, uint64_t low_key, uint64_t high_key,
                ThreadPool* pool);

}  // namespace gids::storage
