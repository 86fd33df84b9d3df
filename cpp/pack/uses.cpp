// One pass over a batch's rows each; ids ascend, so memory is read in order.
#include "pack/uses.hpp"

namespace gids::pack {

template <class Id>
void count_uses(std::span<const Id> ids, std::span<uint32_t> counts) {
    for (const Id id : ids) ++counts[static_cast<size_t>(id)];
}

template <class Id>
int64_t mark_rows(std::span<const Id> ids, int32_t segment, std::span<int32_t> marks) {
    int64_t found = 0;
    for (const Id id : ids) {
        int32_t& mark = marks[static_cast<size_t>(id)];
        const bool is_new = mark != segment && mark != kNeverCounted;
        found += is_new;
        mark = is_new ? segment : mark;
    }
    return found;
}

template void count_uses(std::span<const uint32_t>, std::span<uint32_t>);
template void count_uses(std::span<const int64_t>, std::span<uint32_t>);
template int64_t mark_rows(std::span<const uint32_t>, int32_t, std::span<int32_t>);
template int64_t mark_rows(std::span<const int64_t>, int32_t, std::span<int32_t>);

}  // namespace gids::pack
