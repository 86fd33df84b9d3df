"""Which rows every layer computes, how wide they are, and its tiles: known before anything is read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from gids.dataset import Dataset
from gids.errors import ConfigError
from gids.infer.layers import LayerBlock, LayerFunction
from gids.infer.tiles import Tile, choose_tile, tile_bounds
from gids.infer.trial import TileSize, Trial, try_layer
from gids.sampling import NeighborSampler, SampleKey, Topology
from gids.sampling.sampler import Fanout, expand_fanouts
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
    """One layer for one node type: its tiles, what it returns, and the tile with most edges."""

    tiles: list[Tile]
    trial: Trial
    tile: int
    largest: Tile
    most_edges: int

    def scratch_bytes(self, num_sources: int) -> int:
        """Return the most that the layer allocates for a tile, where there are so many nodes to be sources."""
        destinations = max(tile.end - tile.begin for tile in self.tiles)
        sources = min(destinations + self.most_edges, num_sources)
        return self.trial.scratch(TileSize(sources, destinations, self.most_edges))


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
    topology: Topology,
    layer: LayerFunction,
    number: int,
    fanout: Fanout,
    inputs: Mapping[str, RowKind],
    wanted: Sequence[str],
    *,
    edge_tables: Mapping[EdgeType, RowTable],
    weights: bool,
    tile: int | None,
    device: torch.device,
) -> LayerPlan:
    """Try a layer on a small tile of every type that it must compute.

    Parameters
    ----------
    dataset, topology, layer, number, fanout
        What is computed.
    inputs : mapping of str to RowKind
        Rows that the layer gets.
    wanted : sequence of str
        Types that it must compute.
    edge_tables, weights
        What it gets of edges.
    tile : int, optional
        Destinations of a tile, rather than by the graph.
    device : torch.device
        Where the layer is.
    """
    types = {}
    for ntype in wanted:
        count = dataset.num_nodes(ntype)
        trial = _try(dataset, topology, layer, number, fanout, inputs, ntype, edge_tables, weights, device)
        etypes = [etype for etype in dataset.edge_types if etype[2] == ntype]
        in_edges = sum(dataset.num_edges(etype) for etype in etypes)
        width = max(kind.row_bytes for kind in inputs.values())
        size = choose_tile(count, in_edges, width) if tile is None else tile
        bounds = tile_bounds(count, size)
        if not bounds:
            raise ConfigError(f"{ntype!r} must have nodes for layer {number} to compute (it has none)")
        edges = sum(
            (_edges_of_tiles(dataset, etype, bounds, _fanout_of(fanout, topology, etype)) for etype in etypes),
            np.zeros(len(bounds), np.int64),
        )
        place = int(edges.argmax())
        tiles = [Tile(ntype, begin, end) for begin, end in bounds]
        types[ntype] = TypePlan(tiles, trial, size, tiles[place], int(edges[place]))
    return LayerPlan(number, dict(inputs), types)


def _fanout_of(fanout: Fanout, topology: Topology, etype: EdgeType) -> int:
    return expand_fanouts([fanout], topology)[0][topology.edge_types.index(etype)]


def _edges_of_tiles(dataset: Dataset, etype: EdgeType, bounds: list[tuple[int, int]], fanout: int) -> np.ndarray:
    """Count the in-edges of every tile; at most the fan-out's of each destination."""
    offsets = dataset.stored_offsets(etype)
    found = np.diff([offsets[0], *(offsets[end] for _, end in bounds)])
    sizes = np.array([end - begin for begin, end in bounds])
    return found if fanout < 0 else np.minimum(found, sizes * fanout)


def _try(
    dataset: Dataset,
    topology: Topology,
    layer: LayerFunction,
    number: int,
    fanout: Fanout,
    inputs: Mapping[str, RowKind],
    ntype: str,
    edge_tables: Mapping[EdgeType, RowTable],
    weights: bool,
    device: torch.device,
) -> Trial:
    count = dataset.num_nodes(ntype)
    # Hubs are often the first nodes: those from the middle tell more about the others.
    begin = max(0, (count - TRIED_ROWS) // 2)
    sampler = NeighborSampler([fanout], edge_ids=bool(edge_tables))
    sample = sampler.sample(topology, {ntype: torch.arange(begin, min(count, begin + TRIED_ROWS))}, SampleKey())
    found = sample.blocks[0]
    degrees = {e: torch.ones(found.num_src[e[0]], dtype=torch.int64, device=device) for e in found.edge_types}
    block = LayerBlock(
        num_src=found.num_src,
        num_dst=found.num_dst,
        indptr={e: values.to(device) for e, values in found.indptr.items()},
        src={e: values.to(device) for e, values in found.src.items()},
        edge_ids=found.edge_ids,
        weights={e: torch.ones(len(src), device=device) for e, src in found.src.items()} if weights else None,
        nodes=sample.input_nodes,
        out_degrees=degrees if getattr(layer, "needs_out_degrees", False) else None,
        in_degrees=degrees if getattr(layer, "needs_in_degrees", False) else None,
        edge_features={
            e: torch.zeros(len(found.src[e]), table.dim, dtype=_widened(table.torch_dtype), device=device)
            for e, table in edge_tables.items()
        }
        or None,
    )
    rows = {
        name: torch.zeros(found.num_src[name], kind.dim, dtype=kind.dtype, device=device)
        for name, kind in inputs.items()
    }
    try:
        trial = try_layer(layer, ntype, block, rows, len(dataset.node_types) == 1, number)
    except (RuntimeError, KeyError, IndexError, ValueError, TypeError) as error:
        shapes = {name: list(values.shape) for name, values in rows.items()}
        raise ConfigError(
            f"layer {number} must take the rows it is given, {shapes} for {ntype!r} (got {type(error).__name__}: {error})"
        ) from error
    if trial is None:
        raise ConfigError(
            f"layer {number} must compute {ntype!r}, which is wanted of it or of the next layer (it returned none)"
        )
    return trial


def _widened(dtype: torch.dtype) -> torch.dtype:
    """Return float32 for half precision, and every other dtype as it is."""
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype


def kinds_of(tables: Mapping[str, RowTable]) -> dict[str, RowKind]:
    """Return the rows of feature tables as the first layer gets them: half precision is widened."""
    return {ntype: RowKind(table.dim, _widened(table.torch_dtype)) for ntype, table in tables.items()}
