// Edges that a block must not show: a sorted list of (destination, source), searched once per sampled edge.
#pragma once

#include "exec.cuh"

namespace gids {

struct NodePair {
    int64_t dst, src;
};

GIDS_DEVICE bool operator<(const NodePair& a, const NodePair& b) {
    return a.dst < b.dst || (a.dst == b.dst && a.src < b.src);
}

// Whether a list that ascends has the pair.
GIDS_DEVICE bool contains_pair(const NodePair* pairs, int64_t count, NodePair wanted) {
    int64_t begin = 0;
    for (int64_t end = count; begin < end;) {
        const int64_t middle = begin + (end - begin) / 2;
        if (pairs[middle] < wanted) begin = middle + 1;
        else end = middle;
    }
    return begin < count && !(wanted < pairs[begin]);
}

}  // namespace gids
