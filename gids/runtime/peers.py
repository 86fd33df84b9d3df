"""What the runtime asks of rows that other machines hold; :mod:`gids.cluster` is who answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from torch import Tensor

from gids.storage import StorageOptions
from gids.table import RowTable
from gids.tiers.host_buffer import Reader


class Peers(Protocol):
    """Other ranks that hold a part of the rows, and read it for us as we do ours for them."""

    def reader(self, table: RowTable, own: Reader) -> Reader:
        """Return a reader of all rows of a table that takes ours from ``own``; closing it closes ``own``."""

    def read(self, table: RowTable, rows: Tensor, values: Tensor) -> None:
        """Read rows, wherever they are, and wait for them."""

    def stats(self) -> Mapping[str, float]:
        """Return what was asked, answered and moved so far."""

    def close(self) -> None:
        """Part with the others, once they have no more questions; returns in bounded time."""


class Sharding(Protocol):
    """How tables are split over machines (:class:`gids.Shards`)."""

    @property
    def memory_bytes(self) -> int:
        """Memory for rows on their way, within the budget."""

    def open(self, tables: Sequence[RowTable], reading: StorageOptions) -> Peers | None:
        """Meet the other ranks; None where there is nothing to exchange."""
