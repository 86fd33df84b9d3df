// The nodes of one type in one sample, numbered by first occurrence: the CPU's single pass for kernels/unique.cuh.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "sampling/buffer.hpp"

namespace gids {

// Open-addressing slots that survive from one sample to the next. A slot is taken when its value is at least `base`;
// raising `base` therefore empties the table without touching it.
class IdTable {
public:
    // wide: node ids need more than 32 bits.
    explicit IdTable(bool wide) : wide_(wide) {}

    bool wide() const { return wide_; }
    size_t bytes() const { return slots_.capacity_bytes(); }

private:
    friend class NodeSet;
    struct Narrow {
        uint32_t node, value;
    };
    struct Wide {
        uint64_t node, value;
    };

    const bool wide_;
    Array<unsigned char> slots_;
    uint64_t base_ = 1;  // values below it are from earlier samples
};

// Tables wait here between samples; each sample borrows one per node type, so that samples can run at once.
class TablePool {
public:
    std::unique_ptr<IdTable> borrow(bool wide);
    void give_back(std::unique_ptr<IdTable> table);
    size_t bytes() const;

private:
    mutable std::mutex mutex_;
    std::vector<std::unique_ptr<IdTable>> free_;  // guarded by mutex_
};

class NodeSet {
public:
    NodeSet(TablePool& pool, int64_t num_nodes);
    ~NodeSet();
    NodeSet(NodeSet&&) = default;
    NodeSet(const NodeSet&) = delete;

    int64_t size() const { return nodes_.size(); }
    const int64_t* nodes() const { return nodes_.data(); }

    // Makes room for about `more` occurrences that will be added next.
    void expect(int64_t more);

    // Replaces each node id by its number, numbering new ones in order.
    void add(int64_t* ids, int64_t count);

    // Replaces each node id by its number, or by -1 where the set does not have it. Several threads may call it at
    // once.
    void find(int64_t* ids, int64_t count) const;

    // Gives the nodes away and ends the set.
    Array<int64_t> take_nodes();

private:
    template <class Slot>
    void add_slots(int64_t* ids, int64_t count);
    template <class Slot>
    void find_slots(int64_t* ids, int64_t count) const;
    template <class Slot>
    void rebuild();
    void resize(int64_t capacity);
    void end();

    TablePool* pool_;
    int64_t num_nodes_;
    std::unique_ptr<IdTable> table_;
    Array<int64_t> nodes_;
    int capacity_log2_ = 0;  // slots in use: a prefix of what the table owns
};

}  // namespace gids
