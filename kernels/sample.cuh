// Which in-edges of a node are sampled: a pure function of (key, node), so that every backend and thread count agrees.
#pragma once

#include "exec.cuh"
#include "philox.cuh"

namespace gids {

// Edges that one node contributes. fanout < 0 takes all of them.
GIDS_DEVICE int64_t sampled_count(int64_t degree, int64_t fanout, bool replace) {
    if (fanout < 0) return degree;
    if (replace) return degree > 0 ? fanout : 0;
    return degree < fanout ? degree : fanout;
}

// Draw number i of a node, uniform in [0, bound). Two draws share a block, so lanes can compute any draw alone.
GIDS_DEVICE uint64_t uniform_draw(RandomKey key, uint64_t node, uint32_t i, uint64_t bound) {
    const RandomBlock block = random_block(key, node, i / 2);
    return random_below(i % 2 == 0 ? block.low() : block.high(), bound);
}

// Floyd's algorithm: draw i is uniform in [0, degree - count + i]; a value that was taken before is replaced by that
// upper bound, which no earlier draw can have. Needs count <= degree.
template <class Exec>
GIDS_DEVICE void choose_distinct(Exec exec, RandomKey key, uint64_t node, int64_t first, int64_t degree, int64_t count,
                                 int64_t* out) {
    const int64_t base = degree - count;
    if constexpr (Exec::kLanes == 1) {
        uint64_t seen = 0;  // one bit per value modulo 64: a clear bit proves that the value is new
        RandomBlock block{};
        for (int64_t i = 0; i < count; ++i) {
            if (i % 2 == 0) block = random_block(key, node, static_cast<uint32_t>(i / 2));
            int64_t pick = static_cast<int64_t>(
                random_below(i % 2 == 0 ? block.low() : block.high(), static_cast<uint64_t>(base + i + 1)));
            if (seen >> (pick & 63) & 1) {
                bool repeated = false;
                for (int64_t j = 0; j < i; ++j) repeated |= out[j] == first + pick;
                if (repeated) pick = base + i;
            }
            seen |= uint64_t{1} << (pick & 63);
            out[i] = first + pick;
        }
    } else {
        for (int64_t begin = 0; begin < count; begin += Exec::kLanes) {
            const int64_t i = begin + exec.lane();
            const bool active = i < count;
            const int64_t pick = active ? static_cast<int64_t>(uniform_draw(key, node, static_cast<uint32_t>(i),
                                                                            static_cast<uint64_t>(base + i + 1)))
                                        : 0;
            bool repeated = false;
            if (active)
                for (int64_t j = 0; j < begin; ++j) repeated |= out[j] == first + pick;
            for (int j = 0; j < Exec::kLanes; ++j) {
                const int64_t other = exec.shuffle(pick, j);
                repeated |= active && j < exec.lane() && other == pick;
            }
            // A repeated draw j became base + j, which a later draw may have hit: follow such links until none is left.
            const int64_t link = pick - base - begin;
            const bool linked = active && link >= 0 && link < exec.lane();
            uint32_t replaced = exec.ballot(repeated);
            for (;;) {
                if (linked && (replaced >> link & 1u)) repeated = true;
                const uint32_t next = exec.ballot(repeated);
                if (next == replaced) break;
                replaced = next;
            }
            if (active) out[i] = first + (repeated ? base + i : pick);
            exec.sync();  // the next round reads out[]
        }
    }
}

// Writes the edge positions that a node contributes, all in [first, first + degree), to out[0 .. count), where count
// is sampled_count(). A node that gives all its edges gives them in order.
template <class Exec>
GIDS_DEVICE void choose_uniform(Exec exec, RandomKey key, uint64_t node, int64_t first, int64_t degree, int64_t count,
                                bool replace, int64_t* out) {
    if (replace) {
        for (int64_t i = exec.lane(); i < count; i += Exec::kLanes)
            out[i] = first + static_cast<int64_t>(
                                 uniform_draw(key, node, static_cast<uint32_t>(i), static_cast<uint64_t>(degree)));
    } else if (count == degree) {
        for (int64_t i = exec.lane(); i < count; i += Exec::kLanes) out[i] = first + i;
    } else {
        choose_distinct(exec, key, node, first, degree, count, out);
    }
}

}  // namespace gids
