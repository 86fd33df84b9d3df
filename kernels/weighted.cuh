// Edges chosen in proportion to their weights. Sums are of integers, so that no order of addition can change them;
// the choice without replacement is a race of exponential clocks (Efraimidis and Spirakis, 2006).
#pragma once

#include "exec.cuh"
#include "logarithm.cuh"
#include "sample.cuh"

namespace gids {

// Edges that can be chosen at all. weights[0 .. degree) are those of one node.
template <class Exec>
GIDS_DEVICE int64_t count_positive(Exec exec, const float* weights, int64_t degree) {
    int64_t count = 0;
    for (int64_t i = exec.lane(); i < degree; i += Exec::kLanes) count += weights[i] > 0.0f;
    for (int step = Exec::kLanes / 2; step > 0; step /= 2) count += exec.shuffle(count, exec.lane() ^ step);
    return count;
}

template <class Exec>
GIDS_DEVICE float largest_weight(Exec exec, const float* weights, int64_t degree) {
    float largest = 0.0f;
    for (int64_t i = exec.lane(); i < degree; i += Exec::kLanes) largest = weights[i] > largest ? weights[i] : largest;
    for (int step = Exec::kLanes / 2; step > 0; step /= 2) {
        const float other = exec.shuffle(largest, exec.lane() ^ step);
        largest = other > largest ? other : largest;
    }
    return largest;
}

// A weight as an integer, relative to the largest of its node: 2^32 for that one, at least 1 for any positive one.
GIDS_DEVICE uint64_t fixed_weight(float weight, float largest) {
    if (!(weight > 0.0f)) return 0;
    const double scaled = static_cast<double>(weight) / static_cast<double>(largest) * 4294967296.0;
    return scaled < 1.0 ? 1 : static_cast<uint64_t>(scaled);
}

template <class Exec>
GIDS_DEVICE uint64_t fixed_sum(Exec exec, const float* weights, int64_t degree, float largest) {
    uint64_t sum = 0;
    for (int64_t i = exec.lane(); i < degree; i += Exec::kLanes) sum += fixed_weight(weights[i], largest);
    for (int step = Exec::kLanes / 2; step > 0; step /= 2) sum += exec.shuffle(sum, exec.lane() ^ step);
    return sum;
}

// When edge i of a node finishes its race; the earliest ones are chosen.
GIDS_DEVICE double race_time(RandomKey key, uint64_t node, int64_t i, float weight) {
    const RandomBlock block = random_block(key, node, static_cast<uint32_t>(i / 2));
    return exponential(i % 2 == 0 ? block.low() : block.high()) / static_cast<double>(weight);
}

// The `count` earliest edges, in the order in which they finish; equal times go by position. time_of(i) is negative for
// an edge that takes no part; at least `count` edges do. times has room for count.
template <class Exec, class TimeOf>
GIDS_DEVICE void choose_first(Exec exec, int64_t first, int64_t degree, int64_t count, const TimeOf& time_of,
                              double* times, int64_t* out) {
    if (count == 0) return;
    if constexpr (Exec::kLanes == 1) {
        int64_t size = 0;
        for (int64_t i = 0; i < degree; ++i) {
            const double time = time_of(i);
            if (time < 0.0 || (size == count && !(time < times[count - 1]))) continue;
            int64_t at = size < count ? size++ : count - 1;
            for (; at > 0 && time < times[at - 1]; --at) {
                times[at] = times[at - 1];
                out[at] = out[at - 1];
            }
            times[at] = time;
            out[at] = first + i;
        }
    } else {
        double last_time = -1.0;
        int64_t last = -1;
        for (int64_t chosen = 0; chosen < count; ++chosen) {
            double best_time = 0.0;
            int64_t best = -1;
            for (int64_t i = exec.lane(); i < degree; i += Exec::kLanes) {
                const double time = time_of(i);
                if (time < 0.0) continue;
                const bool after = time > last_time || (time == last_time && i > last);
                if (after && (best < 0 || time < best_time)) {
                    best_time = time;
                    best = i;
                }
            }
            for (int step = Exec::kLanes / 2; step > 0; step /= 2) {
                const double other_time = exec.shuffle(best_time, exec.lane() ^ step);
                const int64_t other = exec.shuffle(best, exec.lane() ^ step);
                if (other >= 0 && (best < 0 || other_time < best_time || (other_time == best_time && other < best))) {
                    best_time = other_time;
                    best = other;
                }
            }
            if (exec.lane() == 0) out[chosen] = first + best;
            last_time = best_time;
            last = best;
        }
        exec.sync();
    }
}

// All edges that can be chosen, in order; weights may be null.
template <class Exec>
GIDS_DEVICE void take_eligible(Exec exec, int64_t first, int64_t degree, const float* weights, int64_t* out) {
    if (weights == nullptr) {
        for (int64_t i = exec.lane(); i < degree; i += Exec::kLanes) out[i] = first + i;
        return;
    }
    if (exec.lane() == 0)
        for (int64_t i = 0, at = 0; i < degree; ++i)
            if (weights[i] > 0.0f) out[at++] = first + i;
    exec.sync();
}

// Writes the positions that a node contributes; count is sampled_count(count_positive(), fanout, replace). A node that
// gives all its edges of positive weight gives them in order. times is scratch for count numbers.
template <class Exec>
GIDS_DEVICE void choose_weighted(Exec exec, RandomKey key, uint64_t node, int64_t first, int64_t degree,
                                 int64_t positive, int64_t count, bool replace, const float* weights, double* times,
                                 int64_t* out) {
    if (replace) {
        const float largest = largest_weight(exec, weights, degree);
        const uint64_t total = fixed_sum(exec, weights, degree, largest);
        for (int64_t draw = exec.lane(); draw < count; draw += Exec::kLanes) {
            const uint64_t target = uniform_draw(key, node, static_cast<uint32_t>(draw), total);
            int64_t i = 0;
            for (uint64_t below = fixed_weight(weights[0], largest); below <= target;)
                below += fixed_weight(weights[++i], largest);
            out[draw] = first + i;
        }
    } else if (count == positive) {
        take_eligible(exec, first, degree, weights, out);
    } else {
        choose_first(
            exec, first, degree, count,
            [&](int64_t i) { return weights[i] > 0.0f ? race_time(key, node, i, weights[i]) : -1.0; }, times, out);
    }
}

}  // namespace gids
