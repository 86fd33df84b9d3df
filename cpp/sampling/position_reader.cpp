// PositionReader: values straight from passes over the file, or by way of the granules that hold them.
#include "sampling/position_reader.hpp"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <chrono>
#include <cstring>
#include <future>
#include <optional>
#include <type_traits>
#include <utility>

#include "errors.hpp"

namespace gids {
namespace {

constexpr int kValuePasses = 2;         // one is planned while the disk works on the other; who comes later shares
constexpr int kGranulePasses = 4;       // few reads each: one's wait for the disk is the next one's
constexpr int64_t kGranuleShare = 8;    // of the memory for what is being read
constexpr int64_t kGranulesAhead = 16;  // granules between prefetch and use
// What is being read costs, beside its bytes: positions, a plan, its sorting; for granules numbering, too.
constexpr int64_t kValueBytes = 28, kGranuleBytes = 56;
constexpr int64_t kLeastRows = 4096;
// A request that would replace more than this share of the cache passes it by, or it would never hold what others need.
constexpr int64_t kCacheShare = 16;

constexpr auto kCheckEvery = std::chrono::milliseconds(100);
constexpr int64_t kPartsAtLeast = 4, kPartRows = 256 << 10;  // what many values are read in, where memory has room
constexpr int64_t kMostOrdered = int64_t{1} << 30;           // positions whose order is kept in 32 bits
constexpr int kFileRangeBits = 12;
constexpr size_t kFileRanges = size_t{1} << kFileRangeBits;

int64_t bytes_of(ValueKind kind) { return kind == ValueKind::kInt64 ? 8 : 4; }

// Positions by where in the file they are, in parts of at most `most`: part after part, every byte of the file is
// passed once, where parts in the order of the positions would each pass all of it.
struct FileParts {
    FileParts(const int64_t* positions, int64_t count, int64_t num_values, int64_t most) : order(count) {
        // A power of two of values per range: dividing would cost more than all the rest. What is out of bounds is
        // refused when it is read.
        const int bits =
            std::max(static_cast<int>(std::bit_width(static_cast<uint64_t>(num_values))) - kFileRangeBits, 0);
        const auto range_of = [&](int64_t position) {
            return std::min(static_cast<size_t>(static_cast<uint64_t>(position) >> bits), kFileRanges - 1);
        };
        std::vector<int64_t> counts(kFileRanges, 0);
        for (int64_t i = 0; i < count; ++i) ++counts[range_of(positions[i])];
        bounds.push_back(0);
        int64_t sum = 0;
        for (int64_t& range : counts) {
            const int64_t size = std::exchange(range, sum);
            if (sum > bounds.back() && sum + size - bounds.back() > most) bounds.push_back(sum);
            sum += size;
            while (sum - bounds.back() > most) bounds.push_back(bounds.back() + most);  // a range of more than that
        }
        bounds.push_back(sum);
        for (int64_t i = 0; i < count; ++i) order[counts[range_of(positions[i])]++] = static_cast<int32_t>(i);
    }

    Array<int32_t> order;         // indices of positions
    std::vector<int64_t> bounds;  // of the parts in it
};

// Rows that a thread of its own waits for. Whoever gives up waiting is not kept by a device that hangs: the read is
// told to end.
class ReadAhead {
public:
    ReadAhead(Sweeps& sweeps, Array<int64_t> rows)
        : given_up_(std::make_shared<std::atomic<bool>>(false)),
          found_(std::async(std::launch::async, [&sweeps, given_up = given_up_, rows = std::move(rows)]() mutable {
              return sweeps.read(std::move(rows), [given_up] {
                  if (given_up->load()) throw CancelledError("nobody waits for the read any more");
              });
          })) {}
    ReadAhead(ReadAhead&&) = default;
    ReadAhead& operator=(ReadAhead&&) = default;
    ~ReadAhead() {
        if (given_up_) given_up_->store(true);  // the future's destructor waits for the thread
    }

