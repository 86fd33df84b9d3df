// Planner: classify every batch, sort the misses, choose what stays, hand slots over.
#include "tiers/planner.hpp"

#include <algorithm>
#include <atomic>
#include <numeric>
#include <utility>

#include "errors.hpp"
#include "policy_gids.cuh"
#include "policy_lru.cuh"
#include "policy_random.cuh"
#include "policy_window.cuh"

namespace gids {

namespace {

constexpr int64_t kGrain = 8192;           // rows in a piece of a pass
constexpr int64_t kMaxBatch = 0xffffffff;  // occurrences index batches with 32 bits

RandomKey policy_key(uint64_t seed) { return {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)}; }

// Room for evicted keys too, so that the map is rebuilt once in a quarter of the capacity's admissions.
int64_t keys_for(int64_t capacity) { return capacity + capacity / 4; }

// Pieces of [0, count), and an exclusive scan of what each piece counted.
int64_t scan_pieces(std::vector<int64_t>& counts) {
    int64_t sum = 0;
    for (int64_t& count : counts) sum += std::exchange(count, sum);
    return sum;
}

}  // namespace

Planner::Planner(const PlannerOptions& options) : options_(options) {
    if (options.capacity < 0)
        throw ConfigError("capacity must not be negative (got " + std::to_string(options.capacity) + ")");
    if (options.num_rows < 0)
        throw ConfigError("num_rows must not be negative (got " + std::to_string(options.num_rows) + ")");
    reset();
}

void Planner::set_host(RowMap rows, int64_t count) {
    hosted_ = rows;
    host_rows_ = count;
}

void Planner::set_popularity(std::span<const uint8_t> levels) {
    if (static_cast<int64_t>(levels.size()) != options_.num_rows)
        throw ConfigError("popularity must have one level per row, " + std::to_string(options_.num_rows) + " (got " +
                          std::to_string(levels.size()) + ")");
    for (const uint8_t level : levels)
        if (level >= kUseLevels)
            throw ConfigError("levels of popularity must be below " + std::to_string(kUseLevels) + " (got " +
                              std::to_string(level) + ")");
    popularity_ = levels.data();
}

void Planner::reset() {
    cached_.clear(keys_for(options_.capacity));
    row_of_.assign(options_.capacity, kNoRow);
    slots_.assign(options_.capacity, SlotState{kNever, kFree, 0});
    sieve_.clear();
    forget_window();
}

void Planner::forget_window() {
    latest_.clear(0);
    latest_of_row_ = {};
    uses_.clear();
    use_pointers_.clear();
    for (SlotState& slot : slots_) slot.next = kNever;
}

int64_t Planner::memory_bytes() const {
    int64_t bytes = cached_.bytes() + latest_.bytes() + sieve_.bytes();
    bytes += static_cast<int64_t>(latest_of_row_.capacity() * sizeof(int64_t));
    bytes += static_cast<int64_t>(row_of_.capacity() * sizeof(int64_t) + slots_.capacity() * sizeof(SlotState));
    for (const auto& uses : uses_) bytes += static_cast<int64_t>(uses.capacity() * sizeof(uint32_t));
    return bytes;
}

std::vector<int64_t> Planner::resident_rows() const { return row_of_; }

void Planner::check_rows(ThreadPool& pool, std::span<const int64_t> rows) const {
    if (static_cast<int64_t>(rows.size()) > kMaxBatch)
        throw ConfigError("a batch must have fewer than 2^32 rows (got " + std::to_string(rows.size()) + ")");
    const uint64_t limit = static_cast<uint64_t>(options_.num_rows);
    pool.parallel_for(rows.size(), 16 * kGrain, [&](int64_t begin, int64_t end) {
        uint64_t largest = 0;
        for (int64_t i = begin; i < end; ++i) largest = std::max(largest, static_cast<uint64_t>(rows[i]));
        if (largest >= limit && end > begin)
            throw ConfigError("rows of a batch must be in [0, " + std::to_string(limit) + ") (got " +
                              std::to_string(static_cast<int64_t>(largest)) + ")");
    });
}

