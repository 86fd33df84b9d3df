// Rows that groups of batches wait for, read region by region in one sweep after another over the table.
#pragma once

#include <cstdint>
#include <deque>
#include <mutex>
#include <span>
#include <vector>

namespace gids {

// A group joins the sweep where it is and has all its rows once round. Groups that began at different places are
// complete at different times, so of n groups that share each read only half the rows are in memory at a time: with the
// memory of n / 2 groups the reads are as dense as n groups make them. Groups are admitted, and released, in the order
// of batches. May be used from two threads: one admits and steps, one finds and releases.
class Sweep {
public:
    Sweep(int64_t num_rows, int32_t regions);

    struct Admitted {
        int64_t steps;     // after so many all rows of the group have been read
        int64_t new_rows;  // that no earlier group has, or waits for
    };

    // Takes in the next group's rows, sorted and unique.
    Admitted admit(std::span<const int64_t> rows);

    // Most rows that unfinished groups would hold at once if `rows` were admitted now and nothing after them.
    [[nodiscard]] int64_t peak(std::span<const int64_t> rows) const;

    // Rows of the next region that somebody waits for.
    [[nodiscard]] int64_t due() const;

    // Gives those rows, sorted, and notes that the i-th will be in slots[i]; goes on to the next region.
    std::vector<int64_t> step(std::span<const int32_t> slots);

    // Looks up where the rows of an admitted group are, once all were read.
    void find(std::span<const int64_t> rows, std::span<int32_t> slots) const;

    // Forgets the oldest group; gives the slots that no later one needs.
    std::vector<int32_t> release();

    void clear();

private:
    struct Entry {
        int64_t row;
        int32_t slot;   // kUnread before its region comes
        int32_t group;  // the last that needs it
    };
    struct Group {
        int64_t owned;  // entries that name it
        int64_t done;   // step at which its last row, and that of every group before it, is read
    };

    [[nodiscard]] int64_t region_end(size_t region) const { return (static_cast<int64_t>(region) + 1) * region_rows_; }
    [[nodiscard]] size_t region_at(int64_t step) const { return static_cast<size_t>(step) % regions_.size(); }
    void check(std::span<const int64_t> rows) const;

    static constexpr int32_t kUnread = -1;

    int64_t num_rows_;
    int64_t region_rows_;
    mutable std::mutex mutex_;
    std::vector<std::vector<Entry>> regions_;  // each sorted by row
    std::vector<int64_t> unread_;              // of each region
    std::deque<Group> groups_;                 // admitted and not released
    int32_t first_group_ = 0;                  // number of groups_.front()
    int64_t steps_ = 0;
};

}  // namespace gids
