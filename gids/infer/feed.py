"""The feed of inference: tiles of destinations in order, each with its in-edges and the rows of their sources."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gids._native import ThreadPool
from gids.dataset import Dataset
from gids.infer.layers import LayerBlock
from gids.infer.tiles import Tile
from gids.loader.feed import measured_sample
from gids.runtime.backend import Backend, SampledRows, sample_on_host
from gids.runtime.work import Fetched, Work
from gids.sampling import NeighborSampler, SampleKey, Topology
from gids.sampling.sampler import Fanout
from gids.table import RowTable
from gids.tiers import HotRows, RowScores
from gids.types import EdgeType, TableKey

#: Name of the table of edge weights, beside the names of a user's tables.
WEIGHTS = "weights of edges"


class TileRows(NamedTuple):
    """A tile with its edges, and the rows of its sources by node type."""

    tile: Tile
    block: LayerBlock
    rows: dict[str, Tensor]


@dataclass(frozen=True)
class Graph:
    """What a layer is computed on.

    Attributes
    ----------
    dataset, topology : Dataset, Topology
        The edges.
    fanout : int or mapping
        −1 for every in-edge, or how many are drawn of each node.
    seed, hop : int
        Key of the draw, with the node: nothing else.
    out_degrees : mapping of EdgeType to array, optional
        Of the whole graph, where the layer asks for them.
    popular : callable
        Returns scores of the nodes by type: the higher, the more often a row is asked for far from its own tile.
    in_degrees : mapping of EdgeType to array, optional
        As ``out_degrees``.
    """

    dataset: Dataset
    topology: Topology
    fanout: Fanout
    seed: int
    hop: int
    out_degrees: Mapping[EdgeType, npt.NDArray[np.int32]] | None
    popular: Callable[[], Mapping[str, npt.NDArray[np.uint32]]]
    in_degrees: Mapping[EdgeType, npt.NDArray[np.int32]] | None = None

    @property
    def degrees_bytes(self) -> int:
        """Memory of all degrees."""
        both = (self.out_degrees or {}, self.in_degrees or {})
        return sum(counts.nbytes for degrees in both for counts in degrees.values())

    def nodes(self, tile: Tile) -> Tensor:
        """Return the destinations of a tile."""
        return torch.arange(tile.begin, tile.end)


@dataclass(frozen=True)
class _Sampled:
    tile: Tile
    rows: SampledRows
    out_degrees: dict[EdgeType, Tensor] | None
    in_degrees: dict[EdgeType, Tensor] | None


def degrees_at(
    degrees: Mapping[EdgeType, npt.NDArray[np.int32]] | None, nodes: Mapping[str, npt.NDArray[np.int64]]
) -> dict[EdgeType, Tensor] | None:
    """Return the degrees of some nodes, given by type."""
    if degrees is None:
        return None
    return {e: torch.from_numpy(counts[nodes[e[0]]].astype(np.int64)) for e, counts in degrees.items()}


class SweepFeed:
    """Samples the tiles of one layer and node type; see :class:`gids.runtime.feed.Feed`.

    Parameters
    ----------
    graph : Graph
        The edges.
    tables : mapping of str to RowTable
        Rows of the sources, by node type; those that no edge leads from stay closed.
    edge_tables, weights : mapping of EdgeType to RowTable
        Rows of edges by edge id, and weights of edges by position; empty where the layer gets none.
    tiles : sequence of Tile
        What will be asked for.
    largest : Tile
        The one with most edges: the budget must hold it.
    backend, pool : Backend, ThreadPool
        Where samples are made.
    """

    samples_on_consumer = False
    replays = True
    identity = None

    def __init__(
        self,
        graph: Graph,
        tables: Mapping[str, RowTable],
        edge_tables: Mapping[EdgeType, RowTable],
        weights: Mapping[EdgeType, RowTable],
        tiles: Sequence[Tile],
        largest: Tile,
        backend: Backend,
        pool: ThreadPool,
    ):
        self.graph, self._tiles, self._largest = graph, tiles, largest
        self._backend, self._pool = backend, pool
        into = [etype for etype in graph.dataset.edge_types if etype[2] == largest.ntype]
        wanted = {largest.ntype, *(etype[0] for etype in into)}
        self._nodes = {TableKey(t, table.name.rpartition("/")[2]): t for t, table in tables.items() if t in wanted}
        self._edges = {TableKey(e, edge_tables[e].name.rpartition("/")[2]): e for e in into if e in edge_tables}
        self._weights = {TableKey(e, WEIGHTS): e for e in into if e in weights}
        self._empty_rows = {t: _no_rows(table) for t, table in tables.items() if t not in wanted}
        self._empty_edges = {e: _no_rows(table) for e, table in edge_tables.items() if e not in into}
        self._empty_weights = {e: torch.empty(0) for e in weights if e not in into}
        self.tables: dict[TableKey, RowTable] = {key: tables[ntype] for key, ntype in self._nodes.items()}
        self.tables |= {key: edge_tables[etype] for key, etype in self._edges.items()}
        self.tables |= {key: weights[etype] for key, etype in self._weights.items()}
        # Weights are stored by position. Where edge ids are stored too, positions follow from the offsets of whole lists.
        self._by_offsets = any(graph.dataset.edge_ids_table(etype) is not None for etype in weights)
        by_id = [*self._edges.values(), *(() if self._by_offsets else self._weights.values())]
        self._edge_types = list(dict.fromkeys(by_id))
        self._sampler = NeighborSampler([graph.fanout], edge_ids=bool(self._edge_types), first_hop=graph.hop)

    @property
    def standing_bytes(self) -> tuple[int, int]:
        """Memory of the graph, and of what is known of every node: its degrees."""
        return self.graph.topology.resident_bytes(), self.graph.degrees_bytes

    @property
    def num_batches(self) -> int:
        """Tiles of the layer."""
        return len(self._tiles)

    def first(self) -> tuple[Work, int] | None:
        """Sample the tile with most edges, in host memory."""
        return measured_sample(self.graph.topology, lambda: self.on_host(self._largest, None))

    def profile(self) -> Iterator[Work]:
        """Yield the first tiles that will be asked for."""
        for tile in self._tiles:
            yield self.on_host(tile, self._pool)

    def on_host(self, tile: Tile, pool: ThreadPool | None = None) -> Work:
        """Sample one tile in host memory, for who wants to know what it takes."""
        seeds = {tile.ntype: self.graph.nodes(tile)}
        key = SampleKey(self.graph.seed)
        found = sample_on_host(self.graph.topology, self._sampler, seeds, key, self._edge_types, pool)
        return self._work(tile, found, lambda ids: ids)

    def sample(self, piece: Tile) -> Work:
        """Sample one tile and say which rows it needs."""
        seeds = {piece.ntype: self.graph.nodes(piece)}
        key = SampleKey(self.graph.seed)
        found = self._backend.sample(self.graph.topology, self._sampler, seeds, key, self._edge_types)
        return self._work(piece, found, self._backend.row_ids, placed=True)

    def _work(self, tile: Tile, found: SampledRows, on_host: Any, placed: bool = False) -> Work:
        place = self._backend.place if placed else (lambda ids: ids)
        rows: dict[TableKey, Any] = {}
        for key, ntype in self._nodes.items():
            rows[key] = found.input_nodes[ntype]
        rows |= {key: found.edge_rows[etype] for key, etype in self._edges.items()}
        for key, etype in self._weights.items():
            rows[key] = place(self._positions(tile, etype)) if self._by_offsets else found.edge_rows[etype]
        asked = self.graph.out_degrees, self.graph.in_degrees
        nodes = {}
        if any(degrees is not None for degrees in asked):
            nodes = {ntype: on_host(ids).numpy() for ntype, ids in found.input_nodes.items()}
        out_degrees, in_degrees = (degrees_at(degrees, nodes) for degrees in asked)
        more = sum(counts.nbytes for degrees in (out_degrees, in_degrees) for counts in (degrees or {}).values())
        inputs = sum(map(len, found.input_nodes.values()))
        return Work(
            _Sampled(tile, found, out_degrees, in_degrees), rows, found.size_bytes + more, tile.end - tile.begin, inputs
        )

    def _positions(self, tile: Tile, etype: EdgeType) -> Tensor:
        """Return where the in-edges of a tile's destinations are stored, in the order of its block."""
        if etype[2] != tile.ntype:
            return torch.empty(0, dtype=torch.int64)
        offsets = self.graph.dataset.stored_offsets(etype)
        return torch.arange(offsets[tile.begin], offsets[tile.end])

    def finish(self, fetched: Fetched) -> TileRows:
        """Put the block and the rows together."""
        return self.built(fetched.work, fetched.rows)

    def built(self, work: Work, fetched: Mapping[TableKey, Any]) -> TileRows:
        """Put the block of a tile and rows for its tables together."""
        sampled: _Sampled = work.payload
        sample, places = self._backend.deliver_sample(sampled.rows)
        found = sample.blocks[0]
        edge_features = {etype: fetched[key][places[etype][0]] for key, etype in self._edges.items()}
        weights = {
            etype: _values(fetched[key], None if self._by_offsets else places[etype][0])
            for key, etype in self._weights.items()
        }
        weights |= self._backend.deliver_tensors(self._empty_weights)
        edge_features |= self._backend.deliver_tensors(self._empty_edges)
        rows = {ntype: fetched[key] for key, ntype in self._nodes.items()}
        rows |= self._backend.deliver_tensors(self._empty_rows)
        block = LayerBlock(
            num_src=found.num_src,
            num_dst=found.num_dst,
            indptr=found.indptr,
            src=found.src,
            edge_ids=found.edge_ids if self._edges else None,
            weights=weights or None,
            nodes=sample.input_nodes,
            out_degrees=self._backend.deliver_tensors(sampled.out_degrees),
            edge_features=edge_features or None,
            in_degrees=self._backend.deliver_tensors(sampled.in_degrees),
        )
        return TileRows(sampled.tile, block, rows)

    def is_ranked(self, key: TableKey) -> bool:
        """Whether the rows of a table are ranked: those of nodes."""
        return isinstance(key.type, str)

    def rankings(self) -> Mapping[TableKey, HotRows]:
        """Rank the rows of nodes by how often they are asked for far from their own tile."""
        scores = self.graph.popular()
        return {key: RowScores(scores[ntype]) for key, ntype in self._nodes.items() if self.is_ranked(key)}

    @property
    def scratch_dir(self) -> Path | None:
        """Nothing is kept: a layer is computed once."""
        return None

    def close(self) -> None:
        """Leave the graph open for the next layer."""


def _no_rows(table: RowTable) -> Tensor:
    dtype = table.torch_dtype
    return torch.empty(0, table.dim, dtype=torch.float32 if dtype.itemsize == 2 else dtype)


def _values(rows: Tensor, places: Tensor | None) -> Tensor:
    values = rows.reshape(-1).float()
    return values if places is None else values[places]
