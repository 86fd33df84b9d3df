// Rules for memory that a drive or the host uses while a kernel runs.
#include "regions.hpp"

#include <algorithm>
#include <iterator>

namespace ptx {

void Regions::add(const std::string& kind, uint64_t address, uint64_t bytes) {
    const auto* const name = std::find(std::begin(kRegionNames), std::end(kRegionNames), kind);
    if (name == std::end(kRegionNames)) {
        std::string all;
        for (const char* one : kRegionNames) all += std::string(all.empty() ? "" : ", ") + one;
        throw Error("a region must be one of " + all + " (got " + kind + ")");
    }
    const Range range{address, address + bytes, static_cast<Region>(name - std::begin(kRegionNames))};
    const auto by_end = [](const Range& other, uint64_t value) { return other.end <= value; };
    const auto first = std::lower_bound(ranges_.begin(), ranges_.end(), range.begin, by_end);
    auto last = first;
    std::vector<Range> instead;  // of those that overlap, [first, last)
    for (; last != ranges_.end() && last->begin < range.end; ++last)
        if (last->begin < range.begin) instead.push_back({last->begin, range.begin, last->region});
    instead.push_back(range);
    if (last != first && (last - 1)->end > range.end)
        instead.push_back({range.end, (last - 1)->end, (last - 1)->region});
    const auto at = ranges_.erase(first, last);
    ranges_.insert(at, instead.begin(), instead.end());
}

Region Regions::find(uint64_t address) const {
    const auto at = std::upper_bound(ranges_.begin(), ranges_.end(), address,
                                     [](uint64_t value, const Range& other) { return value < other.begin; });
    return at != ranges_.begin() && address < (at - 1)->end ? (at - 1)->region : Region::kDevice;
}

std::string Regions::check(const Instruction& i, uint64_t address, FenceState& lane) const {
    const Region region = find(address);
    const bool strong = i.order != Order::kWeak && i.order != Order::kNonCoherent;
    const bool system = strong && i.scope == Scope::kSystem;
    const bool reads = i.kind != Kind::kStore;
    const bool was_fenced = lane.fenced;
    lane.fenced = false;
    switch (region) {
        case Region::kDevice:
        case Region::kHost:
            return "";
        case Region::kDriveData:
            return i.order == Order::kNonCoherent
                       ? "memory that a drive writes must not be read through the non-coherent cache"
                       : "";
        case Region::kDriveWrites:
            return reads && !system ? "memory that a drive writes meanwhile must be read with an order and .sys" : "";
        case Region::kDriveReads:
            return reads && i.order == Order::kNonCoherent
                       ? "a submission queue must not be read through the non-coherent cache"
                       : "";
        case Region::kHostWrites:
            return !system ? "memory that the host uses meanwhile must be accessed with an order and .sys" : "";
        case Region::kMmio:
            if (i.kind != Kind::kStore) return "a doorbell must only be written";
            if (i.access_bytes() != 4 || !system) return "a doorbell must be written as 4 bytes with an order and .sys";
            return was_fenced ? "" : "a doorbell must follow a fence of system scope with no access between them";
    }
    return "";
}

}  // namespace ptx
