"""Memory of inference: what a layer needs for a tile, found by trying it, and how a budget is divided."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from gids.errors import ConfigError
from gids.infer.layers import LayerFunction, result_of, unwrap
from gids.infer.tiles import Tile
from gids.ledger import Ledger
from gids.units import format_bytes

#: Planning and sorting of a row that is read.
PLANNED_ROW_BYTES = 48
LEAST_STAGING_BYTES, MOST_STAGING_BYTES = 2 << 20, 16 << 20
#: Of the budget, what the graph may take where it is kept in memory, and what reading it from disk gets.
TOPOLOGY_SHARE, DISK_TOPOLOGY_SHARE = 1 / 3, 1 / 8


class _Outputs(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Adds up what operations allocate: no layer holds more at once than it makes in all."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.total_bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        given = {a.untyped_storage().data_ptr() for a in args if isinstance(a, Tensor)}
        for tensor in out if isinstance(out, tuple | list) else (out,):
            if isinstance(tensor, Tensor) and tensor.untyped_storage().data_ptr() not in given:
                self.total_bytes += tensor.untyped_storage().nbytes()
        return out


@dataclass(frozen=True)
class TileSize:
    """What a tile holds: sources over all types, destinations, edges over all types."""

    sources: int
    destinations: int
    edges: int

    @classmethod
    def of(cls, tile: Tile) -> TileSize:
        """Return the size of a tile."""
        block = tile.block
        return cls(sum(block.num_src.values()), tile.end - tile.begin, block.num_edges())


@dataclass(frozen=True)
class Trial:
    """What a small tile showed about a layer.

    Attributes
    ----------
    size : TileSize
        Of the tile.
    scratch_bytes : int
        What the layer allocated.
    dim : int
        Values in a row of the result.
    dtype : torch.dtype
        Of the result.
    """

    size: TileSize
    scratch_bytes: int
    dim: int
    dtype: torch.dtype

    def scratch(self, size: TileSize) -> int:
        """Return the most that the layer allocates for a tile: all it makes grows with sources, destinations or edges."""
        mine, its = self.size, size
        ratio = max(
            its.sources / max(1, mine.sources),
            its.destinations / max(1, mine.destinations),
            its.edges / max(1, mine.edges),
        )
        return int(self.scratch_bytes * ratio)


def try_layer(
    layer: LayerFunction, tile: Tile, rows: Mapping[str, Tensor], homogeneous: bool, number: int
) -> Trial | None:
    """Run a layer on a tile and see what it takes; None where it computes nothing for the tile's type."""
    with _Outputs() as made:
        out = layer(tile.block, unwrap(rows, homogeneous))
    found = result_of(out, tile.ntype, tile.block, number)
    return None if found is None else Trial(TileSize.of(tile), made.total_bytes, found.shape[1], found.dtype)


@dataclass(frozen=True)
class Need:
    """What the largest tile of a layer needs, in bytes: rows and lists, results, and what the layer allocates."""

    rows: int
    outputs: int
    scratch: int

    def most(self, other: Need) -> Need:
        """Return the larger of each part."""
        return Need(max(self.rows, other.rows), max(self.outputs, other.outputs), max(self.scratch, other.scratch))

    @property
    def total(self) -> int:
        """Bytes with one tile read ahead and one result being written."""
        return 2 * self.rows + 2 * self.outputs + self.scratch


@dataclass(frozen=True)
class LayerMemory:
    """Bytes of one block: rows that are read together, and their results."""

    rows: int
    outputs: int


def staging_bytes(budget: int) -> int:
    """Return the memory that a device writes to."""
    return min(max(budget // 32, LEAST_STAGING_BYTES), MOST_STAGING_BYTES)


def divide(ledger: Ledger, standing: int, need: Need, layer: int) -> LayerMemory:
    """Divide what is left of a budget between rows that are read and results that are written.

    Parameters
    ----------
    ledger : Ledger
        Whose accounts are allotted.
    standing : int
        Bytes that other parts take.
    need : Need
        Of the largest tile.
    layer : int
        For messages.
    """
    free = ledger.limit - standing - need.scratch
    if free < need.total - need.scratch:
        least = standing + need.total
        raise ConfigError(
            f"budget must be at least {format_bytes(least)} for layer {layer}: {format_bytes(standing)} for the graph "
            f"and for reading, {format_bytes(need.total)} for the largest tile (got {format_bytes(ledger.limit)})"
        )
    share = need.outputs / (need.rows + need.outputs)
    outputs = max(int(free * share), 2 * need.outputs)
    rows = max(free - outputs, 2 * need.rows)
    outputs = free - rows
    ledger.account("rows", rows)
    ledger.account("outputs", outputs)
    ledger.account("compute", need.scratch)
    return LayerMemory(rows // 2, outputs // 2)
