// One pass over edges each; nothing is hashed, as arrays of all nodes say what was seen.
#include "infer/keeping.hpp"

#include <algorithm>
#include <limits>
#include <string>

#include "errors.hpp"

namespace gids::infer {

namespace {

void check_source(int64_t source, size_t nodes) {
    if (source < 0 || source >= static_cast<int64_t>(nodes))
        throw DatasetError("in-edges must come from nodes in [0, " + std::to_string(nodes) + ") (got " +
                           std::to_string(source) + ")");
}

void check_range(const char* name, Range range, size_t nodes) {
    if (range.begin < 0 || range.end < range.begin || range.end > static_cast<int64_t>(nodes))
        throw ConfigError(std::string(name) + " must be in [0, " + std::to_string(nodes) + "] (got " +
                          std::to_string(range.begin) + " to " + std::to_string(range.end) + ")");
}

}  // namespace

template <class Id>
Needed note_uses(std::span<const Id> sources, Range destinations, Range own, int32_t group, int32_t tile,
                 const Uses& uses) {
    const size_t nodes = uses.seen.size();
    if (uses.first.size() != nodes || uses.last.size() != nodes || uses.count.size() != nodes)
        throw ConfigError("first, last, count and seen must be equally long");
    Needed found{0, 0};
    for (const Id source : sources) {
        check_source(source, nodes);
        if (uses.seen[source] == tile + 1) continue;
        uses.seen[source] = tile + 1;
        if (!destinations.holds(source)) ++found.sources;
        if (own.holds(source)) continue;
        ++found.outside;
        if (uses.last[source] == group) continue;
        if (uses.first[source] < 0) uses.first[source] = group;
        uses.last[source] = group;
        if (uses.count[source] < std::numeric_limits<uint16_t>::max()) ++uses.count[source];
    }
    return found;
}

template <class Id>
std::vector<int64_t> missing_rows(std::span<const Id> sources, Range own, std::span<int32_t> slot) {
    std::vector<int64_t> found;
    for (const Id source : sources) {
        check_source(source, slot.size());
        if (slot[source] != kNowhere || own.holds(source)) continue;
        slot[source] = kRead;
        found.push_back(source);
    }
    std::sort(found.begin(), found.end());
    for (size_t k = 0; k < found.size(); ++k) slot[found[k]] = kRead - static_cast<int32_t>(k);
    return found;
}

template <class Id>
TileBlock build_tile(std::span<const Id> sources, Range destinations, Range own, int64_t kept,
                     std::span<const int32_t> slot, std::span<int32_t> place) {
    if (place.size() != slot.size()) throw ConfigError("slot and place must be equally long");
    check_range("destinations", destinations, slot.size());
    check_range("own rows", own, slot.size());
    TileBlock found;
    const int64_t count = destinations.end - destinations.begin, read = kept + own.end - own.begin;
    found.source.resize(sources.size());
    found.nodes.reserve(2 * count);
    for (int64_t d = 0; d < count; ++d) found.nodes.push_back(destinations.begin + d);
    for (size_t e = 0; e < sources.size(); ++e) {
        const int64_t source = sources[e];
        if (destinations.holds(source)) {
            found.source[e] = source - destinations.begin;
            continue;
        }
        check_source(source, slot.size());
        if (place[source] < 0) {
            place[source] = static_cast<int32_t>(found.nodes.size());
            found.nodes.push_back(source);
        }
        found.source[e] = place[source];
    }
    for (size_t n = count; n < found.nodes.size(); ++n) place[found.nodes[n]] = -1;
    found.location.resize(found.nodes.size());
    for (size_t n = 0; n < found.nodes.size(); ++n) {
        const int64_t node = found.nodes[n];
        const int32_t at = slot[node];
        if (own.holds(node)) found.location[n] = kept + node - own.begin;
        else if (at != kNowhere) found.location[n] = at >= 0 ? at : read + (kRead - at);
        else throw ConfigError("row " + std::to_string(node) + " must be kept, read, or the group's own");
    }
    return found;
}

#define GIDS_KEEPING(Id)                                                                                    \
    template Needed note_uses<Id>(std::span<const Id>, Range, Range, int32_t, int32_t, const Uses&);        \
    template std::vector<int64_t> missing_rows<Id>(std::span<const Id>, Range, std::span<int32_t>);         \
    template TileBlock build_tile<Id>(std::span<const Id>, Range, Range, int64_t, std::span<const int32_t>, \
                                      std::span<int32_t>);
GIDS_KEEPING(int32_t)
GIDS_KEEPING(int64_t)
#undef GIDS_KEEPING

}  // namespace gids::infer
