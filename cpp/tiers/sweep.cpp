// Sorted regions, merged with each group that comes: every call is one pass over memory in order.
#include "tiers/sweep.hpp"

#include <algorithm>
#include <numeric>
#include <string>

#include "errors.hpp"

namespace gids {

Sweep::Sweep(int64_t num_rows, int32_t regions)
    : num_rows_(num_rows), region_rows_(0), regions_(std::max(regions, 1)), unread_(regions_.size()) {
    if (regions < 1) throw ConfigError("regions must be at least 1 (got " + std::to_string(regions) + ")");
    region_rows_ = std::max<int64_t>(1, (num_rows + regions - 1) / regions);
}

void Sweep::check(std::span<const int64_t> rows) const {
    for (size_t i = 1; i < rows.size(); ++i)
        if (rows[i] <= rows[i - 1])
            throw ConfigError("rows of a group must be sorted and unique (got " + std::to_string(rows[i]) + " after " +
                              std::to_string(rows[i - 1]) + ")");
    if (!rows.empty() && (rows.front() < 0 || rows.back() >= num_rows_))
        throw ConfigError("rows of a group must be in [0, " + std::to_string(num_rows_) + ") (got " +
                          std::to_string(rows.front() < 0 ? rows.front() : rows.back()) + ")");
}

Sweep::Admitted Sweep::admit(std::span<const int64_t> rows) {
    check(rows);
    const std::scoped_lock lock(mutex_);
    const int32_t group = first_group_ + static_cast<int32_t>(groups_.size());
    groups_.push_back({0, 0});
    const int64_t* next = rows.data();
    const int64_t* const end = next + rows.size();
    Admitted admitted{0, 0};
    for (size_t region = 0; region < regions_.size() && next != end; ++region) {
        const int64_t* const last = std::lower_bound(next, end, region_end(region));
        if (next == last) continue;
        std::vector<Entry>& entries = regions_[region];
        // Rows that are here already only change hands; the others are merged in from the back.
        size_t added = 0;
        bool unread = false;
        Entry* entry = entries.data();
        Entry* const entries_end = entry + entries.size();
        for (const int64_t* row = next; row != last; ++row) {
            while (entry != entries_end && entry->row < *row) ++entry;
            if (entry == entries_end || entry->row != *row) {
                ++added;
                continue;
            }
            --groups_[entry->group - first_group_].owned;
            entry->group = group;
            unread = unread || entry->slot == kUnread;
        }
        size_t from = entries.size();
        entries.resize(from + added);
        size_t to = entries.size();
        for (const int64_t* row = last; row != next && to != from;) {
            if (from > 0 && entries[from - 1].row >= *(row - 1)) {
                if (entries[from - 1].row == *(row - 1)) --row;
                entries[--to] = entries[--from];
            } else {
                entries[--to] = {*--row, kUnread, group};
            }
        }
        groups_.back().owned += last - next;
        unread_[region] += static_cast<int64_t>(added);
        admitted.new_rows += static_cast<int64_t>(added);
        if (added > 0 || unread) {
            const size_t count = regions_.size();
            const size_t before = (region + count - region_at(steps_)) % count;
            admitted.steps = std::max(admitted.steps, static_cast<int64_t>(before) + 1);
        }
        next = last;
    }
    groups_.back().done = steps_ + admitted.steps;
    if (groups_.size() > 1)  // what comes before it is gathered before it
        groups_.back().done = std::max(groups_.back().done, groups_[groups_.size() - 2].done);
    return admitted;
}

int64_t Sweep::peak(std::span<const int64_t> rows) const {
    check(rows);
    const std::scoped_lock lock(mutex_);
    const size_t count = regions_.size();
    std::vector<int64_t> read(count, 0), freed(count, 0);  // by steps from now
    std::vector<int64_t> lost(groups_.size(), 0);          // rows that the new group would keep longer than theirs
    const int64_t* row = rows.data();
    const int64_t* const end = row + rows.size();
    int64_t done = groups_.empty() ? steps_ : std::max(steps_, groups_.back().done);
    int64_t held = 0;
    for (size_t region = 0; region < count; ++region) {
        const auto before = static_cast<int64_t>((region + count - region_at(steps_)) % count);
        int64_t added = 0;
        bool unread = false;
        const Entry* entry = regions_[region].data();
        const Entry* const entries_end = entry + regions_[region].size();
        for (; row != end && *row < region_end(region); ++row) {
            while (entry != entries_end && entry->row < *row) ++entry;
            if (entry == entries_end || entry->row != *row) {
                ++added;
            } else {
                ++lost[entry->group - first_group_];
                unread = unread || entry->slot == kUnread;
            }
        }
        if (added > 0 || unread) done = std::max(done, steps_ + before + 1);
        read[before] = unread_[region] + added;
        held -= unread_[region];
    }
    const auto count_group = [&](int64_t owned, int64_t resident, int64_t done_at) {
        if (done_at <= steps_) return;  // complete: whoever gathers it gives its rows back
        held += resident;
        freed[static_cast<size_t>(done_at - steps_ - 1)] += owned;
    };
    const int64_t kept = std::accumulate(lost.begin(), lost.end(), int64_t{0});
    const int64_t added = static_cast<int64_t>(rows.size()) - kept;
    for (size_t i = 0; i < groups_.size(); ++i)
        count_group(groups_[i].owned - lost[i], groups_[i].owned - lost[i], groups_[i].done);
    count_group(added + kept, kept, done);
    int64_t most = held;
    for (size_t step = 0; step < count; ++step) {
        held += read[step];
        most = std::max(most, held);
        held -= freed[step];
    }
    return most;
}

int64_t Sweep::due() const {
    const std::scoped_lock lock(mutex_);
    return unread_[region_at(steps_)];
}

std::vector<int64_t> Sweep::step(std::span<const int32_t> slots) {
    const std::scoped_lock lock(mutex_);
    const size_t region = region_at(steps_);
    if (static_cast<int64_t>(slots.size()) != unread_[region])
        throw ConfigError("slots must be as many as the rows that are due, " + std::to_string(unread_[region]) +
                          " (got " + std::to_string(slots.size()) + ")");
    std::vector<int64_t> rows;
    rows.reserve(slots.size());
    for (Entry& entry : regions_[region]) {
        if (entry.slot != kUnread) continue;
        entry.slot = slots[rows.size()];
        rows.push_back(entry.row);
    }
    unread_[region] = 0;
    ++steps_;
    return rows;
}

void Sweep::find(std::span<const int64_t> rows, std::span<int32_t> slots) const {
    if (rows.size() != slots.size()) throw ConfigError("slots must be as many as rows");
    const std::scoped_lock lock(mutex_);
    size_t i = 0;
    for (size_t region = 0; region < regions_.size() && i < rows.size(); ++region) {
        const std::vector<Entry>& entries = regions_[region];
        auto entry = entries.begin();
        for (; i < rows.size() && rows[i] < region_end(region); ++i) {
            while (entry != entries.end() && entry->row < rows[i]) ++entry;
            if (entry == entries.end() || entry->row != rows[i] || entry->slot == kUnread)
                throw ConfigError("rows to find must have been read (got " + std::to_string(rows[i]) + ")");
            slots[i] = entry->slot;
        }
    }
}

std::vector<int32_t> Sweep::release() {
    const std::scoped_lock lock(mutex_);
    if (groups_.empty() || groups_.front().done > steps_)
        throw ConfigError("a group to release must have been read to its end");
    std::vector<int32_t> slots;
    slots.reserve(static_cast<size_t>(groups_.front().owned));
    for (std::vector<Entry>& entries : regions_) {
        Entry* kept = entries.data();
        for (const Entry& entry : entries) {
            if (entry.group == first_group_) slots.push_back(entry.slot);
            else *kept++ = entry;
        }
        entries.resize(static_cast<size_t>(kept - entries.data()));
    }
    groups_.pop_front();
    ++first_group_;
    return slots;
}

void Sweep::clear() {
    const std::scoped_lock lock(mutex_);
    for (std::vector<Entry>& entries : regions_) entries.clear();
    std::fill(unread_.begin(), unread_.end(), 0);
    groups_.clear();
}

}  // namespace gids
