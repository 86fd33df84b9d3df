// Values on disk by edge position, for any number of threads: those that wait at the same time are served by one sweep
// over the file, and what was read is kept for a while.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "sampling/granule_cache.hpp"
#include "sampling/node_set.hpp"
#include "storage/reader.hpp"

namespace gids {

enum class ValueKind { kInt32, kInt64, kFloat32 };

class PositionReader {
public:
    struct Options {
        ValueKind kind = ValueKind::kInt32;
        int64_t granule_items = 16;      // consecutive values that are read and kept together
        int64_t cache_bytes = 0;         // for granules that were read
        int64_t group_bytes = 64 << 20;  // for granules that are being read, and finding them
    };
    struct Stats {
        uint64_t values = 0;    // asked for
        uint64_t granules = 0;  // distinct within their request
        uint64_t cached = 0;    // of these, found in the cache
        uint64_t requests = 0;  // of threads
        uint64_t sweeps = 0;    // that served them
    };

    // reader: of granules, i.e. rows of granule_items values; it must outlive this. tail: the values behind the last
    // whole granule. check_interrupt: called while waiting, about ten times a second; may throw, or be empty.
    PositionReader(storage::Reader& reader, Options options, std::vector<std::byte> tail, int64_t num_values,
                   std::function<void()> check_interrupt);

    // out[i] becomes the value at positions[i]. Throws StorageError where a read fails.
    void read(const int64_t* positions, int64_t count, int64_t* out);
    void read(const int64_t* positions, int64_t count, float* out);

    Stats stats() const;
    size_t bytes() const;

private:
    // One thread's granules. The sweep that serves it fills `frames`; it may outlive the thread's interest.
    struct Request {
        Array<int64_t> granules;
        std::shared_ptr<Array<std::byte>> frames;  // of the whole sweep
        int64_t first_frame = 0;
        bool taken = false;  // by a sweep
        bool done = false;
        bool failed = false;
        storage::Failure failure;
    };
    // What belongs to one process: in a forked child, locks may be held by threads that only the parent has.
    struct Shared {
        Shared(int64_t cache_bytes, int64_t granule_bytes) : cache(cache_bytes, granule_bytes) {}
        std::mutex mutex;
        std::condition_variable changed;
        std::deque<std::shared_ptr<Request>> waiting;  // guarded by mutex
        int sweeps = 0;                                // guarded by mutex; those that run
        int64_t under_way = 0;                         // guarded by mutex; granules of these
        GranuleCache cache;
        TablePool tables;
    };

    Shared& here();
    template <class Out>
    void read_any(const int64_t* positions, int64_t count, Out* out);
    // Where each granule of a set is once it was read.
    struct Frames {
        std::shared_ptr<Request> request;
        Array<std::byte> found;  // granules that needed no read
        Array<int32_t> places;   // by number in the set: frame of the request, or ~(index in found)
    };
    Frames fetch(Shared& shared, Array<int64_t> granules);
    void serve(Shared& shared, const std::shared_ptr<Request>& mine);
    void sweep(std::span<const std::shared_ptr<Request>> requests);
    void sweep_or_fail(std::span<const std::shared_ptr<Request>> requests);
    template <class Value, class Out>
    void gather(const Frames& frames, const int64_t* positions, const int64_t* numbers, int64_t count, Out* out) const;

    storage::Reader& reader_;
    const Options options_;
    const int64_t item_bytes_;
    const int64_t granule_bytes_;
    const int64_t num_granules_;   // whole ones
    const int64_t most_granules_;  // of all sweeps that run; a single request may reach it alone
    const std::vector<std::byte> tail_;
    const std::function<void()> check_interrupt_;
    std::unique_ptr<Shared> shared_;
    std::atomic<int> pid_;   // seq_cst: whoever sees this process's id sees its state
    std::mutex fork_mutex_;  // taken only in a forked child, while its state is made
    std::atomic<uint64_t> values_{0}, granules_{0}, cached_{0}, requests_{0}, sweeps_{0};
};

}  // namespace gids
