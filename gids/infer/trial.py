"""What a layer needs, found by trying it on a small tile."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from gids.infer.layers import LayerBlock, LayerFunction, result_of, unwrap


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
    def of(cls, block: LayerBlock, ntype: str) -> TileSize:
        """Return the size of the tile of a block."""
        return cls(sum(block.num_src.values()), block.num_dst[ntype], block.num_edges())


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
    layer: LayerFunction, ntype: str, block: LayerBlock, rows: Mapping[str, Tensor], homogeneous: bool, number: int
) -> Trial | None:
    """Run a layer on a tile and see what it takes; None where it computes nothing for the tile's type."""
    with _Outputs() as made:
        out = layer(block, unwrap(rows, homogeneous))
    found = result_of(out, ntype, block, number)
    return None if found is None else Trial(TileSize.of(block, ntype), made.total_bytes, found.shape[1], found.dtype)
