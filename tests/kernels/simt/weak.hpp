// Weak memory for the lane-by-lane machine: what a load may see of the stores to one location. Every store stays
// readable until the lane knows of a later one: by its own access, or by what it acquired (release and acquire,
// __syncwarp, __syncthreads). Operations that read and write see the latest store, as hardware's do.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <unordered_map>
#include <vector>

namespace simt {

class WeakMemory {
public:
    // For each location the oldest store that may still be seen.
    using View = std::map<uintptr_t, uint64_t>;

    // Forgets everything: what came before a launch is visible to all of it.
    void start(int lanes);

    // `newest` is what memory holds; gives what the lane sees. `choice` is random.
    uint64_t load(int lane, uintptr_t at, uint64_t newest, bool acquire, uint64_t choice);
    // After the store of `value`, which took the place of `old`.
    void store(int lane, uintptr_t at, uint64_t old, uint64_t value, bool release);
    // After an operation that read `old` and wrote `value`.
    void update(int lane, uintptr_t at, uint64_t old, uint64_t value, bool acquire, bool release);
    // The lanes meet: each knows what any of them knows.
    void meet(const std::vector<int>& lanes);

private:
    struct Message {
        uint64_t value;
        std::shared_ptr<const View> view;  // what an acquiring reader learns; null: nothing
    };
    // messages[i] is store number first + i. The last is what memory holds.
    struct Location {
        uint64_t first = 0;
        std::deque<Message> messages;
        uint64_t last() const { return first + messages.size() - 1; }
    };
    static constexpr std::size_t kHistory = 8;  // stores of a location that can be seen

    Location& location(uintptr_t at, uint64_t newest);
    void push(Location& location, uint64_t value, std::shared_ptr<const View> view);
    static void join(View& to, const View& from);

    std::unordered_map<uintptr_t, Location> locations_;
    std::vector<View> views_;  // of each lane
    // All that was released: what drives and host threads, whose stores are found in memory, may have seen before.
    View released_;
};

}  // namespace simt
