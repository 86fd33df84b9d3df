"""One pass over an order: groups are planned, read and gathered on threads that share what stands here."""

from __future__ import annotations

import threading
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from gids.budget.parts import NEAR_BATCHES
from gids.errors import GidsError, StorageError
from gids.ledger import Stopped
from gids.runtime.spill import Spilled, SpillFile
from gids.runtime.threads import Run
from gids.runtime.tiers import Tiers
from gids.runtime.work import Fetched, Work
from gids.tiers.contract import Ticket
from gids.tiers.plan import Counters
from gids.types import TableKey

if TYPE_CHECKING:
    from gids.runtime.pipeline import Pipeline

S = TypeVar("S")
#: How far a long window is open when the second group of an epoch is planned, and by how much it opens further for each
#: batch that is planned: reads go on meanwhile. Opened at once, a window of 1000 kept the disk waiting for a second.
LEAST_AHEAD, OPENED_PER_BATCH = 64, 8


@dataclass
class Group:
    """Batches that are planned together."""

    works: list[Work]
    tickets: dict[TableKey, Ticket]
    position: dict[TableKey, dict[int, int]]  # table -> index in works -> batch number in that table's plan


class Pass:
    """What the threads of one run share.

    Parameters
    ----------
    pipeline : Pipeline
        Whose tiers, accounts and trace.
    run : Run
        Whose threads.
    """

    def __init__(self, pipeline: Pipeline, run: Run):
        tiers = pipeline.tiers
        self._pipeline, self._run, self._trace = pipeline, run, pipeline.trace
        self._groups_room = run.permits("groups in flight", tiers.most_groups)
        self._ready = run.permits("finished batches", tiers.prefetch)
        self._unfinished = _Unfinished()
        self._samples = pipeline.samples
        self._last_bytes = 0  # that the batch sampled last takes while it waits in memory
        self._spill: SpillFile | None = None  # opened by the first batch that waits there
        self._disk_failed = False
        self._unlearned: list[tuple[TableKey, Ticket]] = []  # not told to the accumulator; of the planning thread
        for store in tiers.stores.values():
            store.group_account.resume()
        run.at_stop(self._stop)
        run.at_close(self._settle)

    def _stop(self) -> None:
        for store in self._pipeline.tiers.stores.values():
            store.group_account.stop()
        self._unfinished.cancel()
        self._pipeline.wake()

    def _settle(self) -> None:
        """After all stages have ended: without this the stores would believe admissions that never happened."""
        self._samples.give(self._samples.used)
        if self._spill is not None:
            self._spill.close()
        if self._unfinished.any_left():
            for key, store in self._pipeline.tiers.stores.items():
                store.reset()
                self._pipeline.tiers.accumulator.forget(key)
        self._unfinished.clear()  # last: an interrupt before it lets the next close() reset everything again

    def sampling(self, sample: Callable[[S], Work]) -> Callable[[tuple[int, S]], Work]:
        """Return a function that samples a numbered piece."""

        def numbered(item: tuple[int, S]) -> Work:
            index, piece = item
            with self._trace.span("sample", batch=index):
                work = sample(piece)
            work.index = index
            return work

        return numbered

    def taken(self, item: Fetched) -> Fetched:
        """Count a batch that the consumer takes."""
        self._ready.give(1)  # let the next one be made
        delivered = self._pipeline.delivered
        for key, counters in item.counters.items():
            delivered[key] = delivered.get(key, Counters()) + counters
        return item

    def plan(self, samples: Iterator[Work]) -> Iterator[Group]:
        """Plan sampled batches in groups; yield groups whose reads have all begun."""
        waiting: deque[Work] = deque()
        active: deque[Group] = deque()  # begun, and some of their reads are not
        planned, more = 0, True
        while True:
            change = self._pipeline.wanted_change
            if change is not None and change.drains:
                while active:
                    yield from self._advance(active)
                self._replace(self._pipeline.apply_change)
            elif change is not None:
                self._pipeline.apply_change()
            tiers = self._pipeline.tiers
            # The first batch of an epoch is read as soon as it is sampled: training waits for nothing else. A long window
            # opens while its first groups are read, a few batches for each that is planned.
            # Rows that are spilled are different: what is scattered in one go is worth its sweep only if it is complete.
            opened = tiers.window if tiers.rows_are_spilled else LEAST_AHEAD + OPENED_PER_BATCH * planned
            wanted = tiers.group_batches + min(tiers.window, opened) if planned else 1
            near = None if tiers.spill is None else tiers.group_batches + NEAR_BATCHES
            more = more and self._fill(waiting, samples, wanted, near)
            if not waiting:
                while active:
                    yield from self._advance(active)
                self._learn(late_too=True)
                return
            if planned and self._pipeline.wait_for_change(self._run):
                continue
            # After the batches were taken: a feed lets its table grow before it hands over a batch that needs it.
            growth = None if self._pipeline.grown is None else self._pipeline.grown()
            if growth is not None:
                while active:
                    yield from self._advance(active)
                self._replace(partial(self._pipeline.apply_growth, growth))
                tiers = self._pipeline.tiers
            group = self._plan_group(waiting, tiers)
            size = len(group.works)  # of the fetching thread later
            while active and not all(ticket.fits for ticket in group.tickets.values()):
                yield from self._advance(active)
            self._groups_room.draw(1)
            for ticket in group.tickets.values():
                ticket.begin()
            active.append(group)
            yield from self._advance(active)
            while active and not planned:
                yield from self._advance(active)
            planned += size

    def _fill(self, waiting: deque[Work], samples: Iterator[Work], wanted: int, near: int | None) -> bool:
        """Take sampled batches until enough wait, or their memory is used up; returns whether more may follow.

        Those after the first ``near`` wait on disk; None for no such limit.
        """
        while len(waiting) < wanted and (not waiting or self._samples.has_room(self._last_bytes)):
            work = next(samples, None)
            if work is None:
                return False
            self._last_bytes = work.waiting_bytes
            self._samples.take(work.waiting_bytes)
            if self._pipeline.observe is not None:
                self._pipeline.observe(work)
            waiting.append(work)
            if near is not None and len(waiting) > near:
                self._store(work)
        return True

    def _store(self, work: Work) -> None:
        """Bring what was sampled to disk; which rows it needs stays in memory, for the plans before its own."""
        tiers, before = self._pipeline.tiers, work.waiting_bytes
        if self._disk_failed:
            return
        try:
            if self._spill is None:
                assert tiers.spill is not None
                self._spill = SpillFile(tiers.spill)
                self._samples.take(tiers.window_map_bytes)
            with self._trace.span("spill", batch=work.index):
                work.payload = self._spill.store(work.payload, {id(rows) for rows in work.rows.values()})
        except StorageError as error:
            if not tiers.rows_are_spilled:  # the window would not be what was asked for
                raise
            self._disk_failed = True
            warnings.warn(
                f"samples wait in memory, and fewer of them: {error}",
                RuntimeWarning,
                stacklevel=2,
            )
            return
        work.far = True
        self._samples.give(before - work.waiting_bytes)

    def _load(self, work: Work) -> None:
        if self._spill is None or not isinstance(work.payload, Spilled):
            return
        before = work.waiting_bytes
        with self._trace.span("load", batch=work.index):
            work.payload = self._spill.load(work.payload)
        work.far = False
        self._samples.take(work.waiting_bytes - before)

    def _replace(self, apply: Callable[[], None]) -> None:
        self._unfinished.wait_until_empty()
        self._unlearned.clear()  # of an accumulator that goes
        apply()
        tiers = self._pipeline.tiers
        self._groups_room.limit = tiers.most_groups
        self._ready.limit = tiers.prefetch

    def _plan_group(self, waiting: deque[Work], tiers: Tiers) -> Group:
        self._learn()
        candidates = list(waiting)[: tiers.group_batches]
        for work in candidates:
            unknown = [str(key) for key in work.rows if key not in tiers.stores]
            if unknown:
                raise GidsError(f"tables of a batch must be among those of the first batch (got {', '.join(unknown)})")
        size = tiers.accumulator.batches([{key: len(rows) for key, rows in work.rows.items()} for work in candidates])
        group = self._unfinished.begin(Group([waiting.popleft() for _ in range(size)], {}, {}))
        for work in group.works:
            self._load(work)
        lookahead = list(waiting)[: tiers.window]
        for key, store in tiers.stores.items():
            wanted = [number for number, work in enumerate(group.works) if key in work.rows]
            group.position[key] = {number: batch for batch, number in enumerate(wanted)}
            with self._trace.span("plan", table=str(key), batches=len(group.works), first=group.works[0].index):
                ticket = store.plan(
                    [group.works[number].rows[key] for number in wanted],
                    [work.rows[key] for work in lookahead if key in work.rows],
                )
            self._unlearned.append((key, ticket))
            self._unfinished.planned(group, key, ticket)
        return group

    def _learn(self, *, late_too: bool = False) -> None:
        """Tell the accumulator what became of the groups planned so far; not of the last, where its device still counts."""
        tiers = self._pipeline.tiers
        last = self._unlearned[-len(tiers.stores) :]  # a ticket for each table
        keep = 0 if late_too else sum(ticket.counted_late for _, ticket in last)
        told = len(self._unlearned) - keep
        for key, ticket in self._unlearned[:told]:
            tiers.accumulator.learn(key, ticket.counters)
        del self._unlearned[:told]

    def _advance(self, active: deque[Group]) -> Iterator[Group]:
        """Begin the next reads of all groups, when there is room for them; yield those whose reads have all begun."""
        first = active[0].tickets if active else {}
        for key, store in self._pipeline.tiers.stores.items():
            # A table that is ahead may hold all its memory for groups that wait for rows of the others: let those go on.
            if key in first and first[key].underway and not store.has_room:
                continue
            with self._trace.span("start", table=str(key)):
                store.advance()
        while active and all(ticket.underway for ticket in active[0].tickets.values()):
            yield active.popleft()

    def fetch(self, groups: Iterator[Group]) -> Iterator[Fetched]:
        """Gather the rows of groups, batch by batch."""
        for group in groups:
            stores = self._pipeline.tiers.stores
            works, last = deque(group.works), len(group.works) - 1
            group.works.clear()  # what was delivered must not be kept alive by what was not
            for number in range(last + 1):
                work = works.popleft()
                self._ready.draw(1)  # before its memory is taken: no batch is finished that has no place to wait
                rows, counters = {}, {}
                for key in work.rows:
                    with self._trace.span("fetch", batch=work.index, table=str(key), rows=len(work.rows[key])):
                        ticket, batch = group.tickets[key], group.position[key][number]
                        rows[key] = stores[key].gather(ticket, batch)
                        counters[key] = ticket.batch_counters(batch)
                self._samples.give(work.waiting_bytes)
                if number == last:
                    self._unfinished.end(group)
                    self._groups_room.give(1)
                if work.assemble is not None:
                    with self._trace.span("assemble", batch=work.index):
                        work.payload, rows = work.assemble(rows), {}
                    work.assemble = None  # it holds what it was made from
                yield Fetched(work, rows, counters)
                del work, rows


class _Unfinished:
    """Groups that were planned and not gathered to their end."""

    def __init__(self) -> None:
        self._groups: list[Group] = []  # guarded by _lock
        self._cancelled = False  # guarded by _lock
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)

    def begin(self, group: Group) -> Group:
        with self._lock:
            self._groups.append(group)
        return group

    def planned(self, group: Group, key: TableKey, ticket: Ticket) -> None:
        with self._lock:
            group.tickets[key] = ticket
            if self._cancelled:
                ticket.cancel()

    def end(self, group: Group) -> None:
        with self._lock:
            self._groups.remove(group)
            self._changed.notify_all()

    def wait_until_empty(self) -> None:
        """Return when every group was gathered; raises Stopped if the run ends before."""
        with self._lock:
            while self._groups and not self._cancelled:
                self._changed.wait()
            if self._cancelled:
                raise Stopped

    def cancel(self) -> None:
        with self._lock:
            self._cancelled = True
            for group in self._groups:
                for ticket in group.tickets.values():
                    ticket.cancel()
            self._changed.notify_all()

    def any_left(self) -> bool:
        """Whether there are any."""
        with self._lock:
            return bool(self._groups)

    def clear(self) -> None:
        """Forget all groups."""
        with self._lock:
            self._groups.clear()
