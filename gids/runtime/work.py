"""A mini-batch on its way: what was sampled, and the rows that were fetched for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sized
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

from gids.budget.split import FAR_ROW_BYTES, WINDOW_ROW_BYTES
from gids.tiers.plan import Counters
from gids.types import TableKey


@dataclass
class Work:
    """One mini-batch, sampled.

    Attributes
    ----------
    payload : object
        Whatever the sampler made; comes back untouched.
    rows : mapping of TableKey to row ids
        Unique rows wanted of each table, int64, where the backend's stores take them (a Tensor, an array of the device).
        Tables that are not named are not read for this batch.
    size_bytes : int
        Memory that the payload holds, for the accounting.
    num_seeds, num_inputs : int
        Seeds that it was sampled from, and nodes whose rows it needs, for statistics.
    index : int
        Position of the batch in the order, as counted by the pipeline.
    assemble : callable, optional
        Makes of the fetched rows what the payload becomes, ahead of training, on the fetching thread; the rows themselves
        are then not delivered.
    made_bytes : int
        Memory of what it makes.
    far : bool
        Whether the payload waits on disk.
    """

    payload: Any
    rows: Mapping[TableKey, Sized]
    size_bytes: int = 0
    num_seeds: int = 0
    num_inputs: int = 0
    index: int = 0
    assemble: Callable[[Mapping[TableKey, Any]], Any] | None = None
    made_bytes: int = 0
    far: bool = False

    @property
    def waiting_bytes(self) -> int:
        """Memory of the batch while it waits: its payload, and what a planner keeps of every row; on disk, its rows alone."""
        rows = sum(map(len, self.rows.values()))
        return FAR_ROW_BYTES * rows if self.far else self.size_bytes + WINDOW_ROW_BYTES * rows


class Fetched(NamedTuple):
    """A sampled mini-batch and the rows it asked for: ``rows[key][i]`` is row ``work.rows[key][i]``.

    ``counters`` say of every table where the rows came from.
    """

    work: Work
    rows: dict[TableKey, Any]
    counters: Mapping[TableKey, Counters] = MappingProxyType({})


def fetched_as_it_is(fetched: Fetched) -> Any:
    """Return what was fetched without change."""
    return fetched