void Planner::make_room_in_window(int64_t rows) {
    const auto is_live = [this](const RowEntry& e) {
        return static_cast<uint32_t>(static_cast<uint64_t>(e.value) >> 32) >= first_;
    };
    const int64_t keys = (latest_.count(is_live) + rows) * 3 / 2;
    if (map_entries_for(keys) * static_cast<int64_t>(sizeof(RowEntry)) <
        options_.num_rows * static_cast<int64_t>(sizeof(int64_t))) {
        latest_.rebuild(rows, is_live);
        return;
    }
    latest_of_row_.assign(options_.num_rows, kNoValue);
    for (const RowEntry& e : latest_.entries())
        if (e.row != kNoRow) latest_of_row_[e.row] = e.value;
    latest_ = HostRowMap();  // its memory too
}

template <class Latest>
int64_t Planner::observe_all(ThreadPool& pool, Latest latest, std::span<const int64_t> rows) {
    const uint32_t batch = first_ + static_cast<uint32_t>(uses_.size());
    use_pointers_.push_back(uses_.emplace_back(rows.size()).data());
    const WindowOf<Latest> window{latest, cached_.ref(), slots_.data(), use_pointers_.data(), first_};
    std::atomic<int64_t> added{0};
    pool.parallel_for(std::ssize(rows), kGrain, [&](int64_t begin, int64_t end) {
        int64_t here = 0;
        for_rows_prefetched(window.latest, rows.data(), begin, end,
                            [&](int64_t i) { here += observe_row(window, rows[i], batch, static_cast<uint32_t>(i)); });
        added.fetch_add(here, std::memory_order_relaxed);  // relaxed: only summed, read after the loop joined
    });
    return added;
}

void Planner::observe(ThreadPool& pool, std::span<const int64_t> rows) {
    check_rows(pool, rows);
    const int64_t n = std::ssize(rows);
    if (latest_of_row_.empty() && !latest_.fits(n)) make_room_in_window(n);
    if (latest_of_row_.empty()) latest_.count_added(observe_all(pool, latest_.ref(), rows));
    else observe_all(pool, RowArray{latest_of_row_.data()}, rows);
}

int64_t Planner::classify(ThreadPool& pool, std::span<const int64_t> rows, std::span<int64_t> out, const uint32_t* uses,
                          uint32_t group_end, std::vector<RowAt>& misses, int64_t base, PlanCounters& counters) {
    const int64_t n = static_cast<int64_t>(rows.size());
    const Tiers tiers{cached_.ref(), hosted_, options_.capacity, host_rows_, options_.num_rows, popularity_};
    const uint32_t batch = first_;
    const uint32_t unknown = options_.policy == PolicyKind::kSieve ? kVisited : kNever;
    std::vector<int64_t> missed((n + kGrain - 1) / kGrain), hosted(missed.size());
    pool.parallel_for(n, kGrain, [&](int64_t begin, int64_t end) {
        int64_t here = 0, from_host = 0;
        for_rows_prefetched(tiers.cached, rows.data(), begin, end, [&](int64_t i) {
            const uint32_t next = uses ? uses[i] : unknown;
            out[i] = classify_row(tiers, slots_.data(), rows[i], batch, next, group_end);
            here += out[i] == kMiss;
            from_host += out[i] >= tiers.capacity;
        });
        missed[begin / kGrain] = here;
        hosted[begin / kGrain] = from_host;
    });
    const int64_t from_host = std::accumulate(hosted.begin(), hosted.end(), int64_t{0});
    const int64_t total = scan_pieces(missed);
    counters = {n, n - total - from_host, from_host, 0, 0};
    if (total == 0) return 0;
    const int64_t start = static_cast<int64_t>(misses.size());
    misses.resize(start + total);
    pool.parallel_for(n, kGrain, [&](int64_t begin, int64_t end) {
        int64_t at = start + missed[begin / kGrain];
        for (int64_t i = begin; i < end; ++i)
            if (out[i] == kMiss) misses[at++] = {rows[i], base + i};
    });
    return total;
}

