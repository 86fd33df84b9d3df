"""One thread that reads row after row: the simplest loader that does not map the file."""

from __future__ import annotations

import os

import torch
from torch import Tensor

from experiments.baselines.dgl_sampling import DglSampled
from experiments.baselines.job import Job


class Pread(DglSampled):
    """Buffered reads into the batch, without readahead; the page cache is its cache."""

    ABOUT = "DGL's sampler; one pread per row on one thread, POSIX_FADV_RANDOM, page cache on"
    PAGE_CACHE = True

    def __init__(self, job: Job):
        super().__init__(job)
        self._table = self.dataset.feature_table()
        self._file = os.open(job.feature_path(self.dataset), os.O_RDONLY)
        os.posix_fadvise(self._file, 0, 0, os.POSIX_FADV_RANDOM)

    def rows(self, nodes: Tensor) -> Tensor:
        table = self._table
        x = torch.empty(len(nodes), table.dim, dtype=table.torch_dtype)
        target = memoryview(x.numpy()).cast("B")
        size, stride, start = table.row_bytes, table.row_stride, table.stripes[0].data_offset
        for place, node in enumerate(nodes.tolist()):
            part = target[place * size : (place + 1) * size]
            if os.preadv(self._file, [part], start + node * stride) != size:
                raise OSError(f"row {node} of {table.name} is not complete in {self.job.data}")
        return x

    def close(self) -> None:
        os.close(self._file)
