// Vector clocks for lanes, published clocks for locations, and the last accesses of every 8 bytes.
#include "races.hpp"

#include <algorithm>

namespace ptx {
namespace {

void join(Clocks& to, const Clocks& from) {
    if (to.size() < from.size()) to.resize(from.size());
    for (std::size_t n = 0; n < from.size(); ++n) to[n] = std::max(to[n], from[n]);
}

bool acquires(Order order) { return order == Order::kAcquire || order == Order::kAcqRel || order == Order::kSeqCst; }
bool releases(Order order) { return order == Order::kRelease || order == Order::kAcqRel || order == Order::kSeqCst; }

}  // namespace

Races::Races(int lanes, int lanes_per_block, bool has_block_scope)
    : lanes_per_block_(lanes_per_block),
      has_block_scope_(has_block_scope),
      clocks_(lanes),
      all_(lanes),
      near_(has_block_scope ? lanes : 0) {
    for (int lane = 0; lane < lanes; ++lane) {
        clocks_[lane].assign(lanes, 0);
        clocks_[lane][lane] = 1;
    }
}

bool Races::in_scope(Scope a, Scope b, int one, int other) const {
    if (a != Scope::kBlock && b != Scope::kBlock) return true;
    return block_of(one) == block_of(other);
}

std::string Races::access(const Instruction& i, int lane, uint64_t address) {
    const bool strong = i.order != Order::kWeak && i.order != Order::kNonCoherent;
    const bool writes = i.kind != Kind::kLoad;
    std::string found;
    for (int done = 0; done < i.access_bytes() && found.empty();) {
        const uint64_t at = address + static_cast<uint64_t>(done);
        const int count = std::min<int>(i.access_bytes() - done, static_cast<int>(8 - at % 8));
        found = conflict(i, lane, at, static_cast<uint8_t>(((1u << count) - 1) << (at % 8)), writes, strong);
        done += count;
    }
    if (strong) synchronize(i, lane, address);
    return found;
}

std::string Races::conflict(const Instruction& i, int lane, uint64_t address, uint8_t bytes, bool writes, bool strong) {
    Cell& cell = cells_[address / 8];
    for (const Record& before : cell.records) {
        if (before.lane < 0 || before.lane == lane || (before.bytes & bytes) == 0 || !(before.writes || writes))
            continue;
        if (before.strong && strong && in_scope(before.scope, i.scope, before.lane, lane)) continue;
        if (ordered(before, lane)) continue;
        return "races with line " + std::to_string(before.line) + " of the PTX, run by thread " +
               std::to_string(before.lane % lanes_per_block_) + " of a block at the same time: nothing orders them";
    }
    const Record record{clocks_[lane][lane], static_cast<int16_t>(lane), bytes, writes, strong, i.scope, i.line};
    for (Record& mine : cell.records)
        if (mine.lane == lane && mine.bytes == bytes && mine.writes == writes && mine.strong == strong) {
            mine = record;
            return "";
        }
    cell.records[cell.next] = record;
    cell.next = (cell.next + 1) % kRecords;
    return "";
}

void Races::publish(Published& location, const Clocks& what, int lane, bool to_all) const {
    if (what.empty()) return;
    if (to_all) join(location.clocks, what);
    if (has_block_scope_) join(location.near[block_of(lane)], what);
}

void Races::synchronize(const Instruction& i, int lane, uint64_t address) {
    if (i.mmio) join(devices_, all_[lane].fenced);
    if (i.kind == Kind::kLoad && i.scope == Scope::kSystem && acquires(i.order)) join(clocks_[lane], devices_);
    Published& location = published_[address];
    if (i.kind != Kind::kStore) {
        const bool now = acquires(i.order);
        join(now ? clocks_[lane] : all_[lane].pending, location.clocks);
        if (const auto near = location.near.find(block_of(lane)); near != location.near.end())
            join(now ? clocks_[lane] : near_[lane].pending, near->second);
    }
    if (i.kind == Kind::kLoad) return;
    // A store of another lane ends what was published; an atomic operation carries it on.
    if (i.kind == Kind::kStore && location.lane != lane) location.clocks.clear(), location.near.clear();
    location.lane = lane;
    if (releases(i.order)) {
        publish(location, clocks_[lane], lane, i.scope != Scope::kBlock);
        ++clocks_[lane][lane];
        return;
    }
    publish(location, all_[lane].fenced, lane, true);
    if (has_block_scope_) publish(location, near_[lane].fenced, lane, false);
}

void Races::fence(const Instruction& i, int lane) {
    const bool for_all = i.scope != Scope::kBlock;
    if (for_all) join(clocks_[lane], all_[lane].pending);
    if (has_block_scope_) join(clocks_[lane], near_[lane].pending);
    if (for_all) all_[lane].fenced = clocks_[lane];
    if (has_block_scope_) near_[lane].fenced = clocks_[lane];
    ++clocks_[lane][lane];
}

void Races::meet(const std::vector<int>& who) {
    Clocks all(clocks_.size(), 0);
    for (const int lane : who) join(all, clocks_[lane]);
    for (const int lane : who) {
        clocks_[lane] = all;
        ++clocks_[lane][lane];
    }
}

}  // namespace ptx
