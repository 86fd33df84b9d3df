"""Tries tier sizes on a recorded run: the real planner on a sample of the rows, so that a trial takes milliseconds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gids._native import ThreadPool
from gids.tiers.host_buffer import HostRows
from gids.tiers.plan import Planner
from gids.tiers.rank import count_accesses, top_rows

#: Rows of a batch that a trial plans, about; larger batches are sampled by row, as in SHARDS (FAST 2015).
SAMPLED_ROWS = 4096


@dataclass(frozen=True)
class Trial:
    """Sizes to try: cache and host buffer in rows, window and group in batches."""

    cache_rows: int
    host_rows: int
    window: int
    group: int


class Profile:
    """What consecutive batches asked of one table.

    Parameters
    ----------
    num_rows : int
        Rows of the table.
    batches : sequence of Tensor
        int64 rows of each batch.
    scores : array, optional
        Ranking for the host buffer; by default accesses counted in the first half, because trials are judged on the
        second.
    """

    def __init__(self, num_rows: int, batches: Sequence[Tensor], scores: NDArray[Any] | None = None):
        self.count = len(batches)
        self.largest = max(len(batch) for batch in batches)
        self.half = self.count // 2
        self.scale = max(1, self.largest // SAMPLED_ROWS)
        # A row is in the sample or not by its hash: it then is so in every batch, and reuse is seen as it is.
        seen = np.unique(np.concatenate([_sampled(batch.numpy(), self.scale) for batch in batches]))
        self._batches = [
            torch.from_numpy(np.searchsorted(seen, _sampled(batch.numpy(), self.scale)).astype(np.int64))
            for batch in batches
        ]
        self._num_rows = max(len(seen), 1)
        self._table_rows = num_rows
        self._scores = None if scores is None else np.asarray(scores)
        self._seen_scores = (
            count_accesses(self._batches[: self.half], self._num_rows) if self._scores is None else self._scores[seen]
        )
        self._pool = ThreadPool(1)

    def _host_rows(self, count: int) -> HostRows:
        if self._scores is None:
            return HostRows(top_rows(self._seen_scores, count // self.scale))
        # Rows that the profile did not touch have a rank too: find the score that the last row to enter has.
        every = max(1, self._table_rows >> 20)
        some = np.sort(self._scores[::every])
        limit = some[max(len(some) - max(count // every, 1), 0)]
        return HostRows(torch.from_numpy(np.flatnonzero(self._seen_scores >= limit)))

    def disk_rows(self, trial: Trial) -> float:
        """Give the rows that a batch of the second half reads from disk, on average."""
        host = self._host_rows(trial.host_rows) if trial.host_rows else None
        planner = Planner(
            self._num_rows, trial.cache_rows // self.scale, "window", window=trial.window, host=host, pool=self._pool
        )
        disk = 0
        for begin in range(0, self.count, trial.group):
            end = min(begin + trial.group, self.count)
            plan = planner.plan_group(self._batches[begin:end], self._batches[end:])
            disk += sum(plan.batches[i - begin].counters.disk for i in range(max(begin, self.half), end))
        return disk * self.scale / (self.count - self.half)


def _sampled(rows: NDArray[np.int64], scale: int) -> NDArray[np.int64]:
    mixed = rows.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) >> np.uint64(40)
    kept: NDArray[np.int64] = rows[mixed % np.uint64(scale) == 0]
    return kept
