"""DGL over a memory-mapped feature file: the papers' baseline."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from experiments.baselines.dgl_sampling import DglSampled
from experiments.baselines.job import Job
from experiments.baselines.tables import map_rows
from gids.bench.epoch import readahead_kib


class DglMmapRandom(DglSampled):
    """The map is told that accesses are random, so that a fault reads one page: the headline."""

    ABOUT = "DGL's sampler; rows from a mapped file with MADV_RANDOM, gathered by torch on all cores"
    PAGE_CACHE = True
    RANDOM = True

    def __init__(self, job: Job):
        super().__init__(job)
        self._features = map_rows(self.dataset.feature_table(), job.feature_path(self.dataset), random=self.RANDOM)

    def rows(self, nodes: Tensor) -> Tensor:
        return self._features[nodes]


class DglMmapPlain(DglMmapRandom):
    """As ``numpy.memmap`` gives it: every fault reads ahead as much as the device is set to."""

    ABOUT = "as above without the advice: a fault reads the device's readahead, which is stated"
    RANDOM = False

    def facts(self) -> dict[str, Any]:
        return {"readahead_kib": readahead_kib(self.job.feature_path(self.dataset))}
