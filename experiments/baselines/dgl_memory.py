"""DGL with all features in memory: what a loader from disk is measured against."""

from __future__ import annotations

from torch import Tensor

from experiments.baselines.dgl_sampling import DglSampled
from experiments.baselines.job import Job
from experiments.baselines.tables import load_rows


class DglMemory(DglSampled):
    """The upper bound: needs memory for the whole table, and so runs without a limit."""

    ABOUT = "DGL's sampler; all rows in memory, no memory limit: the upper bound"
    UNLIMITED = True

    def __init__(self, job: Job):
        super().__init__(job)
        self._features = load_rows(self.dataset.feature_table(), job.feature_path(self.dataset))

    def rows(self, nodes: Tensor) -> Tensor:
        return self._features[nodes]
