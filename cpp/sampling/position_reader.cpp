// PositionReader: granules are numbered, looked up, read in sweeps that threads lead in turn, and picked apart.
#include "sampling/position_reader.hpp"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <type_traits>
#include <utility>

#include "errors.hpp"

namespace gids {
namespace {

constexpr int kSweeps = 4;                  // some are planned or picked apart while the disk works on the others
constexpr int64_t kPositionsAtOnce = 4096;  // positions between two looks at how many granules they need
constexpr int64_t kGranulesAhead = 16;      // values or granules between prefetch and use
constexpr int64_t kGranuleBytes = 56;  // what a granule that is being read costs beside its bytes: ids, plan, numbering
constexpr int64_t kLeastGranules = 4096;
constexpr auto kDiskSlice = std::chrono::milliseconds(100);

int64_t bytes_of(ValueKind kind) { return kind == ValueKind::kInt64 ? 8 : 4; }

}  // namespace

PositionReader::PositionReader(storage::Reader& reader, Options options, std::vector<std::byte> tail,
                               int64_t num_values, std::function<void()> check_interrupt)
    : reader_(reader),
      options_(options),
      item_bytes_(bytes_of(options.kind)),
      granule_bytes_(item_bytes_ * options.granule_items),
      num_granules_(num_values / options.granule_items),
      most_granules_(std::max(options.group_bytes / (granule_bytes_ + kGranuleBytes), kLeastGranules)),
      tail_(std::move(tail)),
      check_interrupt_(std::move(check_interrupt)),
      shared_(std::make_unique<Shared>(options.cache_bytes, granule_bytes_)),
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
        shared_ = std::make_unique<Shared>(options_.cache_bytes, granule_bytes_);
        pid_ = getpid();
    }
    return *shared_;
}

void PositionReader::read(const int64_t* positions, int64_t count, int64_t* out) { read_any(positions, count, out); }
void PositionReader::read(const int64_t* positions, int64_t count, float* out) { read_any(positions, count, out); }

template <class Out>
void PositionReader::read_any(const int64_t* positions, int64_t count, Out* out) {
    Shared& shared = here();
    // Numbers of granules wait where the values will be, if they fit there.
    constexpr bool in_place = std::is_same_v<Out, int64_t>;
    Array<int64_t> scratch(in_place ? 0 : count);
    const int64_t items = options_.granule_items;
    for (int64_t begin = 0, end = 0; begin < count; begin = end) {
        int64_t* numbers = nullptr;
        if constexpr (in_place) numbers = out + begin;
        else numbers = scratch.data() + begin;
        NodeSet set(shared.tables, num_granules_ + 1);
        set.expect(std::min(count - begin, 2 * most_granules_));
        for (; end < count && set.size() < most_granules_;) {
            const int64_t piece = std::min(kPositionsAtOnce, count - end);
            for (int64_t i = 0; i < piece; ++i) numbers[end - begin + i] = positions[end + i] / items;
            set.add(numbers + (end - begin), piece);
            end += piece;
        }
        const Frames frames = fetch(shared, set.take_nodes());
        if constexpr (in_place) {
            if (options_.kind == ValueKind::kInt32)
                gather<int32_t>(frames, positions + begin, numbers, end - begin, out + begin);
            else gather<int64_t>(frames, positions + begin, numbers, end - begin, out + begin);
        } else {
            gather<float>(frames, positions + begin, numbers, end - begin, out + begin);
        }
    }
    // relaxed: counts that nobody reads anything else by
    values_.fetch_add(static_cast<uint64_t>(count), std::memory_order_relaxed);
}

template <class Value, class Out>
void PositionReader::gather(const Frames& frames, const int64_t* positions, const int64_t* numbers, int64_t count,
                            Out* out) const {
    const std::byte* read =
        frames.request->done ? frames.request->frames->data() + frames.request->first_frame * granule_bytes_ : nullptr;
    const auto frame = [&](int64_t number) {
        if (frames.places.size() == 0) return read + number * granule_bytes_;
        const int64_t place = frames.places[number];
        return place >= 0 ? read + place * granule_bytes_ : frames.found.data() + ~place * granule_bytes_;
    };
    for (int64_t i = 0; i < count; ++i) {
        if (i + kGranulesAhead < count) __builtin_prefetch(frame(numbers[i + kGranulesAhead]));
        Value value;
        std::memcpy(&value, frame(numbers[i]) + positions[i] % options_.granule_items * item_bytes_, sizeof(value));
        out[i] = static_cast<Out>(value);
    }
}

