"""The last verb, batch: what the framework trains on, and how it moves to a device."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor

from gids._native import piece_bytes
from gids.sampling import Block, EdgeType, Sample, SeedEdges

T = TypeVar("T")


@dataclass(frozen=True)
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
    features : dict of (node type, name) to Tensor
        Every feature table that was asked for; ``x`` is the first of each type.
    edge_features : list of dict of (edge type, name) to Tensor
        For each block, rows for its edges in the block's edge order.
    sample : Sample
        All that the sampler returned (pair graphs and negatives of link prediction, weights).
    epoch, index : int
        Which batch this is.
    padding : int
        Seeds, at the end, that another rank has too; see :class:`gids.loader.SeedOrder`.
    """

    blocks: list[Block]
    x: Any
    y: Any
    seeds: Any
    input_nodes: Any
    features: dict[tuple[str, str], Tensor] = field(default_factory=dict, repr=False)
    edge_features: list[dict[tuple[EdgeType, str], Tensor]] = field(default_factory=list, repr=False)
    sample: Sample | None = field(default=None, repr=False)
    epoch: int = 0
    index: int = 0
    padding: int = 0

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
        """Give the batch with every tensor on ``device``; tensors already there are shared, not copied."""
        return self._map(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> Batch:
        """Give the batch in page-locked memory, from which copies to a GPU can overlap with work."""
        return self._map(lambda tensor: tensor.pin_memory())

    def _map(self, change: Callable[[Tensor], Tensor]) -> Batch:
        done: dict[int, Tensor] = {}

        def once(tensor: Tensor) -> Tensor:  # x and features, seeds and sample.seeds are the same tensors
            if id(tensor) not in done:
                done[id(tensor)] = change(tensor)
            return done[id(tensor)]

        return map_tensors(self, once)


def map_tensors(value: T, change: Callable[[Tensor], Tensor]) -> T:
    """Apply ``change`` to every tensor inside dataclasses, mappings, lists and tuples."""
    mapped: Any = value
    if isinstance(value, Tensor):
        mapped = change(value)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = (f for f in dataclasses.fields(value) if f.init)
        mapped = dataclasses.replace(value, **{f.name: map_tensors(getattr(value, f.name), change) for f in fields})
    elif isinstance(value, Mapping):
        mapped = {key: map_tensors(item, change) for key, item in value.items()}
    elif isinstance(value, list | tuple) and not hasattr(value, "_fields"):
        mapped = type(value)(map_tensors(item, change) for item in value)
    return mapped  # type: ignore[no-any-return]


def tensor_bytes(value: object) -> int:
    """Bytes of all tensors inside ``value``, each counted once."""
    return sum(_tensor_sizes(value))


def sample_bytes(value: object) -> int:
    """Memory of a sample inside ``value``, as samplers deal it out."""
    return sum(piece_bytes(size) for size in _tensor_sizes(value))


def _tensor_sizes(value: object) -> list[int]:
    sizes: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        sizes[tensor.data_ptr()] = max(tensor.nbytes, sizes.get(tensor.data_ptr(), 0))
        return tensor

    map_tensors(value, note)
    return list(sizes.values())
