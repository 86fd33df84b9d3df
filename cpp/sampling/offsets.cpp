// PackedOffsets: blocks are closed as they fill, so that the plain offsets are never all in memory.
#include "sampling/offsets.hpp"

#include <algorithm>
#include <cstring>
#include <string>

#include "errors.hpp"

namespace gids {
namespace {

constexpr int kLargestWidth = 57;  // what load_bits reads at any bit of a byte

}  // namespace

PackedOffsets::PackedOffsets(int64_t num_nodes) : num_nodes_(num_nodes), blocks_(num_nodes / kBlockNodes + 1) {
    if (num_nodes < 0) throw ConfigError("num_nodes must not be negative (got " + std::to_string(num_nodes) + ")");
    open_.reserve(kBlockNodes);
}

void PackedOffsets::append(std::span<const int64_t> offsets) {
    for (const int64_t offset : offsets) {
        if (taken_ > num_nodes_)
            throw DatasetError("offsets must number num_nodes + 1 = " + std::to_string(num_nodes_ + 1));
        if (taken_ == 0 ? offset != 0 : offset < last_)
            throw DatasetError("offsets must begin at 0 and never decrease (got " + std::to_string(offset) + " after " +
                               std::to_string(last_) + ")");
        last_ = offset;
        ++taken_;
        open_.push_back(offset);
        if (open_.size() == kBlockNodes) close_block();
    }
}

void PackedOffsets::close_block() {
    const int64_t base = open_.front();
    const int width = bits_for(static_cast<uint64_t>(open_.back() - base));
    if (width > kLargestWidth)
        throw DatasetError("64 nodes must have fewer than 2^57 edges (got " + std::to_string(open_.back() - base) +
                           ")");
    blocks_[(taken_ - 1) / kBlockNodes] = {static_cast<uint64_t>(base) << 6 | static_cast<uint64_t>(width), used_bits_};
    const auto needed = static_cast<int64_t>((used_bits_ + open_.size() * static_cast<size_t>(width)) / 8 + 1);
    if (needed + kBitsPadding > bits_.size()) {
        // An eighth to spare: pages that are never written cost nothing, and copies stay few.
        const int64_t before = bits_.size();
        Array<uint8_t> larger(needed + needed / 8 + 4096);
        if (before > 0) std::memcpy(larger.data(), bits_.data(), static_cast<size_t>(before));
        std::memset(larger.data() + before, 0, static_cast<size_t>(larger.size() - before));
        bits_ = std::move(larger);
    }
    for (const int64_t offset : open_) {
        store_bits(bits_.data(), used_bits_, static_cast<uint64_t>(offset - base));
        used_bits_ += static_cast<uint64_t>(width);
    }
    open_.clear();
}

void PackedOffsets::finish() {
    if (taken_ != num_nodes_ + 1)
        throw DatasetError("offsets must number num_nodes + 1 = " + std::to_string(num_nodes_ + 1) + " (got " +
                           std::to_string(taken_) + ")");
    if (!open_.empty()) close_block();
    bits_.set_size(std::min(static_cast<int64_t>(used_bits_ / 8 + 1) + kBitsPadding, bits_.size()));
    bits_.fit();
}

}  // namespace gids
