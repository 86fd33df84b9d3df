"""Tiles: consecutive destinations that one call of a layer computes, with their in-edges and the rows they need.

Where a tile begins and ends depends on the graph and the layer's rows alone. A layer therefore sees the same numbers in
the same order whatever the memory budget is, and wherever a killed run goes on: results are equal to the bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gids import _native
from gids.dataset import Dataset
from gids.dataset.rows import as_tensor, read_rows
from gids.errors import ConfigError
from gids.infer.layers import LayerBlock
from gids.sampling import NeighborSampler, SampleKey, Topology
from gids.sampling.disk import stream
from gids.sampling.sampler import Fanout
from gids.table import RowTable
from gids.types import EdgeType

#: Bytes of source rows that an average tile needs at most, were no source shared.
TILE_BYTES = 128 << 20
LEAST_TILE, MOST_TILE = 64, 1 << 16


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


@dataclass(frozen=True)
class Tile:
    """One tile: its place, its edges, and how many edge rows come with it."""

    ntype: str
    begin: int
    end: int
    block: LayerBlock

    @property
    def edges_bytes(self) -> int:
        """Bytes of the lists that describe it."""
        block = self.block
        lists = [*block.indptr.values(), *block.src.values(), *block.nodes.values()]
        for more in (block.edge_ids, block.weights, block.out_degrees):
            lists += [] if more is None else list(more.values())
        return sum(values.nbytes for values in lists)


class TileMaker:
    """Makes the tiles of one layer.

    Parameters
    ----------
    dataset, topology : Dataset, Topology
        The graph.
    fanout : int or mapping
        −1 for every in-edge, or how many are drawn of each node.
    seed, hop : int
        Key of the draw, with the node: nothing else.
    edge_ids, weights : bool
        What layers want beside the edges.
    out_degrees : mapping of EdgeType to array, optional
        Of the whole graph.
    """

    def __init__(
        self,
        dataset: Dataset,
        topology: Topology,
        fanout: Fanout,
        seed: int,
        hop: int,
        *,
        edge_ids: bool,
        weights: bool,
        out_degrees: dict[EdgeType, npt.NDArray[np.int32]] | None,
        pool: _native.ThreadPool,
    ):
        self.dataset, self.topology, self._pool = dataset, topology, pool
        self._weights, self._degrees, self._key = weights, out_degrees, SampleKey(seed)
        self._edge_ids = edge_ids
        self._all = fanout == -1
        by_position = weights and not self._all
        self._sampler = NeighborSampler([fanout], edge_ids=edge_ids or by_position, first_hop=hop)

    def make(self, ntype: str, begin: int, end: int) -> Tile:
        """Return the tile of some destinations."""
        seeds = {ntype: torch.arange(begin, end)}
        sample = self._sampler.sample(self.topology, seeds, self._key, self._pool)
        found = sample.blocks[0]
        weights = self._weights_of(found.edge_ids, ntype, begin, end) if self._weights else None
        degrees = None
        if self._degrees is not None:
            degrees = {
                etype: torch.from_numpy(counts[sample.input_nodes[etype[0]].numpy()].astype(np.int64))
                for etype, counts in self._degrees.items()
            }
        block = LayerBlock(
            num_src=found.num_src,
            num_dst=found.num_dst,
            indptr=found.indptr,
            src=found.src,
            edge_ids=found.edge_ids if self._edge_ids else None,
            weights=weights,
            nodes=sample.input_nodes,
            out_degrees=degrees,
        )
        return Tile(ntype, begin, end, block)

    def _weights_of(
        self, ids: dict[EdgeType, Tensor] | None, ntype: str, begin: int, end: int
    ) -> dict[EdgeType, Tensor]:
        weights = {}
        for etype in self.topology.edge_types:
            table = self.dataset.edge_weight_table(etype)
            assert table is not None  # as checked before
            if etype[2] != ntype:
                weights[etype] = torch.empty(0)
            elif self._all:
                offsets = self.dataset.stored_offsets(etype)
                weights[etype] = _values(table, offsets[begin], offsets[end])
            else:
                assert ids is not None
                weights[etype] = _picked(table, ids[etype])
        return weights


def _values(table: RowTable, begin: int, end: int) -> Tensor:
    return as_tensor(table, read_rows(table, begin, end)).float()


def _picked(table: RowTable, positions: Tensor) -> Tensor:
    """Read values at some positions: one range, as they lie close together."""
    if not len(positions):
        return torch.empty(0)
    low = int(positions.min())
    return _values(table, low, int(positions.max()) + 1)[positions - low]


def check_weights(dataset: Dataset, etypes: Sequence[EdgeType], fanouts: Sequence[Fanout]) -> None:
    """Refuse edge weights that are not stored, or whose edges cannot be found in a sample."""
    for etype in etypes:
        if dataset.edge_weight_table(etype) is None:
            raise ConfigError(f"edge_weights must be stored for every edge type (missing: {':'.join(etype)})")
        if dataset.edge_ids_table(etype) is not None and any(fanout != -1 for fanout in fanouts):
            raise ConfigError(
                f"fanouts must be -1 with edge_weights where edge ids are stored (got {list(fanouts)} for {':'.join(etype)})"
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


def out_degrees_bytes(dataset: Dataset) -> int:
    """Return the memory of :func:`count_out_degrees`."""
    return sum(4 * dataset.num_nodes(etype[0]) for etype in dataset.edge_types)
