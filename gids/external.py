"""Rows for batches that someone else samples: a dataset's tables behind the loader's pipeline.

DGL and PyG bring samplers, seed orders and batch types of their own. What they need of gids is this: tell me which rows
your batches want, in order, and get each batch back with its rows, read ahead and within a memory budget.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor

from gids._native import ThreadPool
from gids.dataset import Dataset, open_dataset
from gids.errors import ConfigError
from gids.loader import Fetched, Pipeline, PipelineOptions, PipelineRun, TableSet, Trace, Work, open_tables
from gids.loader.dividing import weighted_shares
from gids.loader.engine import PROFILE_MARGIN
from gids.loader.memory import BATCHES_IN_HANDS, Allotment, Fixed, TableDemand, allot, default_budget, held_batches
from gids.loader.pipeline import SAMPLED_AHEAD
from gids.loader.stages import Channel
from gids.loader.stats import TableStats, table_stats
from gids.storage import StorageOptions
from gids.table import RowTable
from gids.tiers import Policy
from gids.units import parse_bytes

B = TypeVar("B")
#: Batches that are sampled before the tables are opened, to learn how many rows a batch needs.
PROFILED_BATCHES = 3
#: ``("node", node type, name)`` or ``("edge", edge type, name)``.
TableKey = tuple[str, Any, str]


@dataclass(frozen=True)
class Options:
    """Where features are, and how much memory and foresight their reading gets.

    Attributes
    ----------
    dataset : Dataset or path-like
        What :func:`gids.open` gives, or where it is.
    budget : int, str or None
        Memory for everything that reading holds, e.g. ``"2GiB"``; None takes half of what is available.
    cache : int, str or None
        Memory of the cache within the budget; None divides the budget.
    policy : str or Policy
        What the cache keeps, see :mod:`gids.tiers`.
    window, max_group, groups_in_flight, prefetch : int
        How far reading runs ahead, see :class:`gids.loader.PipelineOptions`.
    storage : StorageOptions
        Engine and its options.
    dtype : torch.dtype or None
        Of floating point rows in a batch; None keeps the table's.
    host_rows : mapping of table key to Tensor
        int64 rows that stay in the host buffer, by table: ``("node", "_N", "feat")``.
    threads : int or None
        Threads that plan and copy; None takes as many as torch.
    """

    dataset: Dataset | str | os.PathLike[str]
    budget: int | str | None = None
    cache: int | str | None = None
    policy: str | Policy = "window"
    window: int = 8
    max_group: int = 8
    groups_in_flight: int = 2
    prefetch: int = 2
    storage: StorageOptions = field(default_factory=StorageOptions)
    dtype: torch.dtype | None = None
    host_rows: Mapping[Hashable, Tensor] = field(default_factory=dict)
    threads: int | None = None

    def open(self) -> Dataset:
        """Give the dataset, opened."""
        return self.dataset if isinstance(self.dataset, Dataset) else open_dataset(self.dataset)

    @property
    def pipeline(self) -> PipelineOptions:
        """How far stages run ahead."""
        return PipelineOptions(self.window, 1, self.max_group, self.groups_in_flight, self.prefetch)

    @property
    def batches_ahead(self) -> int:
        """Batches that must have been sampled beyond one for it to come out, with every stage busy."""
        return self.window + self.max_group + self.groups_in_flight + self.prefetch + SAMPLED_AHEAD


class Tables:
    """Tables that are open between epochs; sized by the first batches that ask for rows.

    Parameters
    ----------
    tables : mapping of table key to RowTable
        All that a batch may ask for; those that the first batches do not name are not opened.
    options : Options
        Memory and foresight.
    """

    def __init__(self, tables: Mapping[TableKey, RowTable], options: Options):
        self._known: dict[Hashable, RowTable] = {key: table for key, table in tables.items()}  # noqa: C416
        self.options = options
        self.trace = Trace()
        self.allotment: Allotment | None = None
        self._opened: tuple[TableSet, Pipeline] | None = None

    def run(self, works: Iterator[Work], batch: Callable[[Fetched], B], *, here: bool) -> Iterator[B]:
        """Start one pass over sampled batches.

        Parameters
        ----------
        works : iterator of Work
            Samples when it is advanced.
        batch : callable
            Makes the result, on the consumer's thread.
        here : bool
            Advance ``works`` on the consumer's thread, some batches ahead, rather than on a thread of its own.
        """
        first = list(itertools.islice(works, PROFILED_BATCHES))
        pipeline = self._pipeline(first)
        both = itertools.chain(first, works)
        if not here:
            return pipeline.run(both, _as_it_is, batch)
        channel: Channel[Work] = Channel("feed", 2 * self.options.batches_ahead)
        running = pipeline.run(_taken_from(channel), _as_it_is, batch)
        running.run.at_stop(channel.stop)
        return FedRun(running, channel, both, self.options.batches_ahead)

    def _pipeline(self, first: list[Work]) -> Pipeline:
        if self._opened is None:
            keys = list(dict.fromkeys(key for work in first for key in work.rows))
            tables = {key: self._known[key] for key in keys}
            pool = ThreadPool(self.options.threads or torch.get_num_threads(), "gids-pool")
            demand = {key: self._demand(key, first) for key in keys}
            self.allotment = self._allot(demand, max((work.size_bytes for work in first), default=0))
            options = self.options
            opened = open_tables(
                tables,
                demand,
                weighted_shares(self.allotment, demand, tables),
                storage=options.storage,
                policy=options.policy,
                window=options.window,
                max_group=1,
                rotation=options.max_group,
                keep_outputs=options.prefetch + BATCHES_IN_HANDS,
                seed=0,
                pool=pool,
                dtype=options.dtype,
                host_rows={key: rows for key, rows in options.host_rows.items() if key in tables},
            )
            self._opened = opened, Pipeline(opened.stores, options.pipeline, opened.grouping, self.trace)
        return self._opened[1]

    def _demand(self, key: Hashable, first: list[Work]) -> TableDemand:
        table = self._known[key]
        most = max((len(work.rows[key]) for work in first if key in work.rows), default=0)
        converted = self.options.dtype is not None and table.torch_dtype.is_floating_point
        item_bytes = self.options.dtype.itemsize if converted and self.options.dtype else table.item_bytes
        rows = max(1, min(int(most * PROFILE_MARGIN) + 1, table.num_rows))
        return TableDemand(rows, table.row_bytes, table.dim * item_bytes, table.num_rows)

    def _allot(self, demand: Mapping[Hashable, TableDemand], sample_bytes: int) -> Allotment:
        options = self.options
        budget = default_budget() if options.budget is None else parse_bytes(options.budget, "budget")
        host = sum(len(rows) * self._known[key].row_bytes for key, rows in options.host_rows.items())
        return allot(
            budget,
            Fixed(staging_bytes=options.storage.staging_bytes if demand else 0, sample_bytes=sample_bytes),
            demand,
            ahead=2 * options.batches_ahead,  # as many may wait to be taken
            planned=options.window + 1,
            held=held_batches(options.max_group),
            prefetch=options.prefetch,
            cache_bytes=None if options.cache is None else parse_bytes(options.cache, "cache"),
            host_bytes=host or None,
            group_bytes=None,
        )

    def stats(self) -> dict[str, TableStats]:
        """Count rows by source for every open table, since the begin."""
        if self._opened is None:
            return {}
        return {store.store.table.name: table_stats(store, {}, False) for store in self._opened[0].stores.values()}

    def close(self) -> None:
        """Give files and memory back; the next run opens them again."""
        if self._opened is not None:
            self._opened[0].close()
            self._opened = None


class FedRun(Iterator[B]):
    """A pass whose batches are sampled by whoever iterates, always as far ahead as the pipeline can use.

    A thread of its own would sample with another random state than the caller's: DGL keeps one for each thread.
    """

    def __init__(self, running: PipelineRun[B], channel: Channel[Work], works: Iterable[Work], ahead: int):
        self._running, self._channel, self._works = running, channel, iter(works)
        self._ahead = ahead
        self._fed = self._taken = 0
        self._more = True

    def __next__(self) -> B:
        try:
            while self._more and self._fed < self._taken + 1 + self._ahead:
                self._feed()
        except BaseException:
            self.close()
            raise
        self._taken += 1
        return next(self._running)

    def _feed(self) -> None:
        work = next(self._works, None)
        if work is None:
            self._more = False
            self._channel.end(StopIteration())
        else:
            self._channel.put(work)
            self._fed += 1

    def close(self) -> None:
        """End the threads and forget what was not delivered."""
        self._running.close()


def _as_it_is(work: Work) -> Work:
    return work


def _taken_from(channel: Channel[Work]) -> Iterator[Work]:
    while True:
        try:
            work = channel.get()
        except StopIteration:
            return
        yield work


def node_and_edge_tables(dataset: Dataset) -> dict[TableKey, RowTable]:
    """Every feature table of a dataset under ``("node" | "edge", type, name)``."""
    tables: dict[TableKey, RowTable] = {}
    for ntype in dataset.node_types:
        for name in dataset.feature_names(ntype):
            tables["node", ntype, name] = dataset.feature_table(ntype, name)
    for etype in dataset.edge_types:
        for name in dataset.edge_feature_names(etype):
            tables["edge", etype, name] = dataset.edge_feature_table(etype, name)
    return tables


def check_same_nodes(dataset: Dataset, counts: Mapping[str, Any], what: str) -> None:
    """Refuse a graph whose node types that the dataset also has are not of the same size."""
    for ntype in dataset.node_types:
        if ntype in counts and counts[ntype] != dataset.num_nodes(ntype):
            raise ConfigError(
                f"{what} must have {dataset.num_nodes(ntype)} nodes of type {ntype!r} as the dataset has "
                f"(got {counts[ntype]})"
            )
