// Synthetic graphs as pure functions of (seed, node): Philox supplies every random bit.
#include "dataset/generate.hpp"

#include <algorithm>
#include <cmath>

#include "philox.cuh"

namespace gids {
namespace {

// Continues the enum of philox.cuh: no stream of a generated dataset is shared with a sampler.
enum class Use : uint32_t { kPermutation = 64, kDegree, kSource, kRmatSource, kCentroid, kNoise, kSplit };

RandomKey key_of(uint64_t seed, Use use) { return random_key(seed, 0, 0, 0, 0, static_cast<Stream>(use)); }

uint64_t permutation_key(uint64_t seed, Use use) {
    const RandomKey key = key_of(seed, use);
    return static_cast<uint64_t>(key.k1) << 32 | key.k0;
}

double unit(uint64_t bits) { return static_cast<double>(bits >> 11) * 0x1p-53; }

uint32_t chance(double p) { return static_cast<uint32_t>(std::clamp(p * 0x1p32, 0.0, 0x1p32 - 1)); }

constexpr int64_t kGrain = 4096;

// Rounds up with the fraction's probability, which keeps a mean degree exact.
int64_t round_degree(RandomKey key, int64_t node, double mean) {
    return static_cast<int64_t>(mean + unit(random_block(key, static_cast<uint64_t>(node), 0).low()));
}

// A rank below size, drawn with density rank^-(1 - 1/skew) from 64 random bits.
uint64_t popular_rank(uint64_t bits, uint64_t size, int skew) {
    const double x = unit(bits);
    double power = x;
    for (int k = 1; k < skew; ++k) power *= x;
    return std::min(static_cast<uint64_t>(power * static_cast<double>(size)), size - 1);
}

}  // namespace

Communities::Communities(int64_t num_nodes, int64_t num_classes, uint64_t seed, double degree, double homophily,
                         int skew)
    : num_nodes_(static_cast<uint64_t>(num_nodes)),
      num_classes_(static_cast<uint64_t>(num_classes)),
      seed_(seed),
      degree_(degree),
      homophily_(homophily),
      skew_(skew),
      permutation_(num_nodes_, permutation_key(seed, Use::kPermutation)) {}

uint64_t Communities::first_of(uint64_t community) const {
    return static_cast<uint64_t>(static_cast<unsigned __int128>(community) * num_nodes_ / num_classes_);
}

Communities::Member Communities::member(int64_t node) const {
    const uint64_t place = permutation_.inverse(static_cast<uint64_t>(node));
    uint64_t community = static_cast<uint64_t>(static_cast<unsigned __int128>(place) * num_classes_ / num_nodes_);
    while (first_of(community + 1) <= place) ++community;
    return {community, place - first_of(community)};
}

void Communities::labels(NodeRange nodes, int64_t* out, ThreadPool& pool) const {
    pool.parallel_for(nodes.size(), kGrain, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) out[i] = static_cast<int64_t>(member(nodes.begin + i).community);
    });
}

void Communities::degrees(NodeRange nodes, int64_t* out, ThreadPool& pool) const {
    const RandomKey key = key_of(seed_, Use::kDegree);
    const double exponent = 1.0 / skew_ - 1.0, scale = degree_ / skew_;
    pool.parallel_for(nodes.size(), kGrain, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
            const auto [community, rank] = member(nodes.begin + i);
            const double x = (static_cast<double>(rank) + 0.5) / static_cast<double>(size_of(community));
            const double mean = std::min(scale * std::pow(x, exponent), static_cast<double>(num_nodes_));
            out[i] = round_degree(key, nodes.begin + i, mean);
        }
    });
}

void Communities::sources(NodeRange nodes, const int64_t* offsets, int64_t* sources, ThreadPool& pool) const {
    const RandomKey key = key_of(seed_, Use::kSource);
    pool.parallel_for(nodes.size(), kGrain / 8, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
            const uint64_t node = static_cast<uint64_t>(nodes.begin + i);
            const uint64_t own = member(nodes.begin + i).community;
            for (int64_t e = offsets[i]; e < offsets[i + 1]; ++e) {
                const RandomBlock random = random_block(key, node, static_cast<uint32_t>(e - offsets[i]));
                uint64_t community = own;
                if (static_cast<double>(random.w[0]) * 0x1p-32 >= homophily_)
                    community = multiply_high(static_cast<uint64_t>(random.w[1]) << 32, num_classes_);
                const uint64_t rank = popular_rank(random.high(), size_of(community), skew_);
                sources[e] = static_cast<int64_t>(permutation_.forward(first_of(community) + rank));
            }
        }
    });
}

