// The one table of instantiations: entry points that come in several shapes, and the shapes. MAKE defines one of them.
#pragma once

// choose_edges_N has N lanes for a node: 1 for fanouts of a few edges, 8 for the usual, 32 for whole neighbourhoods.
#define GIDS_LANES_PER_NODE(MAKE) MAKE(1) MAKE(8) MAKE(32)

// gather_rows_N and admit_rows_N have N lanes for a row: 8 for rows of a few words, 32 for the usual.
#define GIDS_LANES_PER_ROW(MAKE) MAKE(8) MAKE(32)

// gather_neighbors_B and push_ranks_B read node ids of B bits, as the graph stores them.
#define GIDS_INDEX_TYPES(MAKE) MAKE(32, gids::int32_t) MAKE(64, gids::int64_t)
