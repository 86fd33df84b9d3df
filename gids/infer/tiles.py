"""Tiles: consecutive destinations that one call of a layer computes.

Where a tile begins and ends depends on the graph and the layer's rows alone. A layer therefore sees the same numbers in
the same order whatever the memory budget is, and wherever a killed run goes on: results are equal to the bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from gids.dataset import Dataset
from gids.dataset.rows import as_tensor, read_rows
from gids.errors import ConfigError
from gids.partition.lists import node_ranges
from gids.sampling.disk import stream
from gids.sampling.sampler import Fanout
from gids.types import EdgeType

#: Bytes of source rows that an average tile needs at most, were no source shared.
TILE_BYTES = 64 << 20
LEAST_TILE, MOST_TILE = 64, 1 << 16
#: Edges that are in memory at a time.
PIECE_EDGES = 1 << 21


class Tile(NamedTuple):
    """Destinations ``begin..end`` of a node type."""

    ntype: str
    begin: int
    end: int


def choose_tile(num_nodes: int, num_edges: int, row_bytes: int) -> int:
    """Return the destinations of a tile: a power of two that depends on the graph and the rows' size only."""
    each = (1 + num_edges / max(1, num_nodes)) * row_bytes
    wanted = min(max(TILE_BYTES / max(each, 1), LEAST_TILE), MOST_TILE)
    return 1 << (int(wanted).bit_length() - 1)


def tile_bounds(num_nodes: int, tile: int) -> list[tuple[int, int]]:
    """Cut ``0..num_nodes`` into tiles; the last one takes what would make a tile of its own too small.

    Small matrix products add in another order than large ones: no tile is smaller than ``tile`` unless the graph is.
    """
    if not num_nodes:
        return []
    begins = list(range(0, max(num_nodes - tile, 0) + 1, tile))
    return list(zip(begins, [*begins[1:], num_nodes], strict=True))


def check_weights(dataset: Dataset, etypes: Sequence[EdgeType], fanouts: Sequence[Fanout]) -> None:
    """Refuse edge weights that are not stored, or whose edges cannot be found in a sample."""
    for etype in etypes:
        if dataset.edge_weight_table(etype) is None:
            raise ConfigError(f"edge_weights must be stored for every edge type (missing: {':'.join(etype)})")
        if dataset.edge_ids_table(etype) is not None and any(fanout != -1 for fanout in fanouts):
            raise ConfigError(
                "fanouts must be -1 with edge_weights where edge ids are stored "
                f"(got {list(fanouts)} for {':'.join(etype)})"
            )


def count_out_degrees(dataset: Dataset) -> dict[EdgeType, npt.NDArray[np.int32]]:
    """Count the out-edges of every node by edge type, in one pass over the neighbour lists."""
    counts = {}
    for etype in dataset.edge_types:
        found = np.zeros(dataset.num_nodes(etype[0]), np.int32)
        for _, sources in stream(dataset.indices_table(etype)):
            np.add.at(found, sources, 1)
        counts[etype] = found
    return counts


def count_in_degrees(dataset: Dataset) -> dict[EdgeType, npt.NDArray[np.int32]]:
    """Count the in-edges that every node has from others, by edge type between nodes of one type, in one pass."""
    counts = {}
    for etype in dataset.edge_types:
        if etype[0] != etype[2]:
            continue
        table, offsets = dataset.indices_table(etype), dataset.stored_offsets(etype)
        found = np.zeros(dataset.num_nodes(etype[2]), np.int32)
        for begin, end in node_ranges(dataset, etype[2], PIECE_EDGES):
            ends = offsets[begin : end + 1]
            sources = as_tensor(table, read_rows(table, int(ends[0]), int(ends[-1]))).numpy()
            own = np.repeat(np.arange(begin, end), np.diff(ends))
            found[begin:end] = np.diff(ends) - np.bincount(own[sources == own] - begin, minlength=end - begin)
        counts[etype] = found
    return counts


def far_uses(dataset: Dataset, distance: int) -> dict[str, npt.NDArray[np.uint32]]:
    """Count for every node the edges to destinations that are visited long before or after the node itself.

    Rows of other nodes are read once, for destinations that follow each other; of these, each edge may be another read.

    Parameters
    ----------
    dataset : Dataset
        The graph.
    distance : int
        Ids that count as near, between nodes of one type; nodes of two types are never near.
    """
    counts = {ntype: np.zeros(dataset.num_nodes(ntype), np.uint32) for ntype in dataset.node_types}
    for etype in dataset.edge_types:
        table, offsets = dataset.indices_table(etype), dataset.stored_offsets(etype)
        found = counts[etype[0]]
        for begin, end in node_ranges(dataset, etype[2], PIECE_EDGES):
            ends = offsets[begin : end + 1]
            sources = as_tensor(table, read_rows(table, int(ends[0]), int(ends[-1]))).numpy()
            if etype[0] == etype[2]:
                away = np.repeat(np.arange(begin, end), np.diff(ends))
                away -= sources
                sources = sources[np.abs(away, out=away) > distance]
            found += np.bincount(sources, minlength=len(found)).astype(np.uint32)
    return counts


def degrees_bytes(dataset: Dataset) -> int:
    """Return the memory of :func:`count_out_degrees`, which :func:`count_in_degrees` does not exceed."""
    return sum(4 * dataset.num_nodes(etype[0]) for etype in dataset.edge_types)
