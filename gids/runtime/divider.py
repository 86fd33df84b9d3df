"""How a run divides its budget: by rule from its first batch, then by a profile of more; what ``gids budget`` prints."""

from __future__ import annotations

import shutil
import tempfile
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from gids.budget import (
    Demand,
    Division,
    Memory,
    Pace,
    Profiled,
    Request,
    SpillRequest,
    TableDemand,
    divide,
    divide_with_lists,
    divide_with_spill,
    local_processes,
)
from gids.errors import ConfigError
from gids.runtime.feed import BorrowsGraph, Feed, KeepsLists
from gids.runtime.options import RuntimeOptions, SpillOptions
from gids.runtime.preparation import PROFILED_SHARE, Observed, Prepared, PreparedFile, identity_of
from gids.runtime.ranking import RANDOM
from gids.runtime.work import Work
from gids.sampling.lists import ListMemory
from gids.storage import load_curve
from gids.storage.curve import DEFAULT_CURVE, DeviceCurve, device_key
from gids.storage.write_probe import write_rates
from gids.table import RowTable
from gids.tiers import HotRows, parse_policy
from gids.tiers.policies import Window
from gids.tiers.store import output_dtype
from gids.types import TableKey
from gids.units import format_bytes, parse_bytes

#: Batches of a graph on disk that are sampled at once: some wait for the disk while others work.
DISK_SAMPLE_WORKERS = 4