void Planner::find_duplicates(ThreadPool& pool, std::vector<RowAt>& misses,
                              const std::vector<std::span<int64_t>>& locations, const std::vector<int64_t>& begins,
                              GroupPlanned& plan, std::vector<SlotState>& states) {
    radix_sort(pool, misses, options_.num_rows);
    const int64_t n = static_cast<int64_t>(misses.size());
    const int64_t buffer = options_.capacity + host_rows_;
    const auto is_first = [&](int64_t j) { return j == 0 || misses[j].row != misses[j - 1].row; };
    std::vector<int64_t> firsts((n + kGrain - 1) / kGrain);
    pool.parallel_for(n, kGrain, [&](int64_t begin, int64_t end) {
        int64_t here = 0;
        for (int64_t j = begin; j < end; ++j) here += is_first(j);
        firsts[begin / kGrain] = here;
    });
    const int64_t unique = scan_pieces(firsts);
    plan.disk_rows.resize(unique);
    states.resize(unique);
    std::vector<std::vector<PlanCounters>> counted(firsts.size());
    pool.parallel_for(n, kGrain, [&](int64_t begin, int64_t end) {
        int64_t position = firsts[begin / kGrain] - 1;
        auto& counters = counted[begin / kGrain];
        counters.resize(locations.size());
        for (int64_t j = begin; j < end; ++j) {
            const bool first = is_first(j);
            position += first;
            const auto [row, at] = misses[j];
            const int64_t b = std::upper_bound(begins.begin(), begins.end(), at) - begins.begin() - 1;
            locations[b][at - begins[b]] = buffer + position;
            if (first) plan.disk_rows[position] = row;
            ++(first ? counters[b].disk : counters[b].duplicates);
            if (j + 1 == n || misses[j + 1].row != row) {  // the row's last use in the group
                const uint32_t next = uses_.empty() ? kNever : uses_[b][at - begins[b]];
                int64_t head = j;
                while (head > 0 && misses[head - 1].row == row) --head;
                states[position] = {next, first_ + static_cast<uint32_t>(b), uses_of(popularity_, row, j - head + 1)};
            }
        }
    });
    for (const auto& counters : counted)
        for (size_t b = 0; b < counters.size(); ++b) {
            plan.counters[b].disk += counters[b].disk;
            plan.counters[b].duplicates += counters[b].duplicates;
        }
}

template <class Policy>
void Planner::select(ThreadPool& pool, const Policy& policy, const std::vector<SlotState>& states,
                     GroupPlanned& plan) const {
    const int64_t capacity = options_.capacity;
    const int64_t unique = static_cast<int64_t>(states.size());
    const uint32_t classes = policy.classes();
    // One piece per thread: each piece keeps a histogram of its own.
    const int64_t grain = std::max<int64_t>((capacity + pool.threads() - 1) / pool.threads(), kGrain);
    const int64_t pieces = (capacity + grain - 1) / grain;
    std::vector<std::vector<int64_t>> resident_counts(pieces);
    pool.parallel_for(capacity, grain, [&](int64_t begin, int64_t end) {
        auto& counts = resident_counts[begin / grain];
        counts.assign(classes, 0);
        for (int64_t slot = begin; slot < end; ++slot)
            if (slots_[slot].last != kFree) ++counts[policy.resident(slots_[slot], slot)];
    });
    std::vector<int64_t> residents(classes), misses(classes);
    for (const auto& counts : resident_counts)
        for (uint32_t c = 0; c < classes; ++c) residents[c] += counts[c];
    for (int64_t position = 0; position < unique; ++position) ++misses[policy.miss(states[position], position)];
    const Cut cut = choose_cut(residents.data(), misses.data(), classes, capacity);

    int64_t at_edge = 0;
    for (int64_t position = 0; position < unique; ++position) {
        const uint32_t c = policy.miss(states[position], position);
        if (c < cut.edge || (c == cut.edge && at_edge++ < cut.edge_misses)) plan.admit_position.push_back(position);
    }
    if (plan.admit_position.empty()) return;
    std::vector<std::vector<int64_t>> available(pieces);
    pool.parallel_for(capacity, grain, [&](int64_t begin, int64_t end) {
        int64_t edge_rank = 0;
        if (cut.edge < classes)
            for (int64_t piece = 0; piece < begin / grain; ++piece) edge_rank += resident_counts[piece][cut.edge];
        for (int64_t slot = begin; slot < end; ++slot) {
            if (slots_[slot].last != kFree) {
                const uint32_t c = policy.resident(slots_[slot], slot);
                if (c < cut.edge || (c == cut.edge && edge_rank++ < cut.edge_residents)) continue;
            }
            available[begin / grain].push_back(slot);
        }
    });
    for (const auto& slots : available) plan.admit_slot.insert(plan.admit_slot.end(), slots.begin(), slots.end());
    plan.admit_slot.resize(plan.admit_position.size());  // what is left over are free slots
}

