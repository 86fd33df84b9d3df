"""Which rows every layer computes, how wide they are, and what the largest tile needs: known before anything is read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from gids.dataset import Dataset
from gids.errors import ConfigError
from gids.infer.layers import LayerFunction
from gids.infer.memory import PLANNED_ROW_BYTES, Need, TileSize, Trial, try_layer
from gids.infer.tiles import TileMaker, choose_tile, tile_bounds
from gids.table import RowTable
from gids.types import EdgeType

#: Destinations of the tile that a layer is tried on.
TRIED_ROWS = 256


@dataclass(frozen=True)
class RowKind:
    """Rows of a node type as a layer gets them."""

    dim: int
    dtype: torch.dtype

    @property
    def row_bytes(self) -> int:
        """Bytes of a row."""
        return self.dim * self.dtype.itemsize


@dataclass(frozen=True)
class TypePlan:
    """One layer for one node type: its tiles, what it returns, and what its largest tile needs."""

    ntype: str
    bounds: list[tuple[int, int]]
    trial: Trial
    tile: int


@dataclass(frozen=True)
class LayerPlan:
    """One layer: the rows it takes, and the types it computes."""

    number: int
    inputs: dict[str, RowKind]
    types: dict[str, TypePlan]


def needed_types(dataset: Dataset, outputs: Sequence[str], layers: int) -> list[list[str]]:
    """Return the node types that each layer must compute, and first those whose features are read."""
    needed = [list(outputs)]
    for _ in range(layers):
        wanted = set(needed[0]) | {etype[0] for etype in dataset.edge_types if etype[2] in needed[0]}
        needed.insert(0, [ntype for ntype in dataset.node_types if ntype in wanted])
    return needed


def plan_layer(
    dataset: Dataset,
    layer: LayerFunction,
    number: int,
    maker: TileMaker,
    inputs: Mapping[str, RowKind],
    wanted: Sequence[str],
    edges: Mapping[EdgeType, RowTable],
    tile: int | None,
) -> LayerPlan:
    """Try a layer on a small tile of every type that it must compute.

    Parameters
    ----------
    dataset, layer, number, maker
        What is computed.
    inputs : mapping of str to RowKind
        Rows that the layer gets.
    wanted : sequence of str
        Types that it must compute.
    edges : mapping of EdgeType to RowTable
        Edge features that it gets.
    tile : int, optional
        Destinations of a tile, rather than by the graph.
    """
    types = {}
    homogeneous = len(dataset.node_types) == 1
    for ntype in wanted:
        count = dataset.num_nodes(ntype)
        # A hub would make the trial as large as a tile; nodes from the middle do as well as the first.
        begin = max(0, (count - TRIED_ROWS) // 2)
        tried = maker.make(ntype, begin, min(count, begin + TRIED_ROWS))
        rows = {
            name: torch.zeros(tried.block.num_src[name], kind.dim, dtype=kind.dtype) for name, kind in inputs.items()
        }
        if edges:
            of_edges = {e: torch.zeros(len(tried.block.src[e]), table.dim) for e, table in edges.items()}
            tried = replace(tried, block=replace(tried.block, edge_features=of_edges))
        try:
            trial = try_layer(layer, tried, rows, homogeneous, number)
        except (RuntimeError, KeyError, IndexError, ValueError, TypeError) as error:
            shapes = {name: list(values.shape) for name, values in rows.items()}
            raise ConfigError(
                f"layer {number} must take the rows it is given, {shapes} for {ntype!r} (got {type(error).__name__}: {error})"
            ) from error
        if trial is None:
            raise ConfigError(
                f"layer {number} must compute {ntype!r}, which is wanted of it or of the next layer (it returned none)"
            )
        in_edges = sum(dataset.num_edges(etype) for etype in dataset.edge_types if etype[2] == ntype)
        width = max(kind.row_bytes for kind in inputs.values())
        rows_in_tile = choose_tile(count, in_edges, width) if tile is None else tile
        types[ntype] = TypePlan(ntype, tile_bounds(count, rows_in_tile), trial, rows_in_tile)
    return LayerPlan(number, dict(inputs), types)


def largest_need(
    dataset: Dataset, plan: LayerPlan, maker: TileMaker, edges: Mapping[EdgeType, RowTable], out_bytes: int, room: int
) -> Need:
    """Return what the largest tile of a layer needs; from offsets alone where these show that it fits.

    Parameters
    ----------
    dataset, plan, maker, edges
        The layer.
    out_bytes : int
        Written for a row, beside what the layer returns.
    room : int
        Bytes that a tile may take: those that might take more are sampled, and counted exactly.
    """
    most = Need(1, 1, 1)
    kinds = plan.inputs
    for ntype, of_type in plan.types.items():
        etypes = [etype for etype in dataset.edge_types if etype[2] == ntype]
        starts = {etype: _at_bounds(dataset, etype, of_type.bounds) for etype in etypes}
        for place, (begin, end) in enumerate(of_type.bounds):
            edge_counts = {etype: int(found[place + 1] - found[place]) for etype, found in starts.items()}
            sources = {name: end - begin if name == ntype else 0 for name in kinds}
            for etype, count in edge_counts.items():
                sources[etype[0]] = min(sources[etype[0]] + count, dataset.num_nodes(etype[0]))
            need = _need(of_type.trial, end - begin, sources, edge_counts, kinds, edges, out_bytes)
            if need.total > room:
                block = maker.make(ntype, begin, end).block
                exact = {name: block.num_src[name] for name in kinds}
                need = _need(
                    of_type.trial, end - begin, exact, {e: len(block.src[e]) for e in etypes}, kinds, edges, out_bytes
                )
            most = most.most(need)
            if need.total > room:
                return most  # one that does not fit is enough to know
    return most


def _at_bounds(dataset: Dataset, etype: EdgeType, bounds: list[tuple[int, int]]) -> np.ndarray:
    offsets = dataset.stored_offsets(etype)
    return np.array([offsets[0], *(offsets[end] for _, end in bounds)], np.int64)


def _need(
    trial: Trial,
    destinations: int,
    sources: Mapping[str, int],
    edge_counts: Mapping[EdgeType, int],
    kinds: Mapping[str, RowKind],
    edges: Mapping[EdgeType, RowTable],
    out_bytes: int,
) -> Need:
    size = TileSize(sum(sources.values()), destinations, sum(edge_counts.values()))
    # Offsets, ids and degrees of sources; places, ids, weights of edges.
    rows = 8 * (destinations + 1) * max(1, len(edge_counts)) + 28 * size.edges
    rows += sum(count * (kinds[name].row_bytes + PLANNED_ROW_BYTES + 24) for name, count in sources.items())
    for etype, count in edge_counts.items():
        if etype in edges:
            rows += count * (edges[etype].dim * 4 + PLANNED_ROW_BYTES)
    outputs = destinations * (out_bytes + trial.dim * trial.dtype.itemsize)
    return Need(rows, outputs, trial.scratch(size))