class Divider:
    """Divides the budget of one run. It looks at the feed's batches and opens nothing.

    Parameters
    ----------
    feed : Feed
        Whose batches.
    options : RuntimeOptions
        What the user chose.
    memory : Memory
        What there is to divide.
    pace : Pace
        How the pipeline runs, and what its way of reading holds.

    Attributes
    ----------
    tables : dict of TableKey to RowTable
        Those that the first batch names.
    """

    def __init__(self, feed: Feed[Any, Any], options: RuntimeOptions, memory: Memory, pace: Pace):
        self._feed, self._options, self._memory, self.pace = feed, options, memory, pace
        self.tables: dict[TableKey, RowTable] = {}
        self._first: Demand | None = None
        self._scratch_bytes = 0
        self._standing_bytes = (0, 0)
        self._beside_bytes = 0  # of a graph of the user's own that the budget has no room for
        self._spill_failed = False

    def by_rule(self, first: Work, scratch_bytes: int = 0) -> Division:
        """Divide by the first sampled batch; refuses too small a budget.

        A graph of the user's own is part of a budget that the user gave, as the loader's own is, so that it means the
        same in every door; where there is no room for it, it stands beside the budget.

        Parameters
        ----------
        first : Work
            A batch like those to come.
        scratch_bytes : int
            Memory that its sampling worked in.
        """
        self.tables = {key: self._feed.tables[key] for key in first.rows}
        self._scratch_bytes = scratch_bytes
        topology_bytes, labels_bytes = self._feed.standing_bytes  # once: tables of the sampler grow a little later on
        borrowed = self._feed.borrowed_bytes if isinstance(self._feed, BorrowsGraph) else 0
        if borrowed and self._options.budget is not None:  # what is half of the rest otherwise leaves it out
            self._standing_bytes = (topology_bytes + borrowed, labels_bytes)
            try:
                return self._divide_first(first)
            except ConfigError:
                self._beside_bytes = borrowed
        self._standing_bytes = (topology_bytes, labels_bytes)
        return self._divide_first(first)

    def _divide_first(self, first: Work) -> Division:
        rows = {key: len(ids) for key, ids in first.rows.items()}
        self._first = self._demand(rows, first.size_bytes, first.made_bytes)
        on_disk = isinstance(self._feed, KeepsLists) and self._feed.topology.disk_memory is not None
        if self._options.pipeline.sample_workers is None and on_disk:
            alone, self.pace = self.pace, replace(self.pace, sample_workers=DISK_SAMPLE_WORKERS)
            try:
                return self._divide(self._first, None)
            except ConfigError:  # each works in memory of its own
                self.pace = alone
        return self._divide(self._first, None)

    def foresee(self, first: Work, scratch_bytes: int = 0) -> Division:
        """Return how the budget would be divided, without opening anything; as :meth:`open` and the preparation do."""
        ruled = self.by_rule(first, scratch_bytes)
        if self.is_decided(ruled):
            return self.decided().division
        division, _ = self.by_profile(lambda: None)
        return division

    def by_profile(self, check: Callable[[], None]) -> tuple[Division, Once]:
        """Look at batches sampled for the purpose and divide the budget by them; returns the rankings too."""
        observed = self.observe_rows()
        for work in self._feed.profile():
            check()
            observed.add(work)
            if observed.complete.is_set():
                break
        return self.by_observed(observed)

    def by_observed(self, observed: Observed) -> tuple[Division, Once]:
        """Divide the budget by batches that were observed; returns the rankings too."""
        rankings = Once(self._rankings)
        assert self._first is not None
        made_bytes = self._first.made_bytes
        demand = self._demand(observed.largest_rows, observed.largest_sample_bytes, made_bytes)
        try:
            profiled = Profiled(observed.batches, rankings)
            return self._with_spill(self._divide_all(demand, profiled), demand, profiled), rankings
        except ConfigError:
            # A later batch is larger than the first, by which the budget was accepted, and would not fit as often ahead:
            # it stays accepted, and fewer batches wait.
            assert self._first is not None
            return self._with_spill(self._divide_all(self._first, None), self._first, None), rankings

    def decided(self) -> Prepared:
        """Return what is known without a profile: the division by rule, and the rows that it is worth to hold."""
        assert self._first is not None
        division = self._with_spill(self._divide_all(self._first, None), self._first, None)
        return Prepared.choose(division, self.tables, self._rankings)

    def observe_rows(self) -> Observed:
        """Return an empty record for the rows of batches to come."""
        return Observed(list(self.tables), int(self._memory.host * PROFILED_SHARE), self._feed.num_batches)

    def _demand(self, rows: Mapping[TableKey, int], sample_bytes: int, made_bytes: int = 0) -> Demand:
        """Say what a run needs whose largest batch asks for so many rows, of which so much is made."""
        topology_bytes, labels_bytes = self._standing_bytes
        dtype = self._options.output.dtype
        tables = {
            key: TableDemand.of(table, rows[key], output_dtype(table, dtype).itemsize)
            for key, table in self.tables.items()
        }
        margin = sample_bytes + sample_bytes // 10
        scratch = self._scratch_bytes + self._scratch_bytes // 10
        batches, embeddings_bytes = max(1, self._feed.num_batches), self._options.embeddings_bytes
        return Demand(tables, margin, scratch, topology_bytes, labels_bytes, batches, made_bytes, embeddings_bytes)

    @property
    def lists(self) -> ListMemory | None:
        """Neighbour lists of a graph on disk that are left to the budget."""
        return self._feed.lists if isinstance(self._feed, KeepsLists) else None

    def _divide_all(self, demand: Demand, profiled: Profiled | None) -> Division:
        """Divide the budget between rows and, of a graph on disk, neighbour lists."""
        lists = self.lists
        if lists is None:
            return self._divide(demand, profiled)
        worth, cost = lists.worth(), load_curve(lists.path).cost

        def left(division: Division) -> int:
            parts = division.allotment
            if self._memory.device is None:
                return parts.budget - parts.total
            return self._memory.host - parts.topology - parts.labels - parts.staging - parts.host_buffer

        return divide_with_lists(
            lambda size: self._divide(replace(demand, topology_bytes=demand.topology_bytes + size), profiled),
            worth.most_bytes,
            lambda size: worth.seconds(size, cost),
            left,
        )

    def _with_spill(self, online: Division, demand: Demand, profiled: Profiled | None) -> Division:
        """Let rows be spilled where the user allows it and it pays."""
        asked = self._options.spill
        if not isinstance(asked, SpillOptions):
            return online
        disk_bytes = parse_bytes(asked.disk, "spill")
        most_written = disk_bytes if asked.most_written is None else parse_bytes(asked.most_written, "most_written")
        try:
            rates = write_rates(self.row_spill_directory, min(disk_bytes, most_written))
        except ConfigError as error:  # a full disk: training goes on without
            self._spill_failed = True
            warnings.warn(f"rows are not spilled, but read online: {error}", RuntimeWarning, stacklevel=2)
            return replace(online, reasons=(*online.reasons, f"rows are not spilled: {error}"))
        return divide_with_spill(
            online,
            self._memory,
            replace(demand, topology_bytes=demand.topology_bytes + online.list_bytes),
            self.tables,
            self._options.request(local_processes()),
            self.pace,
            curve=self.curve,
            rates=rates,
            spill=SpillRequest(disk_bytes // local_processes(), asked.batches),
            profiled=profiled,
            ranked=any(self._feed.is_ranked(key) for key in self.tables),
        )

    @property
    def row_spill_directory(self) -> Path:
        """Where rows are spilled."""
        asked = self._options.spill
        if isinstance(asked, SpillOptions) and asked.directory is not None:
            return Path(asked.directory)
        home = self._feed.scratch_dir
        return home if home is not None and home.is_dir() else Path(tempfile.gettempdir())

    def _divide(self, demand: Demand, profiled: Profiled | None) -> Division:
        found = divide(
            self._memory,
            demand,
            self.tables,
            self._request(),
            self.pace,
            curve=self.curve,
            drives=self.drives,
            profiled=profiled,
            merge_gap_bytes=self._options.reading.merge_gap_bytes,
            popularity=self._wanted_popularity(),
        )
        if not self._beside_bytes:
            return found
        beside = f"a graph of {format_bytes(self._beside_bytes)} stands beside the budget, which has no room for it"
        return replace(found, reasons=(*found.reasons, beside))

    def _request(self) -> Request:
        directory = self.spill_directory
        if directory is None:
            return self._options.request(local_processes())
        # At most half of what is free, as a power of two: the same for runs that find about as much.
        half = shutil.disk_usage(directory).free // 2
        return self._options.request(local_processes(), 1 << max(0, half.bit_length() - 1))

    @property
    def spill_directory(self) -> Path | None:
        """Where sampled batches of a long window wait; None: in memory."""
        asked = self._options.pipeline.spill_samples
        if not asked:
            return None
        directory = (
            Path(asked) if not isinstance(asked, bool) else self._feed.scratch_dir or Path(tempfile.gettempdir())
        )
        if not directory.is_dir():
            raise ConfigError(f"spill_samples must be a directory (got {directory})")
        return directory

    @property
    def curve(self) -> DeviceCurve:
        """Speeds of the first table's drive."""
        first = next(iter(self.tables.values()), None)
        return DEFAULT_CURVE if first is None else load_curve(first.stripes[0].path)

    @property
    def drives(self) -> int:
        """Distinct devices under the stripes of all tables."""
        return max(1, len({device_key(s.path) for table in self.tables.values() for s in table.stripes}))

    def _wanted_popularity(self) -> dict[TableKey, bool | None]:
        """Say of each table whether its cache is to know how popular rows are; None where memory decides."""
        memory = self._options.memory
        wanted = memory.popularity
        by_chance = isinstance(memory.host_rank, str) and memory.host_rank == RANDOM
        if not isinstance(parse_policy(memory.policy), Window) or (wanted is None and by_chance):
            wanted = False
        return {key: wanted if self._feed.is_ranked(key) else False for key in self.tables}

    def is_decided(self, ruled: Division) -> bool:
        """Whether a profile could change nothing: all was asked for, or everything fits."""
        request = self._request()
        whole = all(share.cache_rows == self.tables[key].num_rows for key, share in ruled.shares.items())
        # Batches of the run are then observed without a cache: not worth it where only the window is left to choose.
        only_window = request.sweep_batches is not None and not self._feed.replays
        only_window = only_window and not any(self._feed.is_ranked(key) for key in self.tables)
        return whole or only_window or None not in (request.cache, request.host_buffer, request.groups)

    def stored_file(self) -> PreparedFile | None:
        """Return where results for these settings are kept; None where they cannot be."""
        directory, identity = self._feed.scratch_dir, self._feed.identity
        if directory is None or identity is None or not self.tables:
            return None
        if self._spill_failed:  # a later run may find room
            return None
        parts = {
            "feed": identity,
            "tables": [[str(key), t.dtype, t.dim, t.num_rows] for key, t in self.tables.items()],
            "request": self._request(),
            "memory": self._memory,
            "pace": self.pace,
            "curve": self.curve,
            "policy": str(self._options.memory.policy),
            "popularity": self._options.memory.popularity,
            "dtype": str(self._options.output.dtype),
            "gap": self._options.reading.merge_gap_bytes,
            "processes": local_processes(),
            "drives": self.drives,
            "standing": self._standing_bytes,
            "lists": [self._options.memory.topology_budget, self.lists is not None],
            "spill": [str(self._options.spill), None if self._options.spill is None else str(self.row_spill_directory)],
        }
        return PreparedFile(directory, identity_of(parts))

    def _rankings(self) -> Mapping[TableKey, HotRows]:
        ranked = self._feed.rankings()
        return {key: ranked[key] for key in self.tables if key in ranked}

    def grown(self) -> Division:
        """Divide again by rule where the feed's tables have become longer: there is more to cache, and more stands."""
        assert self._first is not None
        self.tables = {key: self._feed.tables[key] for key in self.tables}
        self._standing_bytes = self._feed.standing_bytes
        topology_bytes, labels_bytes = self._standing_bytes
        demands = {
            key: replace(demand, num_rows=self.tables[key].num_rows) for key, demand in self._first.tables.items()
        }
        self._first = replace(self._first, tables=demands, topology_bytes=topology_bytes, labels_bytes=labels_bytes)
        return self._divide(self._first, None)


class Once:
    """Calls a function at the first call and remembers what it returned."""

    def __init__(self, function: Callable[[], Mapping[TableKey, HotRows]]):
        self._function = function
        self._value: Mapping[TableKey, HotRows] | None = None

    def __call__(self) -> Mapping[TableKey, HotRows]:
        """Return what the function returned the first time."""
        if self._value is None:
            self._value = self._function()
        return self._value
