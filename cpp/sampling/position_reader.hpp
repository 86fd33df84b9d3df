// Values on disk by edge position, for any number of threads. Many at once are picked out of passes over the file; few
// at once come in granules of neighbouring values, which are kept for a while.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "sampling/granule_cache.hpp"
#include "sampling/node_set.hpp"
#include "sampling/sweeps.hpp"

namespace gids {

enum class ValueKind { kInt32, kInt64, kFloat32 };

class PositionReader {
public:
    struct Options {
        ValueKind kind = ValueKind::kInt32;
        int64_t granule_items = 16;      // consecutive values that are read and kept together
        int64_t cache_bytes = 0;         // for granules that were read; 0: values only
        int64_t group_bytes = 64 << 20;  // for what is being read, and finding it
    };
    struct Stats {
        uint64_t values = 0;    // asked for
        uint64_t granules = 0;  // asked of the cache, distinct within their request
        uint64_t cached = 0;    // of these, found in it
        uint64_t requests = 0;  // of threads
        uint64_t sweeps = 0;    // passes that served them
    };

    // values: reader of rows of one value. granules: of rows of granule_items values, null where there is no cache.
    // Both must outlive this. tail: the values behind the last whole granule. check_interrupt: called while waiting,
    // about ten times a second; may throw, or be empty.
    PositionReader(storage::Reader& values, storage::Reader* granules, Options options, std::vector<std::byte> tail,
                   int64_t num_values, std::function<void()> check_interrupt);

    // out[i] becomes the value at positions[i]. Throws StorageError where a read fails.
    void read(const int64_t* positions, int64_t count, int64_t* out);
    void read(const int64_t* positions, int64_t count, float* out);

    Stats stats() const;
    size_t bytes() const;

private:
    // What belongs to one process: in a forked child, locks may be held by threads that only the parent has.
    struct Shared {
        explicit Shared(const PositionReader& reader);
        Sweeps values;
        std::unique_ptr<Sweeps> granules;
        GranuleCache cache;
        TablePool tables;
    };

    Shared& here();
    Sweeps::Options passes_of_values() const;
    template <class Out>
    void read_any(const int64_t* positions, int64_t count, Out* out);
    template <class Value, class Out>
    void read_values(Shared& shared, const int64_t* positions, int64_t count, Out* out);
    template <class Value, class Out>
    void read_granules(Shared& shared, const int64_t* positions, int64_t count, Out* out);

    storage::Reader& values_reader_;
    storage::Reader* const granules_reader_;
    const Options options_;
    const int64_t item_bytes_;
    const int64_t granule_bytes_;
    const int64_t num_values_;
    const int64_t num_granules_;  // whole ones
    const std::vector<std::byte> tail_;
    const std::function<void()> check_interrupt_;
    std::unique_ptr<Shared> shared_;
    std::atomic<int> pid_;   // seq_cst: whoever sees this process's id sees its state
    std::mutex fork_mutex_;  // taken only in a forked child, while its state is made
    std::atomic<uint64_t> values_{0}, granules_{0}, cached_{0};
};

}  // namespace gids
