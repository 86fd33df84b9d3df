"""The redundancy ratio: how many rows training asks for, for each node that it trains on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol


class Sampled(Protocol):
    """What is counted of a batch; samples and batches have it, with tensors or counts by node type."""

    @property
    def seeds(self) -> Any:
        """The seeds, as a tensor or by node type."""

    @property
    def input_nodes(self) -> Any:
        """The nodes whose rows the batch needs, as a tensor or by node type."""


@dataclass
class Redundancy:
    """Sums over batches; ``ratio`` is RR = Σ|input nodes| / Σ|seeds| (OUTRE, equation of section IV-A)."""

    input_nodes: int = field(default=0)
    seeds: int = field(default=0)

    def add(self, batch: Sampled) -> None:
        """Count one batch."""
        self.input_nodes += _count(batch.input_nodes)
        self.seeds += _count(batch.seeds)

    @property
    def ratio(self) -> float:
        """Rows that are asked for, per seed; 0 where nothing was counted."""
        return self.input_nodes / self.seeds if self.seeds else 0.0


def redundancy_ratio(batches: Iterable[Sampled]) -> float:
    """Return RR of some batches: rows that they ask for, over nodes that they train on."""
    total = Redundancy()
    for batch in batches:
        total.add(batch)
    return total.ratio


def _count(nodes: Any) -> int:
    return sum(len(ids) for ids in nodes.values()) if isinstance(nodes, Mapping) else len(nodes)
