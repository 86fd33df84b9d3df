"""The last verb, batch: what the framework trains on, and how it moves to a device."""

from __future__ import annotations

import dataclasses
import html
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, TypeVar

import torch
from torch import Tensor

from gids.sampling import Block, Sample, SeedEdges
from gids.types import TableKey

T = TypeVar("T")


@dataclass(frozen=True, repr=False)
class Batch:
    """One mini-batch.

    On a graph with a single node type ``x``, ``y``, ``seeds`` and ``input_nodes`` are tensors; on a heterograph they
    are dictionaries by node type.

    Attributes
    ----------
    blocks : list of Block
        One per layer, outermost first.
    x : Tensor [n, dim], or dict of str to Tensor
        Features of the input nodes.
    y : Tensor, dict of str to Tensor, or None
        Labels of the seeds; where seeds are edges, 1 for each edge and 0 for each negative pair.
    seeds : Tensor[int64], or dict of str to Tensor[int64]
        Seed nodes: the destinations of the last block.
    input_nodes : Tensor[int64], or dict of str to Tensor[int64]
        The sources of the first block, seeds first.
    features : dict of TableKey to Tensor
        Every feature table that was asked for, by ``(node type, name)``; ``x`` is the first of each type.
    edge_features : list of dict of TableKey to Tensor
        For each block, rows for its edges in the block's edge order.
    sample : Sample
        All that the sampler returned (pair graphs and negatives of link prediction, weights).
    epoch, index : int
        Which batch this is.
    padding : int
        Seeds, at the end, that another rank has too; see :class:`gids.sampling.SeedOrder`.
    """

    blocks: list[Block]
    x: Any
    y: Any
    seeds: Any
    input_nodes: Any
    features: dict[TableKey, Tensor] = field(default_factory=dict, repr=False)
    edge_features: list[dict[TableKey, Tensor]] = field(default_factory=list, repr=False)
    sample: Sample | None = field(default=None, repr=False)
    epoch: int = 0
    index: int = 0
    padding: int = 0

    def __repr__(self) -> str:
        parts = [
            f"epoch {self.epoch}",
            f"number {self.index}",
            f"{self.batch_size} seeds",
            f"{len(self.blocks)} blocks",
        ]
        parts += [f"{name}={text}" for name, value in (("x", self.x), ("y", self.y)) if (text := _shapes(value))]
        return f"Batch({', '.join(parts)})"

    def _repr_html_(self) -> str:
        rows = [("seeds", _shapes(self.seeds)), ("input nodes", _shapes(self.input_nodes))]
        rows += [(f"block {number}", repr(block)) for number, block in enumerate(self.blocks)]
        rows += [(str(key), _shapes(value)) for key, value in self.features.items()]
        rows += [
            (f"{key} of block {number}", _shapes(value))
            for number, by_key in enumerate(self.edge_features)
            for key, value in by_key.items()
        ]
        rows += [("labels", _shapes(self.y))]
        body = "".join(f"<tr><td>{html.escape(name)}</td><td>{html.escape(text)}</td></tr>" for name, text in rows)
        return f"<p>batch {self.index} of epoch {self.epoch}</p><table><tbody>{body}</tbody></table>"

    @property
    def pairs(self) -> SeedEdges | None:
        """Where seeds are edges: the rows among ``seeds`` that each positive and negative pair connects."""
        return None if self.sample is None else self.sample.edges

    @property
    def batch_size(self) -> int:
        """Number of seeds, over all node types; where seeds are edges, of those."""
        if self.pairs is not None:
            return int(self.pairs.labels.sum())
        return sum(len(ids) for ids in self.seeds.values()) if isinstance(self.seeds, dict) else len(self.seeds)

    def to(self, device: torch.device | str, non_blocking: bool = False) -> Batch:
        """Return the batch with every tensor on ``device``; tensors already there are shared, not copied.

        Parameters
        ----------
        device : torch.device or str
            Where to.
        non_blocking : bool
            Let copies from page-locked memory overlap with what follows.
        """
        return self._map(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> Batch:
        """Return the batch in page-locked memory, from which copies to a GPU can overlap with work."""
        return self._map(lambda tensor: tensor.pin_memory())

    def _map(self, change: Callable[[Tensor], Tensor]) -> Batch:
        done: dict[int, Tensor] = {}

        def once(tensor: Tensor) -> Tensor:  # x and features, seeds and sample.seeds are the same tensors
            if id(tensor) not in done:
                done[id(tensor)] = change(tensor)
            return done[id(tensor)]

        return map_tensors(self, once)


def _shapes(value: Any) -> str:
    """Describe a tensor, or tensors by type, by shape and dtype; nothing for None."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {_shapes(item)}" for key, item in value.items()) + "}"
    return "" if value is None else f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"


def map_tensors(value: T, change: Callable[[Tensor], Tensor]) -> T:
    """Apply ``change`` to every tensor inside dataclasses, mappings, lists and tuples."""
    mapped: Any = value
    if isinstance(value, Tensor):
        mapped = change(value)
    elif names := _fields(type(value)):  # type: ignore[arg-type]
        mapped = type(value)(**{name: map_tensors(getattr(value, name), change) for name in names})
    elif isinstance(value, dict | Mapping):  # dict first: the other takes ten times as long to say
        mapped = {key: map_tensors(item, change) for key, item in value.items()}
    elif isinstance(value, list | tuple) and not hasattr(value, "_fields"):
        mapped = type(value)(map_tensors(item, change) for item in value)
    return mapped  # type: ignore[no-any-return]


@cache
def _fields(kind: type) -> tuple[str, ...]:
    """Return what a dataclass is made of; nothing for other types."""
    return tuple(f.name for f in dataclasses.fields(kind) if f.init) if dataclasses.is_dataclass(kind) else ()


def tensor_bytes(value: object) -> int:
    """Bytes of all tensors inside ``value``, each counted once."""
    return sum(tensor_sizes(value))


def tensor_sizes(value: object) -> list[int]:
    """Return the sizes of all tensors inside ``value``, in bytes; those of one memory once."""
    sizes: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        sizes[tensor.data_ptr()] = max(tensor.nbytes, sizes.get(tensor.data_ptr(), 0))
        return tensor

    map_tensors(value, note)
    return list(sizes.values())
