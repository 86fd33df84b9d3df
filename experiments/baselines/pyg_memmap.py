"""PyG's loader over a memory-mapped feature tensor (what paper 001 calls PyG+)."""

from __future__ import annotations

import time
from collections.abc import Iterator

import torch

from experiments.baselines.contender import Contender
from experiments.baselines.job import Job, Prepared
from experiments.baselines.tables import map_rows
from gids.errors import ConfigError


class PygMemmap(Contender):
    """PyG's NodeLoader takes the rows of a batch out of ``data.x``, which is a map; it prepares data and trains nothing."""

    ABOUT = (
        "PyG's NodeLoader, data.x a mapped file with MADV_RANDOM; gids samples for it, as pyg-lib cannot be installed"
    )
    PAGE_CACHE = True

    def __init__(self, job: Job):
        super().__init__(job)
        from torch_geometric.data import Data

        from gids.pyg import NeighborSampler

        if job.fanouts is None:
            raise ConfigError("PyG samples neighbours only: a job for it needs fanouts (got LADIES)")
        features = map_rows(self.dataset.feature_table(), job.feature_path(self.dataset), random=True)
        # The graph is the sampler's; PyG only wants to see that there is an edge_index to fill.
        self._data = Data(x=features, edge_index=torch.empty(2, 0, dtype=torch.int64))
        self._sampler = NeighborSampler(self.dataset, job.fanouts[::-1], seed=job.seed)

    def batches(self, epoch: int, count: int, rows: int | None = None) -> Iterator[Prepared]:
        from torch_geometric.loader import NodeLoader

        order = self.job.order(self.dataset, epoch)
        seeds = torch.cat([order[index].seeds["_N"] for index in range(count)])
        loader = NodeLoader(
            self._data,
            self._sampler,
            input_nodes=seeds,
            batch_size=self.job.batch_size,
            shuffle=False,
            # Called between sampling and the gathering of rows: where one stage ends and the next begins.
            transform_sampler_output=self._sampled,
        )
        batches = iter(loader)
        for index in range(count):
            begin = time.perf_counter()
            self._between = begin
            batch = next(batches)
            self.stages["sampling"] += self._between - begin
            self.stages["features"] += time.perf_counter() - self._between
            yield Prepared(index, batch.n_id[:rows], batch.x[:rows])

    def _sampled(self, out: object) -> object:
        self._between = time.perf_counter()
        return out
