// NodeSet: one probe per occurrence, prefetched, without a branch on whether the node is new.
#include "sampling/node_set.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <string>

#include "errors.hpp"
#include "unique.cuh"

namespace gids {
namespace {

constexpr int64_t kAhead = 16;                     // occurrences between prefetch and use
constexpr int64_t kPiece = 4096;                   // occurrences between two looks at the load
constexpr int64_t kMinSlots = 1024;                // 8 KiB: stays in the first-level cache for single-node samples
constexpr uint64_t kLastBase = uint64_t{1} << 31;  // values are at most 32 bits: base + size must stay below 2^32

}  // namespace

std::unique_ptr<IdTable> TablePool::borrow(bool wide) {
    const std::lock_guard lock(mutex_);
    for (auto it = free_.rbegin(); it != free_.rend(); ++it) {
        if ((*it)->wide() != wide) continue;
        auto table = std::move(*it);
        free_.erase(std::next(it).base());
        return table;
    }
    return std::make_unique<IdTable>(wide);
}

void TablePool::give_back(std::unique_ptr<IdTable> table) {
    const std::lock_guard lock(mutex_);
    free_.push_back(std::move(table));
}

size_t TablePool::bytes() const {
    const std::lock_guard lock(mutex_);
    size_t total = 0;
    for (const auto& table : free_) total += table->bytes();
    return total;
}

NodeSet::NodeSet(TablePool& pool, int64_t num_nodes)
    : pool_(&pool), num_nodes_(num_nodes), table_(pool.borrow(num_nodes > int64_t{1} << 32)) {
    resize(kMinSlots);
}

NodeSet::~NodeSet() { end(); }

Array<int64_t> NodeSet::take_nodes() {
    end();
    nodes_.fit();  // its room was for as many nodes as edges
    return std::move(nodes_);
}

void NodeSet::end() {
    if (!table_) return;
    table_->base_ += static_cast<uint64_t>(nodes_.size());
    pool_->give_back(std::move(table_));
}

void NodeSet::resize(int64_t capacity) {
    const int64_t slots = static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(std::max(capacity, kMinSlots))));
    const int64_t slot_bytes = table_->wide() ? sizeof(IdTable::Wide) : sizeof(IdTable::Narrow);
    IdTable& table = *table_;
    const bool grow = table.slots_.capacity() < slots * slot_bytes;
    if (grow) {
        table.slots_ = Array<unsigned char>(0);
        table.slots_ = Array<unsigned char>(slots * slot_bytes);
    }
    if (grow ? !table.slots_.zeroed() : table.base_ >= kLastBase)
        std::memset(table.slots_.data(), 0, static_cast<size_t>(table.slots_.capacity()));
    if (grow || table.base_ >= kLastBase) table.base_ = 1;
    else table.base_ += static_cast<uint64_t>(nodes_.size());
    capacity_log2_ = std::countr_zero(static_cast<uint64_t>(slots));
    table.wide() ? rebuild<IdTable::Wide>() : rebuild<IdTable::Narrow>();
}

template <class Slot>
void NodeSet::rebuild() {
    Slot* slots = reinterpret_cast<Slot*>(table_->slots_.data());
    const int shift = 64 - capacity_log2_;
    const uint64_t mask = (uint64_t{1} << capacity_log2_) - 1;
    const uint64_t base = table_->base_;
    const int64_t size = nodes_.size();
    for (int64_t i = 0; i < size; ++i) {
        if (i + kAhead < size)
            __builtin_prefetch(&slots[hash_node(static_cast<uint64_t>(nodes_[i + kAhead])) >> shift], 1);
        uint64_t at = hash_node(static_cast<uint64_t>(nodes_[i])) >> shift;
        while (slots[at].value >= base) at = (at + 1) & mask;
        slots[at].node = static_cast<decltype(Slot::node)>(nodes_[i]);
        slots[at].value = static_cast<decltype(Slot::value)>(base + static_cast<uint64_t>(i));
    }
}

void NodeSet::expect(int64_t more) {
    nodes_.reserve(std::min(nodes_.size() + more, num_nodes_) + 1);
    // About half of the occurrences are new nodes in the graphs that matter; add() grows the table where more are.
    const int64_t guess = std::min(nodes_.size() + more / 2, num_nodes_) * 2;
    if (guess > int64_t{1} << capacity_log2_) resize(guess);
}

void NodeSet::add(int64_t* ids, int64_t count) {
    nodes_.reserve(std::min(nodes_.size() + count, num_nodes_) + 1);
    for (int64_t begin = 0; begin < count; begin += kPiece) {
        const int64_t piece = std::min(kPiece, count - begin);
        const int64_t bound = nodes_.size() + piece;
        if (bound > INT32_MAX) throw ConfigError("nodes in one sample must be fewer than 2^31");
        if (bound * 4 > (int64_t{1} << capacity_log2_) * 3) resize(bound * 2);
        table_->wide() ? add_slots<IdTable::Wide>(ids + begin, piece) : add_slots<IdTable::Narrow>(ids + begin, piece);
    }
}

template <class Slot>
void NodeSet::add_slots(int64_t* ids, int64_t count) {
    using Node = decltype(Slot::node);
    using Value = decltype(Slot::value);
    Slot* slots = reinterpret_cast<Slot*>(table_->slots_.data());
    const int shift = 64 - capacity_log2_;
    const uint64_t mask = (uint64_t{1} << capacity_log2_) - 1;
    const Value base = static_cast<Value>(table_->base_);
    int64_t size = nodes_.size();
    int64_t* nodes = nodes_.data();  // one element longer than needed: nodes[size] is always writable
    for (int64_t i = 0; i < count; ++i) {
        if (i + kAhead < count)
            __builtin_prefetch(&slots[hash_node(static_cast<uint64_t>(ids[i + kAhead])) >> shift], 1);
        const Node node = static_cast<Node>(ids[i]);
        uint64_t at = hash_node(node) >> shift;
        Slot slot = slots[at];
        while (slot.value >= base && slot.node != node) {
            at = (at + 1) & mask;
            slot = slots[at];
        }
        const bool fresh = slot.value < base;
        const Value value = fresh ? static_cast<Value>(base + static_cast<Value>(size)) : slot.value;
        slots[at] = {node, value};
        nodes[size] = static_cast<int64_t>(node);
        ids[i] = static_cast<int64_t>(value - base);
        size += fresh;
    }
    nodes_.set_size(size);
}

void NodeSet::find(int64_t* ids, int64_t count) const {
    table_->wide() ? find_slots<IdTable::Wide>(ids, count) : find_slots<IdTable::Narrow>(ids, count);
}

template <class Slot>
void NodeSet::find_slots(int64_t* ids, int64_t count) const {
    const Slot* slots = reinterpret_cast<const Slot*>(table_->slots_.data());
    const int shift = 64 - capacity_log2_;
    const uint64_t mask = (uint64_t{1} << capacity_log2_) - 1;
    const uint64_t base = table_->base_;
    for (int64_t i = 0; i < count; ++i) {
        if (i + kAhead < count) __builtin_prefetch(&slots[hash_node(static_cast<uint64_t>(ids[i + kAhead])) >> shift]);
        const auto node = static_cast<decltype(Slot::node)>(ids[i]);
        uint64_t at = hash_node(node) >> shift;
        while (slots[at].value >= base && slots[at].node != node) at = (at + 1) & mask;
        ids[i] = slots[at].value >= base ? static_cast<int64_t>(slots[at].value - base) : -1;
    }
}

}  // namespace gids
