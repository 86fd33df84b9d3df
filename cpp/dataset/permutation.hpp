// A keyed bijection of [0, n) in constant memory: scatters communities and hubs over all ids without a table.
#pragma once

#include <cmath>
#include <cstdint>

#include "exec.cuh"

namespace gids {

// A Feistel network over pairs (left < a, right < b) with a * b >= n; the few pairs that are not below n are walked
// through until one is. (Black and Rogaway, "Ciphers with arbitrary finite domains", 2002.)
class Permutation {
public:
    Permutation(uint64_t n, uint64_t key) : n_(n), key_(key) {
        a_ = static_cast<uint64_t>(std::sqrt(static_cast<double>(n)));
        if (a_ < 1) a_ = 1;
        b_ = (n + a_ - 1) / a_;
        if (b_ < 1) b_ = 1;
    }

    uint64_t forward(uint64_t x) const {
        do {
            uint64_t left = x / b_, right = x % b_;
            for (uint64_t round = 0; round < kRounds; ++round) {
                left = add(left, hash(right, 2 * round, a_), a_);
                right = add(right, hash(left, 2 * round + 1, b_), b_);
            }
            x = left * b_ + right;
        } while (x >= n_);
        return x;
    }

    uint64_t inverse(uint64_t x) const {
        do {
            uint64_t left = x / b_, right = x % b_;
            for (uint64_t round = kRounds; round-- > 0;) {
                right = add(right, b_ - hash(left, 2 * round + 1, b_), b_);
                left = add(left, a_ - hash(right, 2 * round, a_), a_);
            }
            x = left * b_ + right;
        } while (x >= n_);
        return x;
    }

private:
    static constexpr uint64_t kRounds = 3;

    static uint64_t add(uint64_t x, uint64_t y, uint64_t modulus) {
        const uint64_t sum = x + y;
        return sum >= modulus ? sum - modulus : sum;
    }

    uint64_t hash(uint64_t value, uint64_t round, uint64_t bound) const {
        uint64_t h = key_ + (value << 4 | round) * 0x9E3779B97F4A7C15ull;
        h = (h ^ h >> 30) * 0xBF58476D1CE4E5B9ull;
        h = (h ^ h >> 27) * 0x94D049BB133111EBull;
        return multiply_high(h ^ h >> 31, bound);
    }

    uint64_t n_, key_, a_, b_;
};

}  // namespace gids