// Looks the granules up and reads those that nobody has.
PositionReader::Frames PositionReader::fetch(Shared& shared, Array<int64_t> granules) {
    Frames frames;
    frames.request = std::make_shared<Request>();
    const int64_t count = granules.size();
    granules_.fetch_add(static_cast<uint64_t>(count), std::memory_order_relaxed);
    const bool simple = shared.cache.capacity() == 0 && tail_.empty();
    if (simple) {
        frames.request->granules = std::move(granules);
    } else {
        frames.places = Array<int32_t>(count);
        frames.found = Array<std::byte>(granule_bytes_);
        int64_t found = 0, missing = 0;
        for (int64_t i = 0; i < count; ++i) {
            if (i + kGranulesAhead < count) shared.cache.prefetch(granules[i + kGranulesAhead]);
            // Room for one more at any time; what was found stays in front.
            frames.found.set_size(found * granule_bytes_);
            if ((found + 1) * granule_bytes_ > frames.found.capacity())
                frames.found.reserve(2 * (found + 1) * granule_bytes_);
            std::byte* place = frames.found.data() + found * granule_bytes_;
            bool there = false;
            if (granules[i] == num_granules_) {
                std::copy(tail_.begin(), tail_.end(), place);
                there = true;
            } else {
                there = shared.cache.find(granules[i], place);
            }
            if (there) frames.places[i] = static_cast<int32_t>(~found++);
            else {
                frames.places[i] = static_cast<int32_t>(missing);
                granules[missing++] = granules[i];  // the first ones are those to read
            }
        }
        frames.found.set_size(found * granule_bytes_);
        granules.set_size(missing);
        frames.request->granules = std::move(granules);
        cached_.fetch_add(static_cast<uint64_t>(found), std::memory_order_relaxed);
    }
    const Request& request = *frames.request;
    if (request.granules.size() == 0) return frames;
    requests_.fetch_add(1, std::memory_order_relaxed);
    serve(shared, frames.request);
    if (shared.cache.capacity() > 0) {
        const std::byte* read = request.frames->data() + request.first_frame * granule_bytes_;
        for (int64_t i = 0; i < request.granules.size(); ++i) {
            if (i + kGranulesAhead < request.granules.size())
                shared.cache.prefetch(request.granules[i + kGranulesAhead]);
            shared.cache.insert(request.granules[i], read + i * granule_bytes_);
        }
    }
    return frames;
}

// Waits until the request is served. Whoever finds a free sweep and a request of its own that waits leads: it takes all
// that wait, as far as there is memory.
void PositionReader::serve(Shared& shared, const std::shared_ptr<Request>& mine) {
    std::unique_lock lock(shared.mutex);
    shared.waiting.push_back(mine);
    const auto fits = [&](const Request& request, int64_t beside) {
        return beside == 0 || beside + request.granules.size() <= most_granules_;
    };
    const auto may_lead = [&] {
        return !mine->taken && shared.sweeps < kSweeps && fits(*shared.waiting.front(), shared.under_way);
    };
    while (!mine->done) {
        if (may_lead()) {
            std::vector<std::shared_ptr<Request>> taken;
            int64_t granules = 0;
            while (!shared.waiting.empty() && fits(*shared.waiting.front(), shared.under_way + granules)) {
                taken.push_back(std::move(shared.waiting.front()));
                shared.waiting.pop_front();
                taken.back()->taken = true;
                granules += taken.back()->granules.size();
            }
            ++shared.sweeps;
            shared.under_way += granules;
            lock.unlock();
            std::exception_ptr interrupt;
            try {
                sweep_or_fail(taken);
            } catch (...) {  // an interrupt of this thread: the others' requests are left to somebody else
                interrupt = std::current_exception();
            }
            lock.lock();
            --shared.sweeps;
            shared.under_way -= granules;
            for (auto& request : taken) {
                if (!interrupt) request->done = true;
                else if (request != mine) {
                    request->taken = false;
                    shared.waiting.push_back(request);
                }
            }
            shared.changed.notify_all();
            if (interrupt) {
                std::erase(shared.waiting, mine);
                std::rethrow_exception(interrupt);
            }
        } else if (!shared.changed.wait_for(lock, kDiskSlice, [&] { return mine->done || may_lead(); })) {
            if (!check_interrupt_) continue;
            lock.unlock();
            try {
                check_interrupt_();
            } catch (...) {
                lock.lock();
                std::erase(shared.waiting, mine);
                throw;
            }
            lock.lock();
        }
    }
    if (mine->failed)
        throw StorageError(mine->failure.what, mine->failure.path, mine->failure.offset, mine->failure.length,
                           mine->failure.error_number);
}

// A read that fails in a sweep of several fails only those that asked for it.
void PositionReader::sweep_or_fail(std::span<const std::shared_ptr<Request>> requests) {
    try {
        sweep(requests);
        return;
    } catch (const StorageError& error) {
        if (requests.size() == 1) {
            requests[0]->failed = true;
            requests[0]->failure = {error.what(), error.path, error.offset, error.length, error.error_number};
            return;
        }
    }
    for (const auto& request : requests) sweep_or_fail({&request, 1});
}

void PositionReader::sweep(std::span<const std::shared_ptr<Request>> requests) {
    sweeps_.fetch_add(1, std::memory_order_relaxed);
    int64_t total = 0;
    for (const auto& request : requests) {
        request->first_frame = total;
        total += request->granules.size();
    }
    Array<int64_t> rows(requests.size() == 1 ? 0 : total);
    if (requests.size() > 1)
        for (const auto& request : requests)
            std::copy(request->granules.begin(), request->granules.end(), rows.begin() + request->first_frame);
    const auto* all = requests.size() == 1 ? requests[0]->granules.data() : rows.data();
    const auto frames = std::make_shared<Array<std::byte>>(total * granule_bytes_);
    for (const auto& request : requests) request->frames = frames;
    const auto job = reader_.submit({all, static_cast<size_t>(total)}, frames->data(), Conversion::kNone);
    while (!job->wait_for(kDiskSlice)) {
        if (!check_interrupt_) continue;
        try {
            check_interrupt_();
        } catch (...) {
            job->cancel();
            throw;
        }
    }
}

PositionReader::Stats PositionReader::stats() const {
    const auto relaxed = std::memory_order_relaxed;  // counts that nobody reads anything else by
    return {values_.load(relaxed), granules_.load(relaxed), cached_.load(relaxed), requests_.load(relaxed),
            sweeps_.load(relaxed)};
}

size_t PositionReader::bytes() const { return shared_->cache.bytes() + shared_->tables.bytes(); }

}  // namespace gids
