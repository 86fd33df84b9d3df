"""How many batches are read together: as many as the memory for groups holds, learned from the groups before."""

from __future__ import annotations

import threading
from collections.abc import Hashable, Mapping
from dataclasses import dataclass

from gids.loader.pipeline import Work


@dataclass
class _Share:
    row_bytes: int
    limit_bytes: int
    disk_per_request: float = 1.0  # before anything is known, every row may have to be read


class BudgetGroups:
    """Groups as large as fit in memory.

    A group reads each row once and leaves out what cache and host buffer have, so its buffer is smaller than the sum
    of its batches. By how much is learned: ``disk_per_request`` of the group before, which only falls as groups grow.
    The first group is a single batch where memory is scarce, so the first batch comes early.

    Parameters
    ----------
    limits : mapping of table key to (row bytes, bytes)
        For each table, the size of a row and the memory for one group.
    """

    #: Room for groups that need more than the one before them.
    HEADROOM = 0.9

    def __init__(self, limits: Mapping[Hashable, tuple[int, int]]):
        self._shares = {key: _Share(row_bytes, limit) for key, (row_bytes, limit) in limits.items()}
        self._lock = threading.Lock()

    def size(self, waiting: list[Work]) -> int:
        """Give the most batches that are expected to fit, at least one."""
        with self._lock:
            return min(
                (self._fitting(key, share, waiting) for key, share in self._shares.items()), default=len(waiting)
            )

    def _fitting(self, key: Hashable, share: _Share, waiting: list[Work]) -> int:
        room = share.limit_bytes * (self.HEADROOM if share.disk_per_request < 1 else 1.0)
        used = 0.0
        for number, work in enumerate(waiting):
            used += len(work.rows[key]) * share.row_bytes * share.disk_per_request if key in work.rows else 0
            if used > room:
                return max(1, number)
        return len(waiting)

    def forget(self, key: Hashable) -> None:
        """Expect the worst again: the cache was emptied."""
        with self._lock:
            self._shares[key].disk_per_request = 1.0

    def learn(self, key: Hashable, requests: int, disk: int) -> None:
        """Note what the last group asked of a table and what of that had to be read."""
        if requests:
            with self._lock:
                self._shares[key].disk_per_request = max(disk / requests, 1e-3)
