"""One runtime under every door: opens tables on a backend within a budget and runs the passes of a feed."""

from __future__ import annotations

import atexit
import contextlib
import itertools
import os
import weakref
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import asdict
from typing import Any, TypeVar

from torch import Tensor

from gids._native import give_back_memory
from gids.budget import Division
from gids.errors import GidsError
from gids.ledger import Usage
from gids.runtime.backend import Backend
from gids.runtime.divider import Divider
from gids.runtime.feed import Feed
from gids.runtime.opening import TierOpener
from gids.runtime.options import RuntimeOptions
from gids.runtime.peers import Peers
from gids.runtime.pipeline import Pipeline, PipelineRun
from gids.runtime.preparation import Observed, Preparation, Prepared, share_rows, without_host, without_tiers
from gids.runtime.stats import best_hit_ratio
from gids.runtime.threads import Run
from gids.runtime.tiers import Tiers
from gids.runtime.trace import Trace
from gids.runtime.work import Fetched, Work
from gids.table import RowTable
from gids.tiers import Counters, HostBuffer
from gids.tiers.shared import SharedTensor
from gids.types import TableKey

Piece = TypeVar("Piece")
B = TypeVar("B")

#: How long close() waits for a preparation that is inside native code.
JOIN_TIMEOUT_S = 60.0

#: How long planning waits for a division by profile, once the first batch is read. It takes about a second; stores that
#: are replaced while a sweep is under way deliver nothing for as long, and until then run at half their speed.
EXPECT_DIVISION_S = 2.0

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
    """

    def __init__(self, feed: Feed[Any, Any], backend: Backend, options: RuntimeOptions, trace: Trace):
        self.pid = os.getpid()
        self.feed, self.backend, self.options, self.trace = feed, backend, options, trace
        self._divider = Divider(feed, options, backend.memory, backend.pace)
        self._peers: Peers | None = None
        if options.shards is not None:
            self._peers = options.shards.open(list(feed.tables.values()), options.reading)
        self._opener = TierOpener(backend, options, self._divider, self._peers)
        self.recorded: dict[TableKey, list[Tensor]] = {}
        self.pipeline: Pipeline | None = None
        self._run: PipelineRun[Any] | None = None
        self._last_channels: list[Any] = []
        self._observed: Observed | None = None
        self._preparation: Preparation | None = None
        self._failure: BaseException | None = None
        self._shared: list[SharedTensor] = []
        self._hosted: dict[TableKey, HostBuffer] = {}
        self._closed = False
        _LIVE.add(self)

    @property
    def tables(self) -> Mapping[TableKey, RowTable]:
        """The tables that are open."""
        return self._divider.tables

    @property
    def division(self) -> Division | None:
        """How the budget is divided; None before a first batch was seen."""
        return self._opener.division

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
        ruled = self._divider.by_rule(first, scratch_bytes)
        if self.options.output.record:
            self.recorded = {key: [] for key in self.tables}
        stored = self._divider.stored_file()
        kept = None if stored is None else stored.load()
        if kept is not None and list(kept.division.shares) == list(self.tables):
            self._prepare_with(kept.division, lambda preparation: kept)
        elif self._divider.is_decided(ruled):
            self._prepare_with(ruled, lambda preparation: self._divider.decided())
        else:
            if not self.feed.replays:
                self._observed = self._divider.observe_rows()
            self._prepare_with(without_tiers(ruled), self._find_out)
            if self._observed is None and self.pipeline is not None:
                self.pipeline.expect_change(EXPECT_DIVISION_S)

    def foresee(self, first: Work, scratch_bytes: int = 0) -> Division:
        """Return how the budget would be divided, without opening anything; see :meth:`Divider.foresee`."""
        return self._divider.foresee(first, scratch_bytes)

    def _prepare_with(self, division: Division, find: Callable[[Preparation], Prepared]) -> None:
        """Open the tables by a first division without host buffers, and let ``find`` find out the rest meanwhile."""
        ledger = self.backend.ledger
        self._opener.allot(division)
        self.pipeline = Pipeline(
            self._opener.open(without_host(division), {}, {}),
            samples=ledger.account("samples"),
            sample_workers=self._divider.pace.sample_workers,
            in_order=self.options.pipeline.in_order,
            trace=self.trace,
            observe=self._observe,
            grown=self._growth,
        )

        def steps(preparation: Preparation) -> None:
            prepared = find(preparation)
            give_back_memory()  # profile and rankings took more than a run has free at once; stores come on top of it
            preparation.check()
            assert self.pipeline is not None
            wanted = prepared.division
            now, then = without_host(division), without_host(wanted)
            if then.shares != now.shares or then.spill != now.spill or prepared.popularity:
                self.pipeline.replace(lambda old: self._opener.replace(old, wanted, {}, prepared.popularity))
            else:
                self._opener.allot(wanted)
                self.pipeline.expect_no_change()
            lists = self._divider.lists
            if wanted.list_bytes and lists is not None:
                lists.keep(wanted.list_bytes)
                preparation.check()
            if prepared.host_rows:
                hosts = self._fill_host_buffers(prepared, preparation)
                if self._opener.can_add_hosts(wanted):  # replacing stores costs a sweep in which nothing is delivered
                    self.pipeline.add_to(lambda tiers: self._opener.add_hosts(tiers, hosts))
                else:
                    self.pipeline.replace(lambda old: self._opener.replace(old, wanted, hosts, prepared.popularity))
            give_back_memory()  # and so did stores that were replaced

        self._preparation = Preparation(steps, self._preparation_failed)

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
            division, rankings = self._divider.by_observed(self._observed)
        else:
            division, rankings = self._divider.by_profile(preparation.check)
        preparation.check()
        prepared = Prepared.choose(division, self.tables, rankings)
        stored = self._divider.stored_file()
        if stored is not None:
            stored.save(prepared)
        return prepared

    def _fill_host_buffers(self, prepared: Prepared, preparation: Preparation) -> dict[TableKey, HostBuffer]:
        hosts = {}
        for key, rows in prepared.host_rows.items():
            preparation.check()
            if len(rows):
                read = self.backend.read_host_rows if self._peers is None else self._peers.read
                hosts[key], shared = share_rows(self.tables[key], rows, read)
                self._shared.append(shared)
        self._hosted = hosts
        return hosts

    def _growth(self) -> Callable[[Tiers], Tiers] | None:
        """Return how to open the stores anew where the feed's tables have become longer, else None."""
        tables = self.feed.tables
        if all(tables[key].num_rows <= table.num_rows for key, table in self.tables.items()):
            return None
        return self._grown

    def _grown(self, old: Tiers) -> Tiers:
        return self._opener.replace(old, self._divider.grown(), {}, {})

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
            io, before = store.counts(), self._opener.retired_counts(key)
            delivered = self.pipeline.delivered.get(key, Counters())
            totals[key] = asdict(delivered) | {
                "reads": io["reads"] + before.get("reads", 0),
                "bytes_read": io["bytes_read"] + before.get("bytes_read", 0),
                "bytes_written": io.get("bytes_written", 0) + before.get("bytes_written", 0),
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

    def exchanged(self) -> dict[str, float] | None:
        """Return what went between machines; None where all rows are on this one."""
        return None if self._peers is None else dict(self._peers.stats())

    def usage(self) -> dict[str, Usage]:
        """Return what every part of the budget was allotted, uses, and used at most."""
        return self.backend.ledger.usage()

    def close(self) -> None:
        """Release files, threads and memory."""
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
            if self._peers is not None:
                stack.callback(self._peers.close)  # after the pipeline: until then it may ask
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