    Sweeps::Rows get(const std::function<void()>& check_interrupt) {
        while (found_.wait_for(kCheckEvery) != std::future_status::ready)
            if (check_interrupt) check_interrupt();
        return found_.get();
    }

private:
    std::shared_ptr<std::atomic<bool>> given_up_;
    std::future<Sweeps::Rows> found_;
};

}  // namespace

PositionReader::Shared::Shared(const PositionReader& reader)
    : values(reader.values_reader_, reader.passes_of_values()),
      cache(reader.granules_reader_ == nullptr ? 0 : reader.options_.cache_bytes, reader.granule_bytes_) {
    if (cache.capacity() == 0) return;
    const int64_t most = reader.options_.group_bytes / kGranuleShare / (reader.granule_bytes_ + kGranuleBytes);
    granules = std::make_unique<Sweeps>(
        *reader.granules_reader_, Sweeps::Options{reader.granule_bytes_, std::max(most, kLeastRows), kGranulePasses});
}

Sweeps::Options PositionReader::passes_of_values() const {
    const bool shares = granules_reader_ != nullptr && options_.cache_bytes > 0;
    const int64_t bytes = options_.group_bytes - (shares ? options_.group_bytes / kGranuleShare : 0);
    return {item_bytes_, std::max(bytes / (item_bytes_ + kValueBytes), kLeastRows), kValuePasses};
}

PositionReader::PositionReader(storage::Reader& values, storage::Reader* granules, Options options,
                               std::vector<std::byte> tail, int64_t num_values, std::function<void()> check_interrupt)
    : values_reader_(values),
      granules_reader_(granules),
      options_(options),
      item_bytes_(bytes_of(options.kind)),
      granule_bytes_(item_bytes_ * options.granule_items),
      num_values_(num_values),
      num_granules_(num_values / options.granule_items),
      tail_(std::move(tail)),
      check_interrupt_(std::move(check_interrupt)),
      shared_(std::make_unique<Shared>(*this)),
      pid_(getpid()) {
    const int64_t left = num_values % options.granule_items * item_bytes_;
    if (static_cast<int64_t>(tail_.size()) != left)
        throw ConfigError("tail must have the " + std::to_string(left) + " bytes behind the last whole granule (got " +
                          std::to_string(tail_.size()) + ")");
}

PositionReader::Shared& PositionReader::here() {
    if (pid_ == getpid()) return *shared_;
    const std::lock_guard lock(fork_mutex_);
    if (pid_ != getpid()) {
        static_cast<void>(shared_.release());  // never freed: its locks may be held by nobody
        shared_ = std::make_unique<Shared>(*this);
        pid_ = getpid();
    }
    return *shared_;
}

void PositionReader::read(const int64_t* positions, int64_t count, int64_t* out) { read_any(positions, count, out); }
void PositionReader::read(const int64_t* positions, int64_t count, float* out) { read_any(positions, count, out); }

template <class Out>
void PositionReader::read_any(const int64_t* positions, int64_t count, Out* out) {
    Shared& shared = here();
    const bool few = shared.granules && count <= shared.cache.capacity() / kCacheShare;
    const auto read_as = [&]<class Value>(Value) {
        if (few) read_granules<Value>(shared, positions, count, out);
        else read_values<Value>(shared, positions, count, out);
    };
    if constexpr (std::is_same_v<Out, float>) read_as(float{});
    else if (options_.kind == ValueKind::kInt32) read_as(int32_t{});
    else read_as(int64_t{});
    values_.fetch_add(static_cast<uint64_t>(count), std::memory_order_relaxed);  // relaxed, here and below: counts
}

template <class Value, class Out>
void PositionReader::read_values(Shared& shared, const int64_t* positions, int64_t count, Out* out) {
    const auto take = [&](const std::byte* found, int64_t size, const auto& index) {
        for (int64_t i = 0; i < size; ++i) {
            Value value;
            std::memcpy(&value, found + i * item_bytes_, sizeof(value));
            out[index(i)] = static_cast<Out>(value);
        }
    };
    for (int64_t begin = 0, end = 0; begin < count; begin = end) {
        end = std::min(count, begin + kMostOrdered);
        const int64_t size = end - begin;
        // Also where all would fit: while one part is read, the next is planned and the last one taken apart.
        const int64_t most = std::min(shared.values.most_of_one(), std::max(size / kPartsAtLeast, kPartRows));
        if (size <= most) {
            Array<int64_t> rows(size, Buffer::Of::kProcess);
            std::copy(positions + begin, positions + end, rows.begin());
            take(shared.values.read(std::move(rows), check_interrupt_).data(), size,
                 [&](int64_t i) { return begin + i; });
            continue;
        }
        const FileParts parts(positions + begin, size, num_values_, most);
        const auto order_of = [&](size_t part) { return parts.order.data() + parts.bounds[part]; };
        const auto size_of = [&](size_t part) { return parts.bounds[part + 1] - parts.bounds[part]; };
        const auto rows_of = [&](size_t part) {
            Array<int64_t> rows(size_of(part), Buffer::Of::kProcess);
            const int32_t* order = order_of(part);
            for (int64_t i = 0; i < rows.size(); ++i) rows[i] = positions[begin + order[i]];
            return rows;
        };
        std::optional<ReadAhead> ahead;
        for (size_t part = 0; part + 1 < parts.bounds.size(); ++part) {
            if (!ahead) ahead.emplace(shared.values, rows_of(part));
            ReadAhead current = std::move(*ahead);
            ahead.reset();
            if (part + 2 < parts.bounds.size()) ahead.emplace(shared.values, rows_of(part + 1));
            const Sweeps::Rows found = current.get(check_interrupt_);
            const int32_t* order = order_of(part);
            take(found.data(), size_of(part), [&](int64_t i) { return begin + order[i]; });
        }
    }
}

// Looks the granules of the positions up and reads those that nobody has.
template <class Value, class Out>
void PositionReader::read_granules(Shared& shared, const int64_t* positions, int64_t count, Out* out) {
    Array<int64_t> numbers(count);
    for (int64_t i = 0; i < count; ++i) numbers[i] = positions[i] / options_.granule_items;
    NodeSet set(shared.tables, num_granules_ + 1);
    set.expect(count);
    set.add(numbers.data(), count);
    Array<int64_t> granules = set.take_nodes();
    const int64_t distinct = granules.size();
    Array<std::byte> found(distinct * granule_bytes_);
    Array<int64_t> missing(distinct), places(distinct);
    int64_t num_missing = 0;
    for (int64_t i = 0; i < distinct; ++i) {
        if (i + kGranulesAhead < distinct) shared.cache.prefetch(granules[i + kGranulesAhead]);
        std::byte* place = found.data() + i * granule_bytes_;
        if (granules[i] == num_granules_) std::copy(tail_.begin(), tail_.end(), place);
        else if (!shared.cache.find(granules[i], place)) {
            missing[num_missing] = granules[i];
            places[num_missing++] = i;
        }
    }
    granules_.fetch_add(static_cast<uint64_t>(distinct), std::memory_order_relaxed);
    cached_.fetch_add(static_cast<uint64_t>(distinct - num_missing), std::memory_order_relaxed);
    for (int64_t begin = 0, end = 0; begin < num_missing; begin = end) {
        end = std::min(num_missing, begin + shared.granules->most_of_one());
        Array<int64_t> rows(end - begin, Buffer::Of::kProcess);
        std::copy(missing.begin() + begin, missing.begin() + end, rows.begin());
        const Sweeps::Rows read = shared.granules->read(std::move(rows), check_interrupt_);
        for (int64_t i = begin; i < end; ++i) {
            if (i + kGranulesAhead < end) shared.cache.prefetch(missing[i + kGranulesAhead]);
            const std::byte* from = read.data() + (i - begin) * granule_bytes_;
            std::memcpy(found.data() + places[i] * granule_bytes_, from, static_cast<size_t>(granule_bytes_));
            shared.cache.insert(missing[i], from);
        }
    }
    for (int64_t i = 0; i < count; ++i) {
        Value value;
        const int64_t at = numbers[i] * granule_bytes_ + positions[i] % options_.granule_items * item_bytes_;
        std::memcpy(&value, found.data() + at, sizeof(value));
        out[i] = static_cast<Out>(value);
    }
}

PositionReader::Stats PositionReader::stats() const {
    const auto relaxed = std::memory_order_relaxed;  // counts that nobody reads anything else by
    Stats stats{values_.load(relaxed), granules_.load(relaxed), cached_.load(relaxed), shared_->values.requests(),
                shared_->values.passes()};
    if (shared_->granules) {
        stats.requests += shared_->granules->requests();
        stats.sweeps += shared_->granules->passes();
    }
    return stats;
}

size_t PositionReader::bytes() const { return shared_->cache.bytes() + shared_->tables.bytes(); }

}  // namespace gids