Blocks::Blocks(const int64_t* first, int64_t num_blocks, int64_t num_classes, uint64_t seed, double degree,
               double inside, double homophily, int skew)
    : first_(first),
      num_blocks_(static_cast<uint64_t>(num_blocks)),
      num_nodes_(static_cast<uint64_t>(first[num_blocks])),
      num_classes_(static_cast<uint64_t>(num_classes)),
      seed_(seed),
      degree_(degree),
      inside_(inside),
      homophily_(homophily),
      skew_(skew),
      permutation_(num_nodes_, permutation_key(seed, Use::kPermutation)) {}

uint64_t Blocks::block_of(uint64_t place) const {
    return static_cast<uint64_t>(std::upper_bound(first_, first_ + num_blocks_, static_cast<int64_t>(place)) - first_) -
           1;
}

Blocks::Member Blocks::member(int64_t node) const {
    const uint64_t place = permutation_.inverse(static_cast<uint64_t>(node));
    const uint64_t block = block_of(place);
    return {block, place - static_cast<uint64_t>(first_[block])};
}

void Blocks::labels(NodeRange nodes, int64_t* out, ThreadPool& pool) const {
    pool.parallel_for(nodes.size(), kGrain, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) out[i] = static_cast<int64_t>(label_of(member(nodes.begin + i)));
    });
}

void Blocks::blocks(NodeRange nodes, int64_t* out, ThreadPool& pool) const {
    pool.parallel_for(nodes.size(), kGrain, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) out[i] = static_cast<int64_t>(member(nodes.begin + i).block);
    });
}

void Blocks::degrees(NodeRange nodes, int64_t* out, ThreadPool& pool) const {
    const RandomKey key = key_of(seed_, Use::kDegree);
    pool.parallel_for(nodes.size(), kGrain, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
            const auto [block, rank] = member(nodes.begin + i);
            const double size = static_cast<double>(size_of(block)), first = static_cast<double>(rank);
            // The share x^(1/skew) of in-edges between two ranks: over a block, however small, they add up to 1.
            const double share = std::pow((first + 1) / size, 1.0 / skew_) - std::pow(first / size, 1.0 / skew_);
            const double mean = std::min(degree_ * size * share, static_cast<double>(num_nodes_));
            out[i] = round_degree(key, nodes.begin + i, mean);
        }
    });
}

void Blocks::sources(NodeRange nodes, const int64_t* offsets, int64_t* sources, ThreadPool& pool) const {
    const RandomKey key = key_of(seed_, Use::kSource);
    pool.parallel_for(nodes.size(), kGrain / 8, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
            const uint64_t node = static_cast<uint64_t>(nodes.begin + i);
            const Member own = member(nodes.begin + i);
            const uint64_t label = label_of(own);
            for (int64_t e = offsets[i]; e < offsets[i + 1]; ++e) {
                const RandomBlock random = random_block(key, node, static_cast<uint32_t>(e - offsets[i]));
                // One uniform number decides both: what is left of it after the first choice is uniform again.
                double u = static_cast<double>(random.w[0]) * 0x1p-32;
                const bool stays = u < inside_;
                u = stays ? u / inside_ : (u - inside_) / (1 - inside_);
                uint64_t block = own.block;
                if (!stays) block = block_of(multiply_high(static_cast<uint64_t>(random.w[1]) << 32, num_nodes_));
                const uint64_t size = size_of(block);
                uint64_t rank = popular_rank(random.high(), size, skew_);
                if (u < homophily_) {
                    // The nearest rank of the same popularity or more that has this class, or the first one that has.
                    const uint64_t away = (rank + block + num_classes_ - label) % num_classes_;
                    const uint64_t moved = rank >= away ? rank - away : rank + num_classes_ - away;
                    if (moved < size) rank = moved;  // a block smaller than the classes may have none
                }
                sources[e] = static_cast<int64_t>(permutation_.forward(static_cast<uint64_t>(first_[block]) + rank));
            }
        }
    });
}

