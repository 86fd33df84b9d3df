"""One runtime under every door: opens tables on a backend within a budget and runs the passes of a feed."""

from __future__ import annotations

import atexit
import contextlib
import itertools
import os
import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from gids._native import give_back_memory
from gids.budget import (
    Demand,
    Division,
    Memory,
    Pace,
    Profiled,
    Request,
    TableDemand,
    divide,
    divide_with_lists,
    local_processes,
)
from gids.budget.parts import HELD_BY_CONSUMER
from gids.errors import ConfigError, GidsError
from gids.ledger import Usage
from gids.runtime.backend import Backend, StoreSetup
from gids.runtime.feed import Feed, KeepsLists
from gids.runtime.options import RuntimeOptions
from gids.runtime.pipeline import Pipeline, PipelineRun
from gids.runtime.preparation import (
    PROFILED_SHARE,
    Observed,
    Preparation,
    Prepared,
    PreparedFile,
    identity_of,
    share_rows,
    without_host,
    without_tiers,
)
from gids.runtime.ranking import RANDOM
from gids.runtime.stats import best_hit_ratio
from gids.runtime.threads import Run
from gids.runtime.tiers import Tiers
from gids.runtime.trace import Trace
from gids.runtime.work import Fetched, Work
from gids.sampling.lists import ListMemory
from gids.storage import load_curve
from gids.storage.curve import DEFAULT_CURVE, device_key
from gids.table import RowTable
from gids.tiers import AccessModel, Accumulator, Counters, HostBuffer, parse_policy
from gids.tiers.policies import Window
from gids.tiers.shared import SharedTensor
from gids.tiers.store import output_dtype
from gids.types import TableKey

Piece = TypeVar("Piece")
B = TypeVar("B")

#: Batches of a graph on disk that are sampled at once: some wait for the disk while others work.
DISK_SAMPLE_WORKERS = 4
#: How long close() waits for a preparation that is inside native code.
JOIN_TIMEOUT_S = 60.0

_LIVE: weakref.WeakSet[Runtime] = weakref.WeakSet()


