"""sample → plan → advance → gather on threads that run ahead: the machine under every loader of gids, whoever samples.

The pipeline knows tables and rows, not graphs. It is given pieces of work in order and a function that samples one of
them; it returns the sampled piece with the rows it asked for:

>>> def sample(seeds):
...     input_nodes, output_nodes, blocks = some_sampler(seeds)
...     return Work((input_nodes, output_nodes, blocks), rows={TableKey("_N", "feat"): input_nodes})
>>> with pipeline.run(order, sample) as batches:
...     for work, rows in batches:
...         train(work.payload, rows[TableKey("_N", "feat")])
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Generic, NamedTuple, TypeVar

from gids.budget.parts import NEAR_BATCHES, SAMPLED_AHEAD
from gids.budget.split import FAR_ROW_BYTES, WINDOW_ROW_BYTES
from gids.errors import GidsError
from gids.ledger import Account, Stopped
from gids.runtime.spill import Spilled, SpillFile
from gids.runtime.threads import Channel, Drain, Run
from gids.runtime.trace import Trace
from gids.tiers.accumulator import Accumulator
from gids.tiers.contract import Store, Ticket
from gids.tiers.plan import Counters
from gids.types import TableKey

S = TypeVar("S")
B = TypeVar("B")


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
        """Memory of the batch while it waits: its payload, and what a planner keeps of every row."""
        row_bytes = FAR_ROW_BYTES if self.far else WINDOW_ROW_BYTES
        return self.size_bytes + row_bytes * sum(map(len, self.rows.values()))


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
    window_map_bytes: int = 0

    def close(self) -> None:
        """Close every store, whichever fails."""
        with ExitStack() as stack:
            for store in self.stores.values():
                stack.callback(store.close)


@dataclass
class _Group:
    works: list[Work]
    tickets: dict[TableKey, Ticket]
    position: dict[TableKey, dict[int, int]]  # table -> index in works -> batch number in that table's plan


class Pipeline:
    """Several tables' stores behind one sampler.

    Parameters
    ----------
    tiers : Tiers
        Where rows come from; may be replaced while a run goes on, see :meth:`replace`.
    samples : Account, optional
        Memory of sampled batches that wait: where it is short, the window shrinks.
    sample_workers : int
        Sampling threads.
    in_order : bool
        Whether batches come in the order of their pieces; otherwise in the order in which they were sampled.
    trace : Trace, optional
        Where spans are recorded.
    observe : callable, optional
        Called with every sampled batch, in order, on the planning thread.
    grown : callable, optional
        Called before a group is planned; returns how to replace the tiers where a table has become longer than its
        store, else None.
    """

    def __init__(
        self,
        tiers: Tiers,
        *,
        samples: Account | None = None,
        sample_workers: int = 1,
        in_order: bool = True,
        trace: Trace | None = None,
        observe: Callable[[Work], None] | None = None,
        grown: Callable[[], Callable[[Tiers], Tiers] | None] | None = None,
    ):
        self.samples = Account("samples", 1 << 62) if samples is None else samples
        self.trace = Trace() if trace is None else trace
        self._workers, self._in_order = sample_workers, in_order
        self._observe, self._grown = observe, grown
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self.delivered: dict[TableKey, Counters] = {}  # rows of batches that the consumer took, by source
        self._tiers = tiers  # replaced under _lock, by the planning thread of a run or where none is active
        self._replacement: Callable[[Tiers], Tiers] | None = None  # guarded by _lock
        self._active: Run | None = None  # guarded by _lock
        self._closed = False  # guarded by _lock

    @property
    def tiers(self) -> Tiers:
        """What rows come from now."""
        return self._tiers

    def replace(self, make: Callable[[Tiers], Tiers]) -> None:
        """Replace the tiers between two groups, or at once where no run is active; returns when it is done.

        Parameters
        ----------
        make : callable
            Closes the tiers it is given and opens the next ones; called when no group of the old ones is under way. Two
            sets of stores are never open at once, so that the budget holds.
        """
        with self._lock:
            self._replacement = make
            while self._replacement is make and not self._closed:
                if self._active is None:
                    self._apply_replacement()
                else:
                    self._changed.wait()
            if self._closed:
                raise Stopped

    def _apply_replacement(self) -> None:
        with self._lock:
            make, self._replacement = self._replacement, None
            try:
                if make is not None:
                    self._tiers = make(self._tiers)
            finally:
                self._changed.notify_all()

    def _apply_growth(self, make: Callable[[Tiers], Tiers]) -> None:
        with self._lock:
            self._tiers = make(self._tiers)

    def stop_replacing(self) -> None:
        """Refuse replacements from now on, and wake whoever waits for one."""
        with self._lock:
            self._closed, self._replacement = True, None
            self._changed.notify_all()

    def close(self) -> None:
        """Close the tiers. No run may be active."""
        self.stop_replacing()
        self._tiers.close()

    def run(
        self,
        order: Iterable[S],
        sample: Callable[[S], Work],
        batch: Callable[[Fetched], B] = fetched_as_it_is,
        *,
        on_consumer: bool = False,
        name: str = "gids",
    ) -> PipelineRun[B]:
        """Start one pass over ``order``. Nothing of it is left when the run ends or is closed.

        Parameters
        ----------
        order : iterable
            What to sample, piece by piece.
        sample : callable
            Makes one piece into a :class:`Work`.
        batch : callable
            Makes the result into what the consumer wants, on the consumer's thread.
        on_consumer : bool
            Take and sample pieces on the thread that iterates, as far ahead as planning asks for, rather than on threads
            of their own: for samplers with a random state of that thread (DGL keeps one for each).
        name : str
            Beginning of the threads' names.
        """
        run = PipelineRun[B](Run(name))
        self.start(run, order, sample, batch, on_consumer=on_consumer)
        return run

    def start(
        self,
        result: PipelineRun[B],
        order: Iterable[S],
        sample: Callable[[S], Work],
        batch: Callable[[Fetched], B] = fetched_as_it_is,
        *,
        on_consumer: bool = False,
    ) -> None:
        """Start a pass into a run that its owner already holds, so that an interrupt here leaves nothing without owner."""
        run = result.run
        run.at_close(lambda: self._ended(run))
        with self._lock:
            if self._closed:
                raise GidsError("the loader is closed")
            self._active = run
        try:
            pass_ = _Pass(self, run)
            numbered = pass_.sampling(sample)
            works: Iterator[Work] = map(numbered, _Shared(order))
            if on_consumer:
                feed: Channel[Work] = Channel("feed", SAMPLED_AHEAD)
                run.stops(feed)
                samples: Iterator[Work] = Drain(feed)
            elif self._in_order and self._workers > 1:
                # As many as without an order are under way: those that overtook the next one wait in the place of others.
                room = run.permits("sampled ahead", SAMPLED_AHEAD + self._workers)
                taken = map(_in_turn(numbered), _Shared(order, room))
                samples = _InOrder(run.ahead("sample", taken, depth=SAMPLED_AHEAD, workers=self._workers), room)
            else:
                samples = run.ahead("sample", works, depth=SAMPLED_AHEAD, workers=self._workers)
            groups = run.ahead("plan", pass_.plan(samples), depth=self._tiers.groups_in_flight)
            fetched = run.ahead("fetch", pass_.fetch(groups), depth=self._tiers.prefetch)
            if on_consumer:
                fetched = _Feeding(works, feed, run.channels[-1])
            result.batches = map(batch, map(pass_.taken, fetched))
        except BaseException:
            run.close()
            raise

    def _ended(self, run: Run) -> None:
        with self._lock:
            if self._active is run:
                self._active = None
            self._changed.notify_all()


class _Pass:
    """What the stages of one run share."""

    def __init__(self, pipeline: Pipeline, run: Run):
        tiers = pipeline.tiers
        self._pipeline, self._trace = pipeline, pipeline.trace
        self._groups_room = run.permits("groups in flight", _groups_in_flight(tiers))
        self._ready = run.permits("finished batches", tiers.prefetch)
        self._unfinished = _Unfinished()
        self._samples = pipeline.samples
        self._last_bytes = 0  # that the batch sampled last takes while it waits in memory
        self._spill: SpillFile | None = None  # opened by the first batch that waits there
        for store in tiers.stores.values():
            store.group_account.resume()
        run.at_stop(self._stop)
        run.at_close(self._settle)

    def _stop(self) -> None:
        for store in self._pipeline.tiers.stores.values():
            store.group_account.stop()
        self._unfinished.cancel()

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
        def numbered(item: tuple[int, S]) -> Work:
            index, piece = item
            with self._trace.span("sample", batch=index):
                work = sample(piece)
            work.index = index
            return work

        return numbered

    def taken(self, item: Fetched) -> Fetched:
        self._ready.give(1)  # let the next one be made
        delivered = self._pipeline.delivered
        for key, counters in item.counters.items():
            delivered[key] = delivered.get(key, Counters()) + counters
        return item

    def plan(self, samples: Iterator[Work]) -> Iterator[_Group]:
        waiting: deque[Work] = deque()
        active: deque[_Group] = deque()  # begun, and some of their reads are not
        first, more = True, True
        while True:
            if self._pipeline._replacement is not None:
                while active:
                    yield from self._advance(active)
                self._replace(self._pipeline._apply_replacement)
            tiers = self._pipeline.tiers
            # The first batch of an epoch is read as soon as it is sampled: training waits for nothing else.
            wanted = 1 if first else tiers.group_batches + tiers.window
            near = None if tiers.spill is None else tiers.group_batches + NEAR_BATCHES
            more = more and self._fill(waiting, samples, wanted, near)
            if not waiting:
                while active:
                    yield from self._advance(active)
                return
            # After the batches were taken: a feed lets its table grow before it hands over a batch that needs it.
            growth = None if self._pipeline._grown is None else self._pipeline._grown()
            if growth is not None:
                while active:
                    yield from self._advance(active)
                self._replace(partial(self._pipeline._apply_growth, growth))
                tiers = self._pipeline.tiers
            group = self._plan_group(waiting, tiers)
            while active and not all(ticket.fits for ticket in group.tickets.values()):
                yield from self._advance(active)
            self._groups_room.draw(1)
            for ticket in group.tickets.values():
                ticket.begin()
            active.append(group)
            yield from self._advance(active)
            while first and active:
                yield from self._advance(active)
            first = False

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
            if self._pipeline._observe is not None:
                self._pipeline._observe(work)
            waiting.append(work)
            if near is not None and len(waiting) > near:
                self._store(work)
        return True

    def _store(self, work: Work) -> None:
        """Bring what was sampled to disk; which rows it needs stays in memory, for the plans before its own."""
        if self._spill is None:
            assert self._pipeline.tiers.spill is not None
            self._spill = SpillFile(self._pipeline.tiers.spill)
            self._samples.take(self._pipeline.tiers.window_map_bytes)
        before = work.waiting_bytes
        with self._trace.span("spill", batch=work.index):
            work.payload = self._spill.store(work.payload, {id(rows) for rows in work.rows.values()})
        work.size_bytes, work.far = max(0, work.size_bytes - work.payload.length), True
        self._samples.give(before - work.waiting_bytes)

    def _load(self, work: Work) -> None:
        if self._spill is None or not isinstance(work.payload, Spilled):
            return
        length, before = work.payload.length, work.waiting_bytes
        with self._trace.span("load", batch=work.index):
            work.payload = self._spill.load(work.payload)
        work.size_bytes, work.far = work.size_bytes + length, False
        self._samples.take(work.waiting_bytes - before)

    def _replace(self, apply: Callable[[], None]) -> None:
        self._unfinished.wait_until_empty()
        apply()
        tiers = self._pipeline.tiers
        self._groups_room.limit = _groups_in_flight(tiers)
        self._ready.limit = tiers.prefetch

    def _plan_group(self, waiting: deque[Work], tiers: Tiers) -> _Group:
        candidates = list(waiting)[: tiers.group_batches]
        for work in candidates:
            unknown = [str(key) for key in work.rows if key not in tiers.stores]
            if unknown:
                raise GidsError(f"tables of a batch must be among those of the first batch (got {', '.join(unknown)})")
        size = tiers.accumulator.batches([{key: len(rows) for key, rows in work.rows.items()} for work in candidates])
        group = self._unfinished.begin(_Group([waiting.popleft() for _ in range(size)], {}, {}))
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
            tiers.accumulator.learn(key, ticket.counters)
            self._unfinished.planned(group, key, ticket)
        return group

    def _advance(self, active: deque[_Group]) -> Iterator[_Group]:
        """Begin the next reads of all groups, when there is room for them; yield those whose reads have all begun."""
        for key, store in self._pipeline.tiers.stores.items():
            with self._trace.span("start", table=str(key)):
                store.advance()
        while active and all(ticket.underway for ticket in active[0].tickets.values()):
            yield active.popleft()

    def fetch(self, groups: Iterator[_Group]) -> Iterator[Fetched]:
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


def _groups_in_flight(tiers: Tiers) -> int:
    return tiers.sweep_groups + tiers.groups_in_flight - 1


class PipelineRun(Generic[B]):
    """An iterator over the batches of one pass; closes itself at the end, on an error, and when it is dropped."""

    def __init__(self, run: Run):
        self.run = run
        self.batches: Iterator[B] = iter(())
        self._exhausted = False

    def __iter__(self) -> PipelineRun[B]:
        return self

    def __next__(self) -> B:
        if self._exhausted:
            raise StopIteration
        if os.getpid() != self.run.pid:
            raise GidsError(
                f"an iteration that process {self.run.pid} began cannot go on in its forked child {os.getpid()}: "
                "call iter() there"
            )
        if self.run.stopping:
            raise GidsError(f"this iteration has ended: {self.run.reason}")
        try:
            return next(self.batches)
        except StopIteration:
            self._exhausted = True
            self.close()
            raise
        except Stopped:  # closed by another thread
            raise GidsError(f"this iteration has ended: {self.run.reason}") from None
        except BaseException as error:  # a stage's error, or Ctrl-C while waiting
            self.close(f"{type(error).__name__}: {error}")
            raise

    def close(self, reason: str | None = None) -> None:
        """Stop reading, end the threads, forget what was planned and not delivered, and let go of what makes batches."""
        self.run.close(reason)
        self.batches = _Ended()

    def __enter__(self) -> PipelineRun[B]:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __del__(self) -> None:
        if "batches" in self.__dict__:  # an interrupt may come while it is made
            self.close()


class _Ended(Iterator[Any]):
    """What is left of a run that was closed: never a plain end, which a consumer on another thread would take for its own."""

    def __next__(self) -> Any:
        raise Stopped


class _Unfinished:
    """Groups that were planned and not gathered to their end."""

    def __init__(self) -> None:
        self._groups: list[_Group] = []  # guarded by _lock
        self._cancelled = False  # guarded by _lock
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)

    def begin(self, group: _Group) -> _Group:
        with self._lock:
            self._groups.append(group)
        return group

    def planned(self, group: _Group, key: TableKey, ticket: Ticket) -> None:
        with self._lock:
            group.tickets[key] = ticket
            if self._cancelled:
                ticket.cancel()

    def end(self, group: _Group) -> None:
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


class _Feeding(Iterator[Fetched]):
    """Takes finished batches, and meanwhile samples on the thread that iterates whatever planning asks for.

    Parameters
    ----------
    works : iterator of Work
        Samples when it is advanced.
    feed : Channel
        Where planning takes sampled batches from.
    finished : Channel
        Where finished batches come out.
    """

    #: How long to wait before looking whether planning asks for more.
    LOOK_AGAIN_S = 0.005

    def __init__(self, works: Iterator[Work], feed: Channel[Work], finished: Channel[Fetched]):
        self._works, self._feed, self._finished = works, feed, finished
        self._more = True

    def __next__(self) -> Fetched:
        sampled = 0
        while self._more:
            if len(self._feed) < self._feed.max_items and (sampled < SAMPLED_AHEAD or not self._finished.wait_ready(0)):
                self._sample()
                sampled += 1
            elif self._finished.wait_ready(self.LOOK_AGAIN_S):
                break
        return self._finished.get()

    def _sample(self) -> None:
        work = next(self._works, None)
        if work is None:
            self._more = False
            self._feed.end(StopIteration())
        else:
            self._feed.put(work)


class _Shared(Iterator[tuple[int, Any]]):
    """Numbers the items of an iterable and lets several threads take from it, each only where there is room for it."""

    def __init__(self, items: Iterable[Any], room: Account | None = None):
        self._items = enumerate(items)
        self._lock = threading.Lock()
        self._room = room

    def __next__(self) -> tuple[int, Any]:
        if self._room is not None:
            self._room.draw(1)
        with self._lock:
            return next(self._items)


@dataclass(frozen=True)
class _Failed:
    """A piece that could not be sampled: told when its turn comes, after the batches before it."""

    index: int
    error: BaseException


def _in_turn(sample: Callable[[tuple[int, S]], Work]) -> Callable[[tuple[int, S]], Work | _Failed]:
    def sampled(item: tuple[int, S]) -> Work | _Failed:
        try:
            return sample(item)
        except Stopped:
            raise
        except BaseException as error:
            return _Failed(item[0], error)

    return sampled


class _InOrder(Iterator[Work]):
    """Puts batches that several threads sampled back into the order of their pieces."""

    def __init__(self, works: Iterator[Work | _Failed], room: Account):
        self._works, self._room = works, room
        self._early: dict[int, Work | _Failed] = {}
        self._next = 0

    def __next__(self) -> Work:
        while self._next not in self._early:
            work = next(self._works)
            self._early[work.index] = work
        found = self._early.pop(self._next)
        self._next += 1
        self._room.give(1)
        if isinstance(found, _Failed):
            raise found.error
        return found
