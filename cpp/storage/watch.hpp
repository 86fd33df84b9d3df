// What a reader's I/O threads are at, seen from outside: a thread that is blocked in the kernel keeps no deadlines, so
// those who wait for it do. A hung file server blocks it so, in the very call that hands over requests.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace gids::storage {

class Watch {
public:
    using Clock = std::chrono::steady_clock;
    // A turn of the loop waits this long for completions, by itself; only what takes longer is blocked.
    static constexpr auto kTurn = std::chrono::milliseconds(100);
    // How long whoever gives up, or closes, waits for a thread that does not answer.
    static constexpr auto kGivingUp = std::chrono::milliseconds(500);

    Watch(size_t threads, Clock::duration timeout, std::vector<std::string> paths)
        : size_(threads), limit_(timeout + 2 * kTurn), paths_(std::move(paths)), posts_(new Post[threads]) {}

    static std::string name(size_t thread) { return "gids-io-" + std::to_string(thread); }
    Clock::duration limit() const { return limit_; }

    // relaxed, all of them: nothing is published by them, and who looks comes back.
    void begin_turn(size_t thread, Clock::time_point now) {
        posts_[thread].since.store(now.time_since_epoch().count(), std::memory_order_relaxed);
    }
    void rest(size_t thread) { posts_[thread].since.store(0, std::memory_order_relaxed); }
    void hand_over(size_t thread, uint32_t file, uint64_t offset, uint32_t length) {
        posts_[thread].file.store(file, std::memory_order_relaxed);
        posts_[thread].offset.store(offset, std::memory_order_relaxed);
        posts_[thread].length.store(length, std::memory_order_relaxed);
    }

    struct Blocked {
        size_t thread;
        Clock::duration since;
        const std::string& path;  // and the range of one of the requests that were handed over last
        uint64_t offset, length;
        bool all;  // no thread is left that works
    };
    // The thread that has been at one turn for the longest time, if that is longer than `limit`.
    std::optional<Blocked> blocked(Clock::duration limit) const {
        const auto now = Clock::now();
        size_t longest = 0, count = 0;
        for (size_t i = 0; i < size_; ++i) {
            count += at_turn_for(i, now) > limit;
            if (at_turn_for(i, now) > at_turn_for(longest, now)) longest = i;
        }
        if (count == 0) return std::nullopt;
        const Post& post = posts_[longest];
        return Blocked{longest,
                       at_turn_for(longest, now),
                       paths_[post.file.load(std::memory_order_relaxed)],
                       post.offset.load(std::memory_order_relaxed),
                       post.length.load(std::memory_order_relaxed),
                       count == size_};
    }
    bool is_blocked(size_t thread, Clock::duration limit) const { return at_turn_for(thread, Clock::now()) > limit; }

    // Reads that were given up and may still write to where their rows belong.
    std::atomic<int> orphaned_reads{0};

private:
    struct Post {
        std::atomic<int64_t> since{0};  // 0: sleeps until there is work
        std::atomic<uint64_t> offset{0};
        std::atomic<uint32_t> file{0}, length{0};
    };
    Clock::duration at_turn_for(size_t thread, Clock::time_point now) const {
        const int64_t since = posts_[thread].since.load(std::memory_order_relaxed);
        return since == 0 ? Clock::duration(0) : now.time_since_epoch() - Clock::duration(since);
    }

    const size_t size_;
    const Clock::duration limit_;
    const std::vector<std::string> paths_;  // of the table's files
    const std::unique_ptr<Post[]> posts_;
};

}  // namespace gids::storage
