// Pieces that any thread may produce and that the caller consumes in order: what is parallel runs in parallel, and what
// depends on order (numbering by first occurrence) costs no second pass.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>

#include "thread_pool.hpp"

namespace gids {

template <class Produce, class Consume>
void produce_in_parallel_consume_in_order(ThreadPool* pool, int64_t pieces, Produce produce, Consume consume) {
    const int threads = pool == nullptr ? 1 : static_cast<int>(std::min<int64_t>(pool->threads(), pieces));
    if (threads <= 1) {
        for (int64_t i = 0; i < pieces; ++i) {
            produce(i);
            consume(i);
        }
        return;
    }
    const auto ready = std::make_unique<std::atomic<bool>[]>(static_cast<size_t>(pieces));
    std::atomic<int64_t> next{0};
    std::atomic<bool> failed{false};
    int64_t consumed = 0;  // only the caller touches it
    const auto caller = std::this_thread::get_id();
    const auto produce_one = [&] {
        const int64_t i = next.fetch_add(1, std::memory_order_relaxed);
        if (i >= pieces) return false;
        try {
            produce(i);
        } catch (...) {
            failed.store(true, std::memory_order_relaxed);
            throw;
        }
        ready[static_cast<size_t>(i)].store(true, std::memory_order_release);  // release: the piece is complete
        return true;
    };
    const auto consume_ready = [&] {
        const int64_t before = consumed;
        // acquire: pairs with the release above
        while (consumed < pieces && ready[static_cast<size_t>(consumed)].load(std::memory_order_acquire))
            consume(consumed++);
        return consumed > before;
    };
    pool->parallel_for(threads, 1, [&](int64_t, int64_t) {
        if (std::this_thread::get_id() != caller) {
            while (!failed.load(std::memory_order_relaxed) && produce_one()) {
            }
            return;
        }
        while (consumed < pieces && !failed.load(std::memory_order_relaxed))
            if (!consume_ready() && !produce_one()) std::this_thread::yield();
    });
    consume_ready();
}

}  // namespace gids
