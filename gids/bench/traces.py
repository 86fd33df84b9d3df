"""Sampled traces of a power-law graph: which rows consecutive batches of an epoch ask for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from gids._native import ThreadPool
from gids.dataset import Dataset
from gids.sampling import NeighborSampler, SampleKey, Topology


@dataclass(frozen=True)
class Trace:
    """Rows of consecutive batches, over as many epochs as it takes."""

    name: str
    num_rows: int
    batches: list[Tensor]

    @property
    def requests(self) -> int:
        """Rows asked for, over all batches."""
        return sum(map(len, self.batches))

    @property
    def rows_per_batch(self) -> float:
        """Mean share of the table that a batch asks for."""
        return self.requests / len(self.batches) / self.num_rows

    def window_share(self, window: int) -> float:
        """Share of the table that a batch and the ``window`` after it ask for together, in the middle of the trace."""
        middle = max(0, len(self.batches) // 2 - window)
        return len(np.unique(torch.cat(self.batches[middle : middle + window + 1]).numpy())) / self.num_rows


#: The power-law graphs that the package makes: R-MAT with Graph500's chances, and the one of ``gids bench epoch``, whose
#: degrees are those of the graph of ``gids bench sample`` (which gives the same hit ratios within 0.4 %).
GRAPHS = ("rmat", "communities")


def make_graph(path: Path, kind: str, num_nodes: int, seed: int) -> Dataset:
    """Write a graph of :data:`GRAPHS` with 15 in-edges a node; features of one value, they are not read."""
    from gids import generate

    if kind == "rmat":
        return generate.rmat(path, num_nodes=num_nodes, degree=15, dim=1, seed=seed)
    return generate.communities(path, num_nodes=num_nodes, degree=15, dim=1, seed=seed)


def sample_trace(
    name: str,
    dataset: Dataset,
    topology: Topology,
    batch_size: int,
    fanouts: list[int],
    count: int,
    least_requests: int,
    pool: ThreadPool,
) -> Trace:
    """Sample ``count`` batches of shuffled epochs of the training nodes, and on until they ask for ``least_requests``."""
    train = dataset.split("train")
    sampler = NeighborSampler(fanouts)
    batches: list[Tensor] = []
    requests = epoch = 0
    while True:
        order = train[torch.randperm(len(train), generator=torch.Generator().manual_seed(epoch))]
        for number, begin in enumerate(range(0, len(order), batch_size)):
            seeds = order[begin : begin + batch_size]
            sample = sampler.sample(topology, seeds, SampleKey(0, epoch, number), pool)
            batches.append(sample.input_nodes[dataset.node_types[0]])
            requests += len(batches[-1])
            if len(batches) >= count and requests >= least_requests:
                return Trace(name, dataset.num_nodes(), batches)
        epoch += 1
