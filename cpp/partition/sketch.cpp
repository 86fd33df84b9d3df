// A graph cut down to a few neighbours of every node.
#include "partition/sketch.hpp"

#include <algorithm>

#include "philox.cuh"

namespace gids {

Sketch::Sketch(int64_t num_nodes, int width, uint64_t seed)
    : num_nodes_(num_nodes),
      width_(width),
      seed_(seed),
      slots_(static_cast<size_t>(num_nodes * width)),
      counts_(static_cast<size_t>(num_nodes)),
      in_edges_(static_cast<size_t>(num_nodes)) {
    if (width < 1 || width > kMaxWidth)
        throw ConfigError("width must be in [1, " + std::to_string(kMaxWidth) + "] (got " + std::to_string(width) +
                          ")");
}

void Sketch::add(const ListPiece& piece, ThreadPool& pool) {
    pool.parallel_for(piece.count, 4096, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
            const int64_t node = piece.first + i, degree = piece.degree(i);
            uint32_t* out = slots_.data() + node * width_;
            int kept = 0;
            if (degree <= width_) {
                piece.for_sources(i, [&](uint32_t source) {
                    if (source != node) out[kept++] = source;
                });
            } else {
                // Every width-th part of the list gives one edge, at a place within the part that the seed decides.
                const uint64_t start = random_block({static_cast<uint32_t>(seed_), static_cast<uint32_t>(seed_ >> 32)},
                                                    static_cast<uint64_t>(node), 0)
                                           .low();
                const uint64_t within = multiply_high(start, static_cast<uint64_t>(degree));
                size_t relation = 0;
                int64_t before = 0;  // edges of the relations before this one
                for (int k = 0; k < width_; ++k) {
                    const int64_t place = (k * degree + static_cast<int64_t>(within)) / width_;
                    while (place - before >= piece.relations[relation].size(i))
                        before += piece.relations[relation++].size(i);
                    const RelationLists& lists = piece.relations[relation];
                    const uint32_t source = lists.source(lists.begin(i) + place - before);
                    if (source != node) out[kept++] = source;
                }
            }
            counts_[static_cast<size_t>(node)] = in_edges_[static_cast<size_t>(node)] = static_cast<uint8_t>(kept);
        }
    });
}

void Sketch::add_reverse() {
    for (int64_t node = 0; node < num_nodes_; ++node) {
        const uint32_t* own = slots_.data() + node * width_;
        for (int k = 0; k < in_edges_[static_cast<size_t>(node)]; ++k) {
            uint8_t& count = counts_[own[k]];
            if (count < width_) slots_[static_cast<size_t>(own[k]) * width_ + count++] = static_cast<uint32_t>(node);
        }
    }
}

}  // namespace gids
