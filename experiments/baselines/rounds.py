"""One round of one contender: its batches against the clock, verified, with or without a training step."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import torch
from torch import nn

from experiments.baselines import page_cache
from experiments.baselines.checksum import hashes_path
from experiments.baselines.contender import Contender
from experiments.baselines.hashing import batch_hash, combine
from experiments.baselines.job import Prepared
from gids.errors import GidsError
from gids.models import GraphSAGE


class Trainer:
    """The same small GraphSAGE for every contender."""

    def __init__(self, contender: Contender):
        dataset, job = contender.dataset, contender.job
        torch.manual_seed(job.seed)
        self.model = GraphSAGE(dataset.feature_table().dim, job.hidden, dataset.num_classes or 2, job.layers)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)

    def step(self, batch: Prepared) -> None:
        if batch.layers is None or batch.y is None:
            raise GidsError("this contender prepares data only: its rounds cannot train")
        loss = nn.functional.cross_entropy(self.model(batch.layers, batch.x), batch.y)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()


class Rounds:
    """Runs rounds and checks what was delivered.

    A warm-up round verifies every batch and gives a digest of all; a timed one verifies its last batch, after the clock
    has stopped.
    """

    def __init__(self, contender: Contender):
        self.contender = contender
        self._hashes = np.load(hashes_path(contender.dataset), mmap_mode="r")
        self._trainer: Trainer | None = None

    def warm_up(self, epoch: int, batches: int, rows: int | None) -> dict[str, Any]:
        if self.contender.PAGE_CACHE:
            page_cache.fill(self.contender.job.feature_path(self.contender.dataset))
        digests = {b.index: self._verify(b) for b in self.contender.batches(epoch, batches, rows)}
        self.contender.reset()
        return {"digest": f"{combine(np.array([digests[i] for i in sorted(digests)], np.uint64)):016x}"}

    def timed(self, epoch: int, batches: int, rows: int | None, train: bool) -> dict[str, Any]:
        if train and self._trainer is None:
            self._trainer = Trainer(self.contender)
        before = dict(self.contender.stages)
        done, last = 0, None
        begin = time.perf_counter()
        for batch in self.contender.batches(epoch, batches, rows):
            done += len(batch.x)
            last = batch
            if train:
                assert self._trainer is not None
                with self.contender.stage("training"):
                    self._trainer.step(batch)
        seconds = time.perf_counter() - begin
        assert last is not None
        self._verify(last)
        stages = {name: value - before.get(name, 0.0) for name, value in self.contender.stages.items()}
        return {"rows": done, "batches": batches, "seconds": seconds, "stages": stages}

    def _verify(self, batch: Prepared) -> int:
        digest = batch_hash(batch.x.numpy())
        if len(batch.x) != len(batch.nodes) or digest != combine(self._hashes[batch.nodes.numpy()]):
            name = type(self.contender).__name__
            raise GidsError(f"batch {batch.index} of {name} has other bytes than {self.contender.job.data} holds")
        return digest
