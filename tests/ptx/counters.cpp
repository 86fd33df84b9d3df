// Sectors, contention, divergence and chains of host reads.
#include "counters.hpp"

#include <algorithm>
#include <sstream>

namespace ptx {
namespace {

Place place_of(uint64_t address, const Regions& regions) {
    const Region region = regions.find(address);
    return region == Region::kMmio ? Place::kMmio : is_remote(region) ? Place::kHost : Place::kHbm;
}

}  // namespace

void Totals::add(const Totals& other) {
    launches += other.launches, warps += other.warps, instructions += other.instructions;
    active_lanes += other.active_lanes, branches += other.branches, split_branches += other.split_branches;
    for (int p = 0; p < 3; ++p) {
        for (const auto& [mine, theirs] :
             {std::pair{&loads[p], &other.loads[p]}, std::pair{&stores[p], &other.stores[p]}}) {
            mine->warp_accesses += theirs->warp_accesses, mine->lane_accesses += theirs->lane_accesses;
            mine->sectors += theirs->sectors, mine->bytes += theirs->bytes;
        }
        atomics[p] += other.atomics[p], atomic_lanes[p] += other.atomic_lanes[p];
    }
    shared_accesses += other.shared_accesses, atomic_rounds += other.atomic_rounds;
    hottest_address = std::max(hottest_address, other.hottest_address);
    fences += other.fences, barriers += other.barriers, collectives += other.collectives;
    host_chain = std::max(host_chain, other.host_chain);
}

void Counters::start_wave(int lanes) {
    depths_.assign(static_cast<std::size_t>(lanes) * slots_, 0);
    issued_.assign(lanes, 0);
    deepest_.assign(lanes, 0);
}

void Counters::memory(const Instruction& i, uint32_t mask, const uint64_t* address, const Regions& regions,
                      bool in_shared) {
    if (i.space == Space::kShared || in_shared) {
        ++totals.shared_accesses;
        return;
    }
    if (i.space == Space::kParam || i.space == Space::kLocal || mask == 0) return;
    uint64_t sectors[3][kLanes * 2];
    int count[3] = {};
    uint32_t lanes[3] = {};
    const auto bytes = static_cast<uint64_t>(i.access_bytes());
    each_lane(mask, [&](int lane) {
        const int place = static_cast<int>(place_of(address[lane], regions));
        ++lanes[place];
        // An access is aligned to its size, at most 16 bytes: it lies in one sector.
        sectors[place][count[place]++] = address[lane] / kSectorBytes;
    });
    for (int p = 0; p < 3; ++p) {
        if (lanes[p] == 0) continue;
        std::sort(sectors[p], sectors[p] + count[p]);
        const auto distinct = static_cast<uint64_t>(std::unique(sectors[p], sectors[p] + count[p]) - sectors[p]);
        if (i.kind == Kind::kAtomic) {
            ++totals.atomics[p];
            totals.atomic_lanes[p] += lanes[p];
            continue;
        }
        AccessCount& to = i.kind == Kind::kLoad ? totals.loads[p] : totals.stores[p];
        ++to.warp_accesses;
        to.lane_accesses += lanes[p];
        to.sectors += distinct;
        to.bytes += lanes[p] * bytes;
    }
    if (i.kind != Kind::kAtomic) return;
    std::unordered_map<uint64_t, uint64_t> here;
    uint64_t most = 0;
    each_lane(mask, [&](int lane) {
        most = std::max(most, ++here[address[lane]]);
        ++atomics_at_[address[lane]];
    });
    totals.atomic_rounds += most;
}

void Counters::chain(const Instruction& i, int first_lane, uint32_t mask, const uint64_t* address,
                     const Regions& regions) {
    each_lane(mask, [&](int l) {
        const int lane = first_lane + l;
        uint16_t deep = issued_[lane];
        for (const int source : i.sources) deep = std::max(deep, depth(lane, source));
        if (i.guard >= 0) deep = std::max(deep, depth(lane, i.guard));
        const bool reads = i.kind == Kind::kLoad || i.kind == Kind::kAtomic;
        if (reads && i.space != Space::kParam && i.space != Space::kShared && i.space != Space::kLocal &&
            place_of(address[l], regions) == Place::kHost)
            ++deep;
        if (reads) deepest_[lane] = std::max(deepest_[lane], deep);
        for (const int destination : i.destinations) depth(lane, destination) = deep;
        const bool acquires = i.order == Order::kAcquire || i.order == Order::kAcqRel || i.order == Order::kSeqCst;
        // Nothing is guessed ahead: what follows a branch, an acquire or a fence waits for what those waited for.
        if (i.kind == Kind::kBranch || (reads && acquires)) issued_[lane] = std::max(issued_[lane], deep);
        if (i.kind == Kind::kFence) issued_[lane] = std::max(issued_[lane], deepest_[lane]);
        totals.host_chain = std::max<uint64_t>(totals.host_chain, deep);
    });
}

void Counters::chain_collective(const Instruction* const* at, int first_lane, uint32_t mask) {
    uint16_t deep = 0;
    each_lane(mask, [&](int l) {
        deep = std::max(deep, issued_[first_lane + l]);
        for (const int source : at[l]->sources) deep = std::max(deep, depth(first_lane + l, source));
    });
    each_lane(mask, [&](int l) {
        issued_[first_lane + l] = std::max(issued_[first_lane + l], deep);
        for (const int destination : at[l]->destinations) depth(first_lane + l, destination) = deep;
    });
}

void Counters::chain_barrier(int first_lane, uint32_t mask) {
    // bar.sync orders memory: a lane that goes on has waited for its loads.
    each_lane(mask,
              [&](int l) { issued_[first_lane + l] = std::max(issued_[first_lane + l], deepest_[first_lane + l]); });
}

void Counters::finish() {
    for (const auto& [address, count] : atomics_at_) totals.hottest_address = std::max(totals.hottest_address, count);
    atomics_at_.clear();
}

std::string to_json(const std::map<std::string, Totals>& kernels) {
    std::ostringstream out;
    out << "{";
    bool first = true;
    for (const auto& [name, t] : kernels) {
        out << (first ? "" : ",\n") << "\"" << name << "\": {\"launches\": " << t.launches << ", \"warps\": " << t.warps
            << ", \"instructions\": " << t.instructions << ", \"active_lanes\": " << t.active_lanes
            << ", \"branches\": " << t.branches << ", \"split_branches\": " << t.split_branches
            << ", \"shared_accesses\": " << t.shared_accesses << ", \"atomic_rounds\": " << t.atomic_rounds
            << ", \"hottest_address\": " << t.hottest_address << ", \"fences\": " << t.fences
            << ", \"barriers\": " << t.barriers << ", \"collectives\": " << t.collectives
            << ", \"host_chain\": " << t.host_chain;
        for (int p = 0; p < 3; ++p)
            for (const auto& [what, count] : {std::pair{"loads", &t.loads[p]}, std::pair{"stores", &t.stores[p]}})
                out << ", \"" << kPlaceNames[p] << "_" << what << "\": {\"warp_accesses\": " << count->warp_accesses
                    << ", \"lane_accesses\": " << count->lane_accesses << ", \"sectors\": " << count->sectors
                    << ", \"bytes\": " << count->bytes << "}";
        for (int p = 0; p < 3; ++p)
            out << ", \"" << kPlaceNames[p] << "_atomics\": {\"warp_accesses\": " << t.atomics[p]
                << ", \"lane_accesses\": " << t.atomic_lanes[p] << "}";
        out << "}";
        first = false;
    }
    out << "}";
    return out.str();
}

}  // namespace ptx
