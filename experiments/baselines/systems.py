"""gids itself, and gids configured as each of the papers' systems.

What a policy was in a paper's code is a setting here, so that a comparison changes one thing at a time. The papers read
one row with one request: their configurations do not merge neighbouring rows (``merge_gap_bytes`` 0). Reads bypass the
page cache in all of them.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, ClassVar

import gids
from experiments.baselines.contender import Contender
from experiments.baselines.job import Job, Prepared
from gids.bench.options import loader_arguments
from gids.storage import StorageOptions

ROW_BY_ROW = {"merge_gap_bytes": 0}


class Gids(Contender):
    """gids.Loader with its defaults."""

    ABOUT = "gids.Loader as it comes: window policy, groups of batches, merged reads, host buffer by expected visits"
    OPTIONS: ClassVar[dict[str, Any]] = {}
    DIRECT = True

    def __init__(self, job: Job):
        super().__init__(job)
        options = self.OPTIONS | self.sized(job) | job.options
        if "storage" in options:
            options["storage"] = StorageOptions(**options["storage"])
        self.loader = gids.Loader(
            self.dataset,
            seeds=self.dataset.split("train"),
            sampler=job.sampler(),
            batch_size=job.batch_size,
            budget=job.budget,
            **loader_arguments(options | {"seed": job.seed}),
        ).prepare()

    @classmethod
    def sized(cls, job: Job) -> dict[str, Any]:
        """Options that depend on the job."""
        return {}

    def batches(self, epoch: int, count: int, rows: int | None = None) -> Iterator[Prepared]:
        # Each round is an epoch over its own part of the split, so that it ends, and leaves the cache, as epochs do.
        self.loader.seeds = {"_N": self.job.seeds(self.dataset, epoch)}
        self.loader.set_epoch(epoch)
        batches = iter(self.loader)
        for _ in range(count):
            begin = time.perf_counter()
            batch = next(batches)
            self.stages["waiting"] += time.perf_counter() - begin
            yield Prepared(batch.index, batch.input_nodes[:rows], batch.x[:rows], batch.blocks, batch.y)

    def reset(self) -> None:
        super().reset()
        self.loader.reset_stats()

    def facts(self) -> dict[str, Any]:
        (table,) = self.loader.stats().tables.values()
        return {
            "cache": table.cache / table.requests,
            "host": table.host / table.requests,
            "duplicates": table.duplicates / table.requests,
            "disk": table.disk / table.requests,
            "merge_factor": table.merge_factor,
            "bytes_per_read": table.bytes_read / max(1, table.reads),
            "budget_bytes": self.job.budget,
        }

    def close(self) -> None:
        self.loader.close()


class BamLike(Gids):
    """Paper 004's BaM loader: a cache with random eviction, every batch by itself."""

    ABOUT = "gids with random eviction, no window, no host buffer, no accumulator (one batch's accesses in flight), one request per row"
    OPTIONS: ClassVar[dict[str, Any]] = {
        "policy": "random",
        "window": 0,
        "sweep_batches": 1,
        "groups_in_flight": 1,
        "host_buffer": 0,
        "storage": ROW_BY_ROW,
    }


class GidsPaper(Gids):
    """Paper 004's GIDS: window buffering of 8, constant host buffer, accumulator.

    Its accumulator lets the next iterations' accesses begin before those of this one have ended; each iteration still
    reads its own rows, and what they share is the cache's business. So batches are planned one by one (``sweep_batches`` 1)
    and several are in flight. Batches that share each read are this project's own and are measured as ``gids``.
    """

    ABOUT = (
        "gids with the paper's pinning policy, window 8, cache in the paper's proportion, host buffer by reverse PageRank, accumulator "
        "(accesses of 2 batches in flight unless said otherwise), one request per row"
    )
    OPTIONS: ClassVar[dict[str, Any]] = {
        "policy": "gids",
        "window": 8,
        "host_rank": "pagerank",
        "sweep_batches": 1,
        "groups_in_flight": 2,
        "storage": ROW_BY_ROW,
    }
    #: The paper gives 8 GB of the GPU to the cache and up to 20 % of IGB-Full's 1,100 GB to the host buffer.
    CACHE_SHARE = 8 / 228

    @classmethod
    def sized(cls, job: Job) -> dict[str, Any]:
        """Let the cache have its share of the budget; the host buffer gets what the loader finds it worth."""
        return {"cache": int((job.budget or 0) * cls.CACHE_SHARE)}


class Ginex(Gids):
    """Ginex: the batches of a superbatch are known, and Belady's policy is exact over them."""

    ABOUT = (
        "gids with Belady's policy over a superbatch as long as a quarter of the budget and half of the free disk space "
        "hold (sampled batches wait on disk), no host buffer, one request per row"
    )
    OPTIONS: ClassVar[dict[str, Any]] = {
        "policy": "belady",
        "spill_samples": True,
        "sweep_batches": 1,
        "host_buffer": 0,
        "storage": ROW_BY_ROW,
    }


class GnnDrive(Gids):
    """Paper 001's GNNDrive: a standby list in LRU order, several samplers, batches in the order they are ready."""

    ABOUT = "gids with LRU, no window, no host buffer, two samplers, batches out of order, one request per row"
    OPTIONS: ClassVar[dict[str, Any]] = {
        "policy": "lru",
        "window": 0,
        "sweep_batches": 1,
        "host_buffer": 0,
        "in_order": False,
        "sample_workers": 2,
        "storage": ROW_BY_ROW,
    }