class Runtime:
    """What a loader holds open between epochs: stores of every table, threads and memory, for one process.

    It is opened by its first sampled batch, and reads from then on; profile, rankings and the filling of the host buffer
    run beside training and take effect between groups.

    Parameters
    ----------
    feed : Feed
        Who orders and samples.
    backend : Backend
        Where batches are made; closed with this.
    options : RuntimeOptions
        What the user chose.
    trace : Trace
        Where spans go.
    memory, pace : Memory, Pace, optional
        Instead of the backend's, to :meth:`foresee` another machine.
    """

    def __init__(
        self,
        feed: Feed[Any, Any],
        backend: Backend,
        options: RuntimeOptions,
        trace: Trace,
        *,
        memory: Memory | None = None,
        pace: Pace | None = None,
    ):
        self.pid = os.getpid()
        _LIVE.add(self)
        self._memory = backend.memory if memory is None else memory
        self._pace = backend.pace if pace is None else pace
        self.feed, self.backend, self.options, self.trace = feed, backend, options, trace
        self.tables: dict[TableKey, RowTable] = {}
        self.recorded: dict[TableKey, list[Tensor]] = {}
        self.division: Division | None = None
        self.pipeline: Pipeline | None = None
        self._run: PipelineRun[Any] | None = None
        self._last_channels: list[Any] = []
        self._first_demand: Demand | None = None
        self._observed: Observed | None = None
        self._preparation: Preparation | None = None
        self._failure: BaseException | None = None
        self._shared: list[SharedTensor] = []
        self._retired_counts: dict[TableKey, dict[str, int]] = {}  # of stores that were replaced
        self._hosted: dict[TableKey, HostBuffer] = {}
        self._scratch_bytes = 0
        self._standing_bytes = (0, 0)
        self._closed = False

    @property
    def is_open(self) -> bool:
        """Whether a first batch was seen."""
        return self.pipeline is not None

    def open(self, first: Work, scratch_bytes: int = 0) -> None:
        """Divide the budget by the first sampled batch and open the tables it names; refuses too small a budget.

        Parameters
        ----------
        first : Work
            A batch like those to come.
        scratch_bytes : int
            Memory that its sampling worked in.
        """
        ruled = self._divide_by_rule(first, scratch_bytes)
        if self.options.output.record:
            self.recorded = {key: [] for key in self.tables}
        stored = self._stored_file()
        kept = None if stored is None else stored.load()
        if kept is not None and list(kept.division.shares) == list(self.tables):
            self._prepare_with(kept.division, lambda preparation: kept)
        elif self._is_decided(ruled):
            self._prepare_with(ruled, lambda preparation: self._decided())
        else:
            if not self.feed.replays:
                self._observed = self._observe_rows()
            self._prepare_with(without_tiers(ruled), self._find_out)

    def _divide_by_rule(self, first: Work, scratch_bytes: int) -> Division:
        self.tables = {key: self.feed.tables[key] for key in first.rows}
        self._scratch_bytes = scratch_bytes
        self._standing_bytes = self.feed.standing_bytes  # once: tables of the sampler grow a little later on
        rows = {key: len(ids) for key, ids in first.rows.items()}
        self._first_demand = self.demand(rows, first.size_bytes, first.made_bytes)
        on_disk = isinstance(self.feed, KeepsLists) and self.feed.topology.disk_memory is not None
        if self.options.pipeline.sample_workers is None and on_disk:
            alone, self._pace = self._pace, replace(self._pace, sample_workers=DISK_SAMPLE_WORKERS)
            try:
                return self._divide(self._first_demand, None)
            except ConfigError:  # each works in memory of its own
                self._pace = alone
        return self._divide(self._first_demand, None)

    def foresee(self, first: Work, scratch_bytes: int = 0) -> Division:
        """Return how the budget would be divided, without opening anything; as :meth:`open` and the preparation do."""
        ruled = self._divide_by_rule(first, scratch_bytes)
        if self._is_decided(ruled):
            return self._decided().division
        division, _ = self._divide_by_profile(lambda: None)
        return division

    def _divide_by_profile(self, check: Callable[[], None]) -> tuple[Division, _Once]:
        """Look at batches sampled for the purpose and divide the budget by them; returns the rankings too."""
        observed = self._observe_rows()
        for work in self.feed.profile():
            check()
            observed.add(work)
            if observed.complete.is_set():
                break
        return self._divide_by(observed)

    def _divide_by(self, observed: Observed) -> tuple[Division, _Once]:
        rankings = _Once(self._rankings)
        assert self._first_demand is not None
        made_bytes = self._first_demand.made_bytes
        demand = self.demand(observed.largest_rows, observed.largest_sample_bytes, made_bytes)
        try:
            return self._divide_all(demand, Profiled(observed.batches, rankings)), rankings
        except ConfigError:
            # A later batch is larger than the first, by which the budget was accepted, and would not fit as often ahead:
            # it stays accepted, and fewer batches wait.
            assert self._first_demand is not None
            return self._divide_all(self._first_demand, None), rankings

    def _decided(self) -> Prepared:
        assert self._first_demand is not None
        return Prepared.choose(self._divide_all(self._first_demand, None), self.tables, self._rankings)

    def _observe_rows(self) -> Observed:
        return Observed(list(self.tables), int(self._memory.host * PROFILED_SHARE), self.feed.num_batches)

    def _prepare_with(self, division: Division, find: Callable[[Preparation], Prepared]) -> None:
        """Open the tables by a first division without host buffers, and let ``find`` find out the rest meanwhile."""
        ledger = self.backend.ledger
        self._allot(division)
        self.pipeline = Pipeline(
            self._open_tiers(without_host(division), {}, {}),
            samples=ledger.account("samples"),
            sample_workers=self._pace.sample_workers,
            in_order=self.options.pipeline.in_order,
            trace=self.trace,
            observe=self._observe,
            grown=self._growth,
        )

        def steps(preparation: Preparation) -> None:
            prepared = find(preparation)
            preparation.check()
            assert self.pipeline is not None
            wanted = prepared.division
            if without_host(wanted).shares != without_host(division).shares or prepared.popularity:
                self.pipeline.replace(lambda old: self._replaced(old, wanted, {}, prepared.popularity))
            else:
                self._allot(wanted)
            if wanted.list_bytes and self._lists is not None:
                self._lists.keep(wanted.list_bytes)
                preparation.check()
            if prepared.host_rows:
                hosts = self._fill_host_buffers(prepared, preparation)
                self.pipeline.replace(lambda old: self._replaced(old, wanted, hosts, prepared.popularity))
            give_back_memory()  # profile and rankings took more than a run has free at once

        self._preparation = Preparation(steps, self._preparation_failed)

    def demand(self, rows: Mapping[TableKey, int], sample_bytes: int, made_bytes: int = 0) -> Demand:
        """Say what a run needs whose largest batch asks for so many rows, of which so much is made."""
        topology_bytes, labels_bytes = self._standing_bytes
        dtype = self.options.output.dtype
        tables = {
            key: TableDemand.of(table, rows[key], output_dtype(table, dtype).itemsize)
            for key, table in self.tables.items()
        }
        margin = sample_bytes + sample_bytes // 10
        scratch = self._scratch_bytes + self._scratch_bytes // 10
        batches, embeddings_bytes = max(1, self.feed.num_batches), self.options.embeddings_bytes
        return Demand(tables, margin, scratch, topology_bytes, labels_bytes, batches, made_bytes, embeddings_bytes)

    @property
    def _lists(self) -> ListMemory | None:
        return self.feed.lists if isinstance(self.feed, KeepsLists) else None

    def _divide_all(self, demand: Demand, profiled: Profiled | None) -> Division:
        """Divide the budget between rows and, of a graph on disk, neighbour lists."""
        lists = self._lists
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

    def _divide(self, demand: Demand, profiled: Profiled | None) -> Division:
        first = next(iter(self.tables.values()), None)
        return divide(
            self._memory,
            demand,
            self.tables,
            self._request(),
            self._pace,
            curve=DEFAULT_CURVE if first is None else load_curve(first.stripes[0].path),
            drives=self.drives,
            profiled=profiled,
            merge_gap_bytes=self.options.reading.merge_gap_bytes,
            popularity=self._wanted_popularity(),
        )

    def _request(self) -> Request:
        directory = self._spill_directory
        if directory is None:
            return self.options.request(local_processes())
        # At most half of what is free, as a power of two: the same for runs that find about as much.
        half = shutil.disk_usage(directory).free // 2
        return self.options.request(local_processes(), 1 << max(0, half.bit_length() - 1))

    @property
    def _spill_directory(self) -> Path | None:
        """Where sampled batches of a long window wait; None: in memory."""
        asked = self.options.pipeline.spill
        if not asked:
            return None
        directory = Path(asked) if not isinstance(asked, bool) else self.feed.scratch_dir or Path(tempfile.gettempdir())
        if not directory.is_dir():
            raise ConfigError(f"spill must be a directory (got {directory})")
        return directory

    @property
    def drives(self) -> int:
        """Distinct devices under the stripes of all tables."""
        return max(1, len({device_key(s.path) for table in self.tables.values() for s in table.stripes}))

    def _wanted_popularity(self) -> dict[TableKey, bool | None]:
        """Say of each table whether its cache is to know how popular rows are; None where memory decides."""
        memory = self.options.memory
        wanted = memory.popularity
        by_chance = isinstance(memory.host_rank, str) and memory.host_rank == RANDOM
        if not isinstance(parse_policy(memory.policy), Window) or (wanted is None and by_chance):
            wanted = False
        return {key: wanted if self.feed.is_ranked(key) else False for key in self.tables}

    def _is_decided(self, ruled: Division) -> bool:
        """Whether a profile could change nothing: all was asked for, or everything fits."""
        request = self._request()
        whole = all(share.cache_rows == self.tables[key].num_rows for key, share in ruled.shares.items())
        # Batches of the run are then observed without a cache: not worth it where only the window is left to choose.
        only_window = request.sweep_batches is not None and not self.feed.replays
        only_window = only_window and not any(self.feed.is_ranked(key) for key in self.tables)
        return whole or only_window or None not in (request.cache, request.host_buffer, request.groups)

    def _stored_file(self) -> PreparedFile | None:
        directory, identity = self.feed.scratch_dir, self.feed.identity
        if directory is None or identity is None or not self.tables:
            return None
        first = next(iter(self.tables.values()))
        parts = {
            "feed": identity,
            "tables": [[str(key), t.dtype, t.dim, t.num_rows] for key, t in self.tables.items()],
            "request": self._request(),
            "memory": self._memory,
            "pace": self._pace,
            "curve": load_curve(first.stripes[0].path),
            "policy": str(self.options.memory.policy),
            "popularity": self.options.memory.popularity,
            "dtype": str(self.options.output.dtype),
            "gap": self.options.reading.merge_gap_bytes,
            "processes": local_processes(),
            "drives": self.drives,
            "lists": [self.options.memory.topology_budget, self._lists is not None],
        }
        return PreparedFile(directory, identity_of(parts))

    def _observe(self, work: Work) -> None:
        for key, recorded in self.recorded.items():
            if key in work.rows:
                recorded.append(self.backend.row_ids(work.rows[key]))
        if self._observed is not None and not self._observed.complete.is_set():
            self._observed.add(work, self.backend.row_ids)

    def _find_out(self, preparation: Preparation) -> Prepared:
        """Look at batches, divide the budget by them, choose the rows of the host buffer; keep it for later runs."""
        if self._observed is not None:
            preparation.wait_for(self._observed.complete)
            division, rankings = self._divide_by(self._observed)
        else:
            division, rankings = self._divide_by_profile(preparation.check)
        preparation.check()
        prepared = Prepared.choose(division, self.tables, rankings)
        stored = self._stored_file()
        if stored is not None:
            stored.save(prepared)
        return prepared

    def _rankings(self) -> Mapping[TableKey, Any]:
        ranked = self.feed.rankings()
        return {key: ranked[key] for key in self.tables if key in ranked}

    def _fill_host_buffers(self, prepared: Prepared, preparation: Preparation) -> dict[TableKey, HostBuffer]:
        hosts = {}
        for key, rows in prepared.host_rows.items():
            preparation.check()
            if len(rows):
                hosts[key], shared = share_rows(self.tables[key], rows, self.backend.read_host_rows)
                self._shared.append(shared)
        self._hosted = hosts
        return hosts

    def _allot(self, division: Division) -> None:
        """Write a division into the ledger: limits of every part, and what stands already."""
        self.division = division
        ledger = self.backend.ledger
        for part, size_bytes in division.allotment.parts.items():
            ledger.account(part, size_bytes)
        for part in ("topology", "labels", "staging", "embeddings"):
            account = ledger.account(part)
            account.take(division.allotment.parts[part] - account.used)

    def _open_tiers(
        self,
        division: Division,
        hosts: Mapping[TableKey, HostBuffer],
        popularity: Mapping[TableKey, NDArray[np.uint8]],
    ) -> Tiers:
        group_bytes = max(1, sum(share.group_bytes for share in division.shares.values()))
        first = next(iter(self.tables.values()), None)
        curve = DEFAULT_CURVE if first is None else load_curve(first.stripes[0].path)
        pace = self._pace
        held_groups = pace.held_batches(division.sweep_groups) if pace.sweeps else division.groups_in_flight
        limits: dict[TableKey, tuple[int, int | None]] = {
            key: (table.row_bytes, int(division.shares[key].group_bytes / held_groups))
            for key, table in self.tables.items()
        }
        accumulator = Accumulator(
            AccessModel.from_curve(curve, self.drives),
            limits,
            accesses=self.options.pipeline.accesses,
            max_batches=max(1, division.group_batches),
        )
        stores: dict[TableKey, Any] = {}
        opened = Tiers(
            stores,
            accumulator,
            division.window,
            division.group_batches,
            division.sweep_groups,
            division.groups_in_flight,
            division.prefetch,
            self._spill_directory,
            division.window_map_bytes,
        )
        try:
            for key, table in self.tables.items():
                setup = StoreSetup(
                    division.shares[key],
                    max(1, division.allotment.staging * division.shares[key].group_bytes // group_bytes),
                    division.window,
                    division.sweep_groups,
                    division.groups_in_flight,
                    division.prefetch + HELD_BY_CONSUMER,
                    self.options.memory.policy,
                    hosts.get(key),
                    popularity.get(key),
                )
                stores[key] = self.backend.open_store(table, setup)
        except BaseException:
            opened.close()
            raise
        return opened

    def _replaced(
        self,
        old: Tiers,
        division: Division,
        hosts: Mapping[TableKey, HostBuffer],
        popularity: Mapping[TableKey, NDArray[np.uint8]],
    ) -> Tiers:
        for key, store in old.stores.items():
            total = self._retired_counts.setdefault(key, {})
            for name, value in store.counts().items():
                total[name] = total.get(name, 0) + value
        old.close()
        self._allot(division)
        return self._open_tiers(division if hosts else without_host(division), hosts, popularity)

    def _growth(self) -> Callable[[Tiers], Tiers] | None:
        """Return how to open the stores anew where the feed's tables have become longer, else None."""
        tables = self.feed.tables
        if all(tables[key].num_rows <= table.num_rows for key, table in self.tables.items()):
            return None
        return self._grown

    def _grown(self, old: Tiers) -> Tiers:
        """Divide the budget again by rule: there is more to cache, and the feed holds more that stands."""
        assert self._first_demand is not None
        self.tables = {key: self.feed.tables[key] for key in self.tables}
        self._standing_bytes = self.feed.standing_bytes
        topology_bytes, labels_bytes = self._standing_bytes
        demands = {
            key: replace(demand, num_rows=self.tables[key].num_rows)
            for key, demand in self._first_demand.tables.items()
        }
        self._first_demand = replace(
            self._first_demand, tables=demands, topology_bytes=topology_bytes, labels_bytes=labels_bytes
        )
        return self._replaced(old, self._divide(self._first_demand, None), {}, {})

    def _preparation_failed(self, error: BaseException) -> None:
        self._failure = error

        def fail(tiers: Tiers) -> Tiers:
            raise error

        if self.pipeline is not None:
            try:
                self.pipeline.replace(fail)
            except BaseException:  # no run is active: the next one begins with it
                return

    def prepare(self) -> None:
        """Find out everything now; raises what is wrong.

        Where batches of the run must be observed first, because the feed has no others, what is left to find out is
        found out while the first of them are trained on.
        """
        observing = self._observed is not None and not self._observed.complete.is_set()
        if self._preparation is not None and not observing:
            if self._run is not None and not self._run.run.stopping and not self.is_prepared:
                # What is found out takes effect between groups, which need a consumer: the one who would wait here.
                raise GidsError("prepare must be called before an epoch begins (one is under way)")
            self._preparation.wait()
        self._check()

    def _check(self) -> None:
        if self._closed:
            raise GidsError("the loader is closed")
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure

    def run(self, order: Iterable[Piece], finish: Callable[[Fetched], B] | None = None) -> PipelineRun[B]:
        """Begin a pass over pieces of the feed's order; ends the one before.

        Parameters
        ----------
        order : iterable
            Pieces for :meth:`Feed.sample`.
        finish : callable, optional
            Instead of the feed's.
        """
        self.end_run("another iteration of this loader began")
        self._check()
        result: PipelineRun[B] = PipelineRun(Run("gids"))
        self._run = result  # owned before it has threads: an interrupt from here on leaves nothing that nobody closes
        sample: Callable[[Any], Work] = self.feed.sample
        pieces: Iterable[Any] = order
        on_consumer = self.feed.samples_on_consumer
        if not self.is_open:
            works = map(sample, order)
            first = next(works, None)
            if first is None:
                return result
            self.open(first)
            pieces, sample = itertools.chain([first], works), _as_it_is
        assert self.pipeline is not None
        backend, finish = self.backend, self.feed.finish if finish is None else finish
        self.pipeline.start(
            result, pieces, sample, lambda fetched: finish(backend.deliver(fetched)), on_consumer=on_consumer
        )
        if self._preparation is not None:
            self._preparation.start()
        return result

    def end_run(self, reason: str) -> None:
        """End the pass that is under way, if one is; whoever still iterates it gets an error that says ``reason``."""
        if self._run is not None and os.getpid() == self.pid:
            self._run.close(reason)
            self._last_channels = self._run.run.channels
            self._run = None

    @property
    def channels(self) -> list[Any]:
        """Channels of the pass that is under way, or was last."""
        return self._last_channels if self._run is None else self._run.run.channels

    def counts(self) -> dict[TableKey, dict[str, int]]:
        """Return rows by source of the batches that were delivered, reads and bytes, of every table since it was opened."""
        if self.pipeline is None:
            return {}
        totals = {}
        for key, store in self.pipeline.tiers.stores.items():
            io, before = store.counts(), self._retired_counts.get(key, {})
            delivered = self.pipeline.delivered.get(key, Counters())
            totals[key] = asdict(delivered) | {
                "reads": io["reads"] + before.get("reads", 0),
                "bytes_read": io["bytes_read"] + before.get("bytes_read", 0),
                "bytes_delivered": delivered.requests * self.tables[key].row_bytes,
            }
        return totals

    @property
    def is_prepared(self) -> bool:
        """Whether profile, ranking and host buffer are done."""
        return self._preparation is None or self._preparation.ended

    def best_hit_ratio(self, key: TableKey) -> float:
        """Return the share that a cache with perfect foresight and as much memory as all tiers would have served."""
        assert self.division is not None
        share, table = self.division.shares[key], self.tables[key]
        capacity = share.cache_rows + share.group_bytes // table.row_bytes
        host = self._hosted.get(key)
        return best_hit_ratio(self.recorded[key], capacity, table.num_rows, None if host is None else host.index)

    def forget_recorded(self) -> None:
        """Record accesses anew."""
        for recorded in self.recorded.values():
            recorded.clear()

    def usage(self) -> dict[str, Usage]:
        """Return what every part of the budget was allotted, uses, and used at most."""
        return self.backend.ledger.usage()

    def close(self) -> None:
        """Give files, threads and memory back."""
        if self._closed or os.getpid() != self.pid:
            return
        if self._preparation is not None:
            self._preparation.stop()
        self.end_run("the loader was closed")
        with ExitStack() as stack:
            stack.callback(give_back_memory)
            stack.callback(self.backend.close)
            stack.callback(self.feed.close)
            for shared in self._shared:
                stack.callback(shared.close)
            if self.pipeline is not None:
                stack.callback(self.pipeline.close)
                self.pipeline.stop_replacing()
            if self._preparation is not None and not self._preparation.join(JOIN_TIMEOUT_S):
                raise GidsError(f"thread gids-prepare did not end within {JOIN_TIMEOUT_S:.0f} s")
        self._closed = True
        self._shared.clear()
        self._hosted.clear()
        self._preparation = self.pipeline = self._observed = None  # a cycle with this would keep the stores alive


@atexit.register
def _close_all() -> None:
    # Threads are daemons so that a forgotten loader cannot keep the interpreter alive; end them in good order.
    for runtime in list(_LIVE):
        with contextlib.suppress(GidsError):
            runtime.close()


def _as_it_is(work: Work) -> Work:
    return work


class _Once:
    """Calls a function at the first call and remembers what it returned."""

    def __init__(self, function: Callable[[], Mapping[TableKey, Any]]):
        self._function = function
        self._value: Mapping[TableKey, Any] | None = None

    def __call__(self) -> Mapping[TableKey, Any]:
        if self._value is None:
            self._value = self._function()
        return self._value
