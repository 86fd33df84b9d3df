"""Tries tier sizes on a recorded run: the real planners on a sample of the table, so that a trial takes milliseconds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gids._native import ThreadPool
from gids.storage import DeviceCurve, PlanLimits, plan_reads
from gids.table import RowTable
from gids.tiers.accumulator import AccessModel
from gids.tiers.host_buffer import HostRows
from gids.tiers.hot_rows import HotRows, RowScores
from gids.tiers.plan import Planner
from gids.tiers.rank import count_accesses

#: Rows of a batch that a trial plans, about; of larger batches a sample of the table's rows counts (SHARDS, FAST 2015).
SAMPLED_ROWS = 1024
#: Neighbours are in the sample together, so that reads merge in a trial as they will: bytes of such a piece.
PIECE_BYTES = 512 << 10
LEAST_PIECES = 64


@dataclass(frozen=True)
class DiskModel:
    """What a list of rows costs to read.

    Attributes
    ----------
    curve : DeviceCurve
        Of the device.
    model : AccessModel
        Its start-up time, see :class:`AccessModel`.
    limits : PlanLimits
        How reads are merged.
    """

    curve: DeviceCurve
    model: AccessModel
    limits: PlanLimits

    @classmethod
    def of(cls, curve: DeviceCurve, merge_gap_bytes: int | None = None) -> DiskModel:
        """Take everything from the curve, as a reader does without other options."""
        gap = curve.merge_gap_bytes if merge_gap_bytes is None else merge_gap_bytes
        return cls(curve, AccessModel.from_curve(curve), PlanLimits(merge_gap_bytes=gap))

    def seconds(self, table: RowTable, rows: NDArray[np.int64]) -> float:
        """Time of the reads that ``rows`` (sorted, unique) become, once the device is busy."""
        plan = plan_reads(table, rows, self.limits)
        return self.curve.cost.seconds(plan.num_reads, plan.total_bytes)


@dataclass(frozen=True)
class Trial:
    """Sizes to try: cache and host buffer in rows, window and group in batches; whether rows' popularity is known."""

    cache_rows: int
    host_rows: int
    window: int
    group: int
    popular: bool = False


@dataclass(frozen=True)
class Outcome:
    """What a trial gave.

    Attributes
    ----------
    disk_rows : float
        Rows read for a batch, on average.
    group_rows : int
        Rows of the largest group.
    seconds : float
        Disk time of a batch.
    """

    disk_rows: float
    group_rows: int
    seconds: float


class Profile:
    """What consecutive batches asked of one table.

    Parameters
    ----------
    table : RowTable
        The table; it is not read.
    batches : sequence of Tensor
        int64 rows of each batch.
    disk : DiskModel
        What reads cost.
    hot : HotRows, optional
        Ranking of the rows, for the host buffer and popularity; by default, for the former alone, accesses counted in the first half, because trials are judged on the
        second.
    """

    def __init__(self, table: RowTable, batches: Sequence[Tensor], disk: DiskModel, hot: HotRows | None = None):
        self.table, self.disk = table, disk
        self.count = len(batches)
        self.largest = max(len(batch) for batch in batches)
        self.half = self.count // 2
        piece_rows = max(1, PIECE_BYTES // table.row_stride)
        # No sample is so small that it has too few pieces; to plan all rows instead would take half a minute.
        one_in = max(1, min(self.largest // SAMPLED_ROWS, table.num_rows // (LEAST_PIECES * piece_rows)))
        # A piece is in the sample or not by its hash: it then is so in every batch, and reuse is seen as it is.
        sampled = [_sampled(batch.numpy(), piece_rows, one_in) for batch in batches]
        # By the accesses that are in the sample, not by its pieces, of which some are asked for more than others.
        self.scale = sum(map(len, batches)) / max(sum(map(len, sampled)), 1)
        self._seen = np.unique(np.concatenate(sampled))
        self._arrays = [np.searchsorted(self._seen, rows).astype(np.int64) for rows in sampled]
        self._batches = [torch.from_numpy(rows) for rows in self._arrays]
        self._places = self._counted_places() if hot is None else hot.places(self._seen)
        self._levels = None if hot is None else hot.levels(self._seen)
        self._pool = ThreadPool(1)
        self._outcomes: dict[Trial, Outcome] = {}

    def _counted_places(self) -> NDArray[np.int64]:
        """Rank by accesses in the first half; rows that it did not ask for lie among all others of the table."""
        counts = count_accesses(self._batches[: self.half], max(len(self._seen), 1))
        places = RowScores(counts).places(np.arange(len(self._seen)))
        counted = int(np.count_nonzero(counts))
        others = max(self.table.num_rows / self.scale - counted, 0.0)
        spread = max(others / max(len(self._seen) - counted, 1), 1.0)
        late = places >= counted
        places[late] = counted + ((places[late] - counted) * spread).astype(np.int64)
        return (places * self.scale).astype(np.int64)

    def union_rows(self, group: int) -> int:
        """Rows that the batches of a group ask for together, at most: what a group reads with no cache."""
        largest = 0
        for begin in range(0, self.count - group + 1, group):
            asked = np.zeros(max(len(self._seen), 1), bool)
            for rows in self._arrays[begin : begin + group]:
                asked[rows] = True
            largest = max(largest, int(np.count_nonzero(asked)))
        return min(int(largest * self.scale), self.table.num_rows)

    def run(self, trial: Trial) -> Outcome:
        """Plan the profile with these sizes; its second half is what counts."""
        if trial not in self._outcomes:
            self._outcomes[trial] = self._run(trial)
        return self._outcomes[trial]

    def _run(self, trial: Trial) -> Outcome:
        host = HostRows(torch.from_numpy(np.flatnonzero(self._places < trial.host_rows))) if trial.host_rows else None
        planner = Planner(
            max(len(self._seen), 1),
            int(trial.cache_rows / self.scale),
            "window",
            window=trial.window,
            host=host,
            popularity=self._levels if trial.popular else None,
            pool=self._pool,
        )
        batches = self._batches
        # Without a cache what came before does not matter.
        begin = 0 if planner.capacity else self.half
        judged, disk, largest, seconds = 0, 0, 0, 0.0
        while begin < self.count:
            size = trial.group if begin else self.half % trial.group or trial.group  # so that one begins at the half
            end = min(begin + size, self.count)
            # The run goes on after the profile much as it began.
            plan = planner.plan_group(batches[begin:end], [*batches[end:], *batches[:begin]][: trial.window])
            if begin >= self.half and (end - begin == trial.group or not judged):
                judged += end - begin
                disk += len(plan.disk_rows)
                largest = max(largest, len(plan.disk_rows))
                seconds += self.disk.model.overhead_s
                seconds += self.scale * self.disk.seconds(self.table, self._seen[plan.disk_rows.numpy()])
            begin = end
        return Outcome(disk * self.scale / judged, int(largest * self.scale), seconds / judged)


def _sampled(rows: NDArray[np.int64], piece_rows: int, scale: int) -> NDArray[np.int64]:
    mixed = (rows // piece_rows).astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) >> np.uint64(40)
    kept: NDArray[np.int64] = rows[mixed % np.uint64(scale) == 0]
    return kept
