// What a batch is sampled by: its name, its seeds, and the edges that it must not show.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "exclude.cuh"
#include "philox.cuh"

namespace gids {

struct SampleKey {
    uint64_t seed;
    uint32_t epoch;
    uint64_t batch;

    RandomKey layer(size_t hop, size_t relation, Stream stream) const {
        return random_key(seed, epoch, batch, static_cast<uint32_t>(hop), static_cast<uint32_t>(relation), stream);
    }
};

using Seeds = std::vector<std::span<const int64_t>>;  // by node type

// Edges that must not appear in a block, sorted.
using ExcludedEdges = std::vector<NodePair>;

// A view: whoever makes it keeps the arrays.
struct SampleRequest {
    SampleKey key{};
    Seeds seeds{};
    std::span<const ExcludedEdges> excluded{};  // by relation; may be empty altogether

    std::span<const int64_t> times{};  // of the seeds, type after type; empty where they have none

    const ExcludedEdges& excluded_of(size_t relation) const {
        static const ExcludedEdges nothing;
        return excluded.empty() ? nothing : excluded[relation];
    }
};

}  // namespace gids
