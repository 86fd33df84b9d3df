// gather_rows and admit_rows: rows a few steps ahead are prefetched, so memory latency is paid once per stretch.
#include "tiers/gather.hpp"

#include <algorithm>
#include <atomic>
#include <string>

#include "errors.hpp"

namespace gids {

namespace {

constexpr int64_t kLine = 64;
constexpr int64_t kPieceBytes = 256 << 10;  // a piece of work: long enough to amortise claiming it

int64_t grain_of(int64_t row_bytes) { return std::max<int64_t>(kPieceBytes / std::max<int64_t>(row_bytes, 1), 64); }

void prefetch_row(const uint8_t* row, int64_t bytes) {
    // The hardware prefetcher follows a row once its first lines are asked for.
    for (int64_t k = 0; k < std::min<int64_t>(bytes, 8 * kLine); k += kLine) __builtin_prefetch(row + k);
}

template <class Body>
void for_locations(ThreadPool& pool, const AddressSpace& space, std::span<const int64_t> location, const Body& body) {
    constexpr int64_t kAhead = 4;
    std::atomic<int64_t> bad{-1};
    pool.parallel_for(location.size(), grain_of(space.row_bytes), [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
            if (!space.holds(location[i])) {
                bad.store(i, std::memory_order_relaxed);  // relaxed: any bad index will do for the message
                return;
            }
        }
        for (int64_t i = begin; i < end; ++i) {
            if (i + kAhead < end) prefetch_row(space.row(location[i + kAhead]), space.row_bytes);
            body(i, space.row(location[i]));
        }
    });
    if (bad >= 0)
        throw ConfigError("location must be in [0, " +
                          std::to_string(space.capacity + space.host_rows + space.group_rows) + ") (got " +
                          std::to_string(location[bad]) + ")");
}

template <class To, class From>
void gather_as(ThreadPool& pool, const AddressSpace& space, std::span<const int64_t> location, uint8_t* out,
               int64_t dim) {
    To* values = reinterpret_cast<To*>(out);
    for_locations(pool, space, location, [&](int64_t i, const uint8_t* row) {
        convert_row(Serial{}, values + i * dim, reinterpret_cast<const From*>(row), dim);
    });
}

template <class To>
void gather_to(ThreadPool& pool, const AddressSpace& space, std::span<const int64_t> location, uint8_t* out, DType from,
               int64_t dim) {
    switch (from) {
        case DType::kFloat16:
            return gather_as<To, Float16>(pool, space, location, out, dim);
        case DType::kBFloat16:
            return gather_as<To, BFloat16>(pool, space, location, out, dim);
        case DType::kFloat32:
            return gather_as<To, float>(pool, space, location, out, dim);
        case DType::kFloat64:
            return gather_as<To, double>(pool, space, location, out, dim);
        case DType::kUInt8:
            return gather_as<To, uint8_t>(pool, space, location, out, dim);
        case DType::kInt8:
            return gather_as<To, int8_t>(pool, space, location, out, dim);
        case DType::kInt16:
            return gather_as<To, int16_t>(pool, space, location, out, dim);
        case DType::kInt32:
            return gather_as<To, int32_t>(pool, space, location, out, dim);
        case DType::kInt64:
            return gather_as<To, int64_t>(pool, space, location, out, dim);
    }
}

}  // namespace

void gather_rows(ThreadPool& pool, const AddressSpace& space, std::span<const int64_t> location, uint8_t* out, DType to,
                 DType from, int64_t dim) {
    if (to == from) {
        for_locations(pool, space, location, [&](int64_t i, const uint8_t* row) {
            copy_row(Serial{}, out + i * space.row_bytes, row, space.row_bytes);
        });
        return;
    }
    switch (to) {
        case DType::kFloat16:
            return gather_to<Float16>(pool, space, location, out, from, dim);
        case DType::kBFloat16:
            return gather_to<BFloat16>(pool, space, location, out, from, dim);
        case DType::kFloat32:
            return gather_to<float>(pool, space, location, out, from, dim);
        case DType::kFloat64:
            return gather_to<double>(pool, space, location, out, from, dim);
        default:
            throw ConfigError("dtype must be the table's own or a float type");
    }
}

void admit_rows(ThreadPool& pool, uint8_t* cache, std::span<const int64_t> slot, const uint8_t* group,
                std::span<const int64_t> position, int64_t row_bytes) {
    pool.parallel_for(slot.size(), grain_of(row_bytes), [&](int64_t begin, int64_t end) {
        for (int64_t k = begin; k < end; ++k)
            copy_row(Serial{}, cache + slot[k] * row_bytes, group + position[k] * row_bytes, row_bytes);
    });
}

}  // namespace gids