void Planner::select_sieve(ThreadPool& pool, int64_t unique, GroupPlanned& plan) {
    const int64_t admitted = std::min(unique, options_.capacity);
    plan.admit_position.resize(admitted);
    std::iota(plan.admit_position.begin(), plan.admit_position.end(), int64_t{0});
    for (int64_t slot = sieve_.size(); slot < options_.capacity && std::ssize(plan.admit_slot) < admitted; ++slot)
        plan.admit_slot.push_back(slot);  // never used: slots fill in order and stay full
    const auto victims = sieve_.evict(pool, slots_, admitted - std::ssize(plan.admit_slot));
    plan.admit_slot.insert(plan.admit_slot.end(), victims.begin(), victims.end());
    sieve_.append(plan.admit_slot);
}

// A slot that a batch of this group reads may be overwritten only after that batch; the rest is spread evenly, so that
// no batch waits for all of the copies.
void Planner::spread(uint32_t group_begin, GroupPlanned& plan) const {
    const size_t batches = plan.counters.size(), n = plan.admit_slot.size();
    plan.admit_begin.assign(batches + 1, 0);
    std::vector<uint32_t> turn(n);
    for (size_t k = 0; k < n; ++k) {
        const uint32_t last = slots_[plan.admit_slot[k]].last;
        const uint32_t read = last != kFree && last >= group_begin ? last - group_begin : 0;
        turn[k] = std::max(read, static_cast<uint32_t>(k * batches / n));
        ++plan.admit_begin[turn[k] + 1];
    }
    std::partial_sum(plan.admit_begin.begin(), plan.admit_begin.end(), plan.admit_begin.begin());
    std::vector<int64_t> at(plan.admit_begin.begin(), plan.admit_begin.end()), position(n), slot(n);
    for (size_t k = 0; k < n; ++k) {
        position[at[turn[k]]] = plan.admit_position[k];
        slot[at[turn[k]]++] = plan.admit_slot[k];
    }
    plan.admit_position.swap(position);
    plan.admit_slot.swap(slot);
}

// Forgets the keys of evicted rows. The map keeps its size: what is resident always fits.
void Planner::index_slots(ThreadPool& pool) {
    cached_.clear(keys_for(options_.capacity));
    const RowMap map = cached_.ref();
    std::atomic<int64_t> added{0};
    pool.parallel_for(options_.capacity, kGrain, [&](int64_t begin, int64_t end) {
        int64_t here = 0;
        for_rows_prefetched(map, row_of_.data(), begin, end, [&](int64_t slot) {
            bool is_new = false;
            if (row_of_[slot] != kNoRow) map.claim(row_of_[slot], is_new)->value = slot;
            here += is_new;
        });
        added.fetch_add(here, std::memory_order_relaxed);  // relaxed: only summed, read after the loop joined
    });
    cached_.count_added(added);
}