Rmat::Rmat(int64_t num_nodes, uint64_t seed, double a, double b, double c, double d, bool scatter)
    : num_nodes_(static_cast<uint64_t>(num_nodes)),
      seed_(seed),
      one_given_zero_(chance(c / (a + c))),
      one_given_one_(chance(d / (b + d))),
      one_(chance(c + d)),
      scatter_(scatter),
      permutation_(num_nodes_, permutation_key(seed, Use::kPermutation)) {}

void Rmat::degrees(NodeRange nodes, const uint32_t* in_degrees, int64_t* out, ThreadPool& pool) const {
    pool.parallel_for(nodes.size(), kGrain, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) out[i] = in_degrees[place_of(nodes.begin + i)];
    });
}

void Rmat::sources(NodeRange nodes, const int64_t* offsets, int64_t* sources, ThreadPool& pool) const {
    const RandomKey key = key_of(seed_, Use::kRmatSource);
    pool.parallel_for(nodes.size(), kGrain / 8, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
            const uint64_t place = place_of(nodes.begin + i);
            for (int64_t e = offsets[i]; e < offsets[i + 1]; ++e) {
                const uint32_t edge = static_cast<uint32_t>(e - offsets[i]);
                // Both ids are found by halving ranges of at most one node's difference in size.
                uint64_t first = 0, size = num_nodes_, dst_first = 0, dst_size = num_nodes_;
                RandomBlock random{};
                for (uint32_t level = 0; size > 1; ++level) {
                    if (level % 4 == 0)
                        random = philox(key, static_cast<uint32_t>(place), static_cast<uint32_t>(place >> 32), edge,
                                        1 + level / 4);
                    uint32_t threshold = one_;
                    if (dst_size > 1) {
                        const uint64_t dst_left = (dst_size + 1) / 2;
                        const bool bit = place >= dst_first + dst_left;
                        threshold = bit ? one_given_one_ : one_given_zero_;
                        if (bit) dst_first += dst_left;
                        dst_size = bit ? dst_size - dst_left : dst_left;
                    }
                    const uint64_t left = (size + 1) / 2;
                    if (random.w[level % 4] < threshold) {
                        first += left;
                        size -= left;
                    } else {
                        size = left;
                    }
                }
                sources[e] = static_cast<int64_t>(scatter_ ? permutation_.forward(first) : first);
            }
        }
    });
}

void class_features(NodeRange nodes, const int64_t* labels, int64_t dim, uint64_t seed, double signal, float* out,
                    ThreadPool& pool) {
    const RandomKey noise_key = key_of(seed, Use::kNoise), centroid_key = key_of(seed, Use::kCentroid);
    const float step = static_cast<float>(signal / std::sqrt(static_cast<double>(dim)));
    // A uniform on {0..65535} has variance (65536^2 - 1) / 12; four of them have mean 131070.
    const float scale = static_cast<float>(1.0 / std::sqrt(4.0 * (65536.0 * 65536.0 - 1.0) / 12.0));
    pool.parallel_for(nodes.size(), 256, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
            const uint64_t node = static_cast<uint64_t>(nodes.begin + i);
            const uint64_t label = static_cast<uint64_t>(labels[i]);
            float* row = out + i * dim;
            RandomBlock signs{};
            for (int64_t j = 0; j < dim; j += 2) {
                if (j % 128 == 0) signs = random_block(centroid_key, label, static_cast<uint32_t>(j / 128));
                const RandomBlock random = random_block(noise_key, node, static_cast<uint32_t>(j / 2));
                for (int64_t k = 0; k < std::min<int64_t>(2, dim - j); ++k) {
                    const uint32_t x = random.w[2 * k], y = random.w[2 * k + 1];
                    const int32_t sum = static_cast<int32_t>((x & 0xffff) + (x >> 16) + (y & 0xffff) + (y >> 16));
                    const int64_t bit = (j + k) % 128;
                    const bool positive = signs.w[bit / 32] >> (bit % 32) & 1;
                    row[j + k] = static_cast<float>(sum - 131070) * scale + (positive ? step : -step);
                }
            }
        }
    });
}

void shuffled_ids(int64_t num_nodes, uint64_t seed, NodeRange places, int64_t* out, ThreadPool& pool) {
    const Permutation permutation(static_cast<uint64_t>(num_nodes), permutation_key(seed, Use::kSplit));
    pool.parallel_for(places.size(), kGrain, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i)
            out[i] = static_cast<int64_t>(permutation.forward(static_cast<uint64_t>(places.begin + i)));
    });
}

}  // namespace gids
