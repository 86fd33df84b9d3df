"""The open stores of a run and how far ahead they are used."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gids.tiers.accumulator import Accumulator
from gids.tiers.contract import Store
from gids.types import TableKey


@dataclass(frozen=True)
class Tiers:
    """The open stores of all tables, and how far ahead they are used: one division of the budget, carried out.

    Attributes
    ----------
    stores : mapping of TableKey to Store
        One per table; every key of :attr:`Work.rows` must be here.
    accumulator : Accumulator
        How many batches make a group.
    window : int
        Batches sampled beyond the group that is being planned; the cache policy sees their rows.
    group_batches : int
        Most batches in one group.
    sweep_groups : int
        Groups that share each read.
    groups_in_flight : int
        Groups that are read to their end, or about to be, and wait to be gathered.
    prefetch : int
        Batches that are finished, or being made, while the consumer works on another.
    spill : Path or None
        Where sampled batches of the window beyond the next few wait on disk, rather than in memory.
    rows_are_spilled : bool
        Whether the rows of the window go to disk too; a disk that fails is then no error.
    window_map_bytes : int
        Memory in which the planners find the rows of those.
    """

    stores: Mapping[TableKey, Store[Any, Any, Any]]
    accumulator: Accumulator
    window: int = 16
    group_batches: int = 8
    sweep_groups: int = 1
    groups_in_flight: int = 2
    prefetch: int = 2
    spill: Path | None = None
    rows_are_spilled: bool = False
    window_map_bytes: int = 0

    @property
    def most_groups(self) -> int:
        """Groups that have begun and are not gathered to their end, at most."""
        return self.sweep_groups + self.groups_in_flight - 1

    def close(self) -> None:
        """Close every store, whichever fails."""
        with ExitStack() as stack:
            for store in self.stores.values():
                stack.callback(store.close)
