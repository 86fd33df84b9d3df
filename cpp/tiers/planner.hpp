// Plans groups of batches on the host: the passes of kernels/cache_plan.cuh, run on a thread pool.
#pragma once

#include <cstdint>
#include <deque>
#include <span>
#include <vector>

#include "cache_plan.cuh"
#include "tiers/radix_sort.hpp"
#include "tiers/row_map_host.hpp"
#include "tiers/sieve.hpp"

namespace gids {

enum class PolicyKind { kRandom, kLru, kSieve, kGids, kWindow };

struct PlannerOptions {
    int64_t capacity;  // cache slots
    int64_t num_rows;  // of the table
    PolicyKind policy;
    uint64_t seed;
};

// requests == cache + host + disk + duplicates
struct PlanCounters {
    int64_t requests = 0, cache = 0, host = 0, disk = 0, duplicates = 0;
};

struct GroupPlanned {
    std::vector<int64_t> disk_rows;  // sorted, unique
    // Row admit_position[k] of the group's buffer goes to cache slot admit_slot[k] once batch b has been gathered, for
    // admit_begin[b] <= k < admit_begin[b + 1].
    std::vector<int64_t> admit_position, admit_slot, admit_begin;
    std::vector<PlanCounters> counters;  // per batch
};

class Planner {
public:
    explicit Planner(const PlannerOptions& options);

    // Constant rows that the host buffer serves; the entries outlive the planner. No entries: no host buffer.
    void set_host(RowMap rows, int64_t count);

    // How often each row of the table is expected to be used, in levels of use_level.cuh; the levels outlive the
    // planner. Without them `window` counts uses while a row is cached.
    void set_popularity(std::span<const uint8_t> levels);

    // Whether the policy looks ahead and has slots to decide about: then every batch is observed, in order, before it
    // is planned.
    bool looks_ahead() const {
        return options_.capacity > 0 &&
               (options_.policy == PolicyKind::kWindow || options_.policy == PolicyKind::kGids);
    }
    void observe(ThreadPool& pool, std::span<const int64_t> rows);
    // Forgets what was observed and not planned.
    void forget_window();
    // Empties the cache.
    void reset();

    // Plans the next `batches`; locations[b] gets one address per row. Nothing changes if a row is out of range.
    GroupPlanned plan(ThreadPool& pool, const std::vector<std::span<const int64_t>>& batches,
                      const std::vector<std::span<int64_t>>& locations);

    int64_t capacity() const { return options_.capacity; }
    int64_t host_rows() const { return host_rows_; }
    int64_t memory_bytes() const;
    std::vector<int64_t> resident_rows() const;  // by slot; kNoRow where free

private:
    void make_room_in_window(int64_t rows);
    template <class Latest>
    int64_t observe_all(ThreadPool& pool, Latest latest, std::span<const int64_t> rows);
    void check_rows(ThreadPool& pool, std::span<const int64_t> rows) const;
    int64_t classify(ThreadPool& pool, std::span<const int64_t> rows, std::span<int64_t> out, const uint32_t* uses,
                     uint32_t group_end, std::vector<RowAt>& misses, int64_t base, PlanCounters& counters);
    void find_duplicates(ThreadPool& pool, std::vector<RowAt>& misses, const std::vector<std::span<int64_t>>& locations,
                         const std::vector<int64_t>& begins, GroupPlanned& plan, std::vector<SlotState>& states);
    void admit(ThreadPool& pool, const std::vector<SlotState>& states, uint32_t group_begin, GroupPlanned& plan);
    template <class Policy>
    void select(ThreadPool& pool, const Policy& policy, const std::vector<SlotState>& states, GroupPlanned& plan) const;
    void select_sieve(ThreadPool& pool, int64_t unique, GroupPlanned& plan);
    void spread(uint32_t group_begin, GroupPlanned& plan) const;
    void index_slots(ThreadPool& pool);
    void apply(ThreadPool& pool, const std::vector<SlotState>& states, const GroupPlanned& plan);

    PlannerOptions options_;
    RowMap hosted_{nullptr, 0};
    int64_t host_rows_ = 0;
    const uint8_t* popularity_ = nullptr;     // by row of the table, or null
    HostRowMap cached_;                       // row -> slot
    std::vector<int64_t> row_of_;             // slot -> row, kNoRow where free
    std::vector<SlotState> slots_;            // slot -> next and last use; last == kFree where free
    SieveQueue sieve_;                        // empty under other policies
    HostRowMap latest_;                       // row -> latest occurrence in the window; of a short one
    std::vector<int64_t> latest_of_row_;      // the same by row, of a long one; empty: the map has them
    std::deque<std::vector<uint32_t>> uses_;  // of the batches observed and not yet planned, from first_ on
    std::vector<uint32_t*> use_pointers_;     // uses_[k].data()
    uint32_t first_ = 0;                      // sequence number of the next batch to plan
};

}  // namespace gids
