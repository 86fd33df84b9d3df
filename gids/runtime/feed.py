"""Who orders and samples the batches of a run, and what the runtime asks of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Protocol, TypeVar, runtime_checkable

from gids.runtime.work import Fetched, Work
from gids.sampling import Topology
from gids.sampling.lists import ListMemory
from gids.table import RowTable
from gids.tiers import HotRows
from gids.types import TableKey

Piece = TypeVar("Piece", contravariant=True)
B = TypeVar("B", covariant=True)


class Feed(Protocol[Piece, B]):
    """Orders and samples: our samplers, those of a framework, an epoch that was prepared, a sweep of inference.

    The runtime calls :meth:`sample` once for every piece of an epoch's order, ahead of training, and :meth:`finish` once
    for every batch in the thread that takes it. Everything else is for the budget.
    """

    @property
    def tables(self) -> Mapping[TableKey, RowTable]:
        """Every table that a batch may ask for."""

    @property
    def samples_on_consumer(self) -> bool:
        """Whether :meth:`sample` must run on the thread that iterates (a sampler with a random state of that thread)."""

    @property
    def standing_bytes(self) -> tuple[int, int]:
        """Memory of the graph, and of the labels."""

    @property
    def num_batches(self) -> int:
        """Batches of an epoch."""

    def first(self) -> tuple[Work, int] | None:
        """Sample one batch before any run, in host memory; returns also the memory that sampling worked in.

        The budget is then divided, and refused where it is too small, before training begins. None where only a run may
        sample, because sampling has a state.
        """

    def sample(self, piece: Piece) -> Work:
        """Sample one piece of the order."""

    def finish(self, fetched: Fetched) -> B:
        """Build the batch of fetched rows, which are tensors where the user wants them."""

    @property
    def replays(self) -> bool:
        """Whether batches can be sampled for the purpose of :meth:`profile`; otherwise those of the run are observed."""

    def profile(self) -> Iterator[Work]:
        """Yield batches like those of an epoch, with their rows in host memory, the same on all ranks."""

    def is_ranked(self, key: TableKey) -> bool:
        """Whether :meth:`rankings` ranks the rows of a table."""

    def rankings(self) -> Mapping[TableKey, HotRows]:
        """Rank the rows of the tables; takes seconds on large graphs."""

    @property
    def identity(self) -> str | None:
        """What profile and rankings are a function of, so that they can be kept for later runs; None: keep nothing."""

    @property
    def scratch_dir(self) -> Path | None:
        """Where what was found out about the dataset is kept; None where nothing can be written."""

    def close(self) -> None:
        """Release files and memory."""


@runtime_checkable
class KeepsLists(Protocol):
    """A feed whose graph may be on disk, with neighbour lists in memory that the budget gives it."""

    @property
    def topology(self) -> Topology:
        """The graph."""

    @property
    def lists(self) -> ListMemory | None:
        """The lists that are left to the budget; None where the graph is in memory or the user gave its memory."""


@runtime_checkable
class BorrowsGraph(Protocol):
    """A feed that samples a graph of the user's own, which was in memory before there was a loader."""

    @property
    def borrowed_bytes(self) -> int:
        """Host memory of that graph."""