void Planner::apply(ThreadPool& pool, const std::vector<SlotState>& states, const GroupPlanned& plan) {
    const int64_t n = static_cast<int64_t>(plan.admit_slot.size());
    pool.parallel_for(n, kGrain, [&](int64_t begin, int64_t end) {
        for (int64_t k = begin; k < end; ++k) {
            int64_t& row = row_of_[plan.admit_slot[k]];
            if (row != kNoRow) cached_.ref().erase(row);
            row = kNoRow;
        }
    });
    if (!cached_.fits(n)) index_slots(pool);
    const RowMap map = cached_.ref();
    std::atomic<int64_t> added{0};
    pool.parallel_for(n, kGrain, [&](int64_t begin, int64_t end) {
        int64_t here = 0;
        for (int64_t k = begin; k < end; ++k) {
            const int64_t slot = plan.admit_slot[k], position = plan.admit_position[k];
            bool is_new = false;
            map.claim(plan.disk_rows[position], is_new)->value = slot;
            here += is_new;
            row_of_[slot] = plan.disk_rows[position];
            slots_[slot] = states[position];
        }
        added.fetch_add(here, std::memory_order_relaxed);  // relaxed: only summed, read after the loop joined
    });
    cached_.count_added(added);
}

void Planner::admit(ThreadPool& pool, const std::vector<SlotState>& states, uint32_t group_begin, GroupPlanned& plan) {
    if (!states.empty() && options_.capacity > 0) {
        const RandomKey key = policy_key(options_.seed);
        switch (options_.policy) {
            case PolicyKind::kRandom:
                select(pool, RandomPolicy{key, first_}, states, plan);
                break;
            case PolicyKind::kLru:
                select(pool, LruPolicy{first_}, states, plan);
                break;
            case PolicyKind::kGids:
                select(pool, GidsPolicy{key, first_}, states, plan);
                break;
            case PolicyKind::kWindow:
                select(pool, WindowPolicy{first_, static_cast<uint32_t>(uses_.size())}, states, plan);
                break;
            case PolicyKind::kSieve:
                select_sieve(pool, static_cast<int64_t>(states.size()), plan);
                break;
        }
    }
    spread(group_begin, plan);
    apply(pool, states, plan);
}

GroupPlanned Planner::plan(ThreadPool& pool, const std::vector<std::span<const int64_t>>& batches,
                           const std::vector<std::span<int64_t>>& locations) {
    if (looks_ahead() && uses_.size() < batches.size())
        throw ConfigError("batches must be observed before they are planned (observed " + std::to_string(uses_.size()) +
                          ", planned " + std::to_string(batches.size()) + ")");
    GroupPlanned plan;
    plan.counters.resize(batches.size());
    std::vector<int64_t> begins;  // first occurrence number of each batch
    int64_t base = 0;
    for (const auto& rows : batches) {
        check_rows(pool, rows);
        begins.push_back(base);
        base += static_cast<int64_t>(rows.size());
    }
    const uint32_t group_begin = first_, group_end = first_ + static_cast<uint32_t>(batches.size());
    std::vector<RowAt> misses;
    for (size_t b = 0; b < batches.size(); ++b, ++first_)
        classify(pool, batches[b], locations[b], looks_ahead() ? uses_[b].data() : nullptr, group_end, misses,
                 begins[b], plan.counters[b]);
    first_ = group_begin;
    std::vector<SlotState> states;
    find_duplicates(pool, misses, locations, begins, plan, states);
    first_ = group_end;
    if (looks_ahead()) {
        uses_.erase(uses_.begin(), uses_.begin() + static_cast<int64_t>(batches.size()));
        use_pointers_.erase(use_pointers_.begin(), use_pointers_.begin() + static_cast<int64_t>(batches.size()));
    }
    admit(pool, states, group_begin, plan);
    return plan;
}

}  // namespace gids
