"""What every contender is asked to do: the same graph, the same seeds in the same order, the same batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

import gids
from gids.errors import ConfigError
from gids.sampling import Block, LadiesSampler, NeighborSampler, SeedOrder


@dataclass(frozen=True)
class Job:
    """A workload, ready to be sent to another process as JSON.

    Attributes
    ----------
    data : str
        The dataset.
    batch_size, batches, seed : int
        Batches of a round. Round ``n`` takes the ``n``-th part of the training split, as a long epoch would come to seeds
        that it has not seen; ``seed`` decides their order.
    fanouts : list of int, optional
        Neighbour sampling, outermost layer first.
    ladies : list of int, optional
        LADIES instead: nodes per layer.
    features : str, optional
        A copy of the feature file for contenders that read through the page cache, so that none warms another's.
    budget : int, optional
        Bytes that a gids.Loader may hold.
    options : dict
        More options of gids.Loader, by name, see :func:`gids.bench.options.loader_arguments`.
    hidden : int
        Width of the model, where a round trains.
    """

    data: str
    batch_size: int
    batches: int
    fanouts: list[int] | None = None
    ladies: list[int] | None = None
    seed: int = 0
    features: str | None = None
    budget: int | None = None
    options: dict[str, Any] = field(default_factory=dict)
    hidden: int = 128

    def seeds(self, dataset: gids.Dataset, number: int) -> Tensor:
        """The seeds of a round; after the last part of the split comes the first again."""
        split, size = dataset.split("train"), self.batch_size * self.batches
        if size > len(split):
            raise ConfigError(f"a round must have at most {len(split)} seeds (got {self.batches} x {self.batch_size})")
        begin = number % (len(split) // size) * size
        return split[begin : begin + size]

    def order(self, dataset: gids.Dataset, number: int) -> SeedOrder:
        return SeedOrder(self.seeds(dataset, number), batch_size=self.batch_size, seed=self.seed, epoch=number)

    def sampler(self) -> NeighborSampler | LadiesSampler:
        if self.ladies is not None:
            return LadiesSampler(self.ladies)
        assert self.fanouts is not None
        return NeighborSampler(self.fanouts)

    @property
    def layers(self) -> int:
        return len(self.ladies or self.fanouts or ())

    def feature_path(self, dataset: gids.Dataset) -> Path:
        """The file that holds the rows; the table must be in one piece."""
        (stripe,) = dataset.feature_table().stripes
        return Path(self.features) if self.features is not None else stripe.path


@dataclass(frozen=True)
class Prepared:
    """A batch as a training loop gets it: nodes, their rows, and for training the layers and labels."""

    index: int
    nodes: Tensor
    x: Tensor
    layers: Sequence[Block] | None = None
    y: Tensor | None = None
