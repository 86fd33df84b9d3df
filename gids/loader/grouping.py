"""How many batches are read together: the accumulator of gids.tiers, fed by the pipeline's plans."""

from __future__ import annotations

from collections.abc import Hashable

from gids.loader.pipeline import Work
from gids.tiers import Accumulator, Counters


class AccumulatedGroups:
    """Groups by :class:`gids.tiers.Accumulator`, which learns from every plan.

    Parameters
    ----------
    accumulator : Accumulator
        Decides.
    """

    def __init__(self, accumulator: Accumulator):
        self.accumulator = accumulator

    def size(self, waiting: list[Work]) -> int:
        """Give the number of waiting batches to read together, at least one."""
        return self.accumulator.batches([{key: len(rows) for key, rows in work.rows.items()} for work in waiting])

    def learn(self, key: Hashable, counters: Counters) -> None:
        """Note what the last group asked of a table and what of that had to be read."""
        self.accumulator.learn(key, counters)

    def forget(self, key: Hashable) -> None:
        """Expect the worst again: the cache was emptied."""
        self.accumulator.forget(key)
