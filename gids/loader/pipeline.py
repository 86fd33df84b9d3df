"""sample → plan → fetch on threads that run ahead: the machine under every loader of gids, whoever samples.

The pipeline knows tables and rows, not graphs. What it is given is an order of work and a function that samples one
piece of it; what it gives back is the sampled piece with the rows it asked for:

>>> def sample(seeds):
...     input_nodes, output_nodes, blocks = some_sampler(seeds)
...     return Work((input_nodes, output_nodes, blocks), rows={"feat": input_nodes})
>>> with Pipeline({"feat": store}).run(order, sample) as batches:
...     for work, rows in batches:
...         train(work.payload, rows["feat"])
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import torch

from gids.errors import ConfigError
from gids.loader.stages import Permits, Run, Stopped
from gids.loader.trace import Trace

TableKey = Hashable

#: Sampled batches between the sampling and the planning thread; the window itself waits with the planner.
SAMPLED_AHEAD = 2
S = TypeVar("S")
B = TypeVar("B")


class Pending(Protocol):
    """A group of batches whose disk rows are being read."""

    def cancel(self) -> None:
        """Read no more; gathering from the group fails from now on."""


class Store(Protocol):
    """Rows of one table, through cache, host buffer and disk. One thread plans and reads, another gathers."""

    @property
    def group_bytes(self) -> int:
        """Memory for the rows of all groups that are being read or gathered."""

    def plan(self, batches: list[torch.Tensor], lookahead: list[torch.Tensor]) -> Any:
        """Decide where every row of a group comes from; moves no bytes."""

    def fits(self, plan: Any) -> bool:
        """Whether the group may begin beside those that are not read to their end, and none of them will wait for room."""

    def begin(self, plan: Any) -> Pending:
        """Let the group take part in the next steps; takes no memory for rows yet."""

    def step_bytes(self) -> int:
        """Memory that the next :meth:`step` takes."""

    def step(self) -> None:
        """Begin to read the next part of what the groups need."""

    def underway(self, pending: Any) -> bool:
        """Whether every read of the group has begun."""

    def gather(self, pending: Any, batch: int) -> torch.Tensor:
        """Give the rows of one batch of the group, in order; waits for the disk."""

    def freed(self, pending: Any) -> int:
        """Memory that a group gave back with its last batch."""

    def reset(self) -> None:
        """Forget what was planned and cached, after a run that did not gather all it had planned."""


@dataclass
class Work:
    """One mini-batch, sampled.

    Attributes
    ----------
    payload : object
        Whatever the sampler made; comes back untouched.
    rows : dict of table key to Tensor
        int64, unique rows wanted of each table. Tables that are not named are not read for this batch.
    size_bytes : int
        Memory that the payload holds, for the accounting.
    index : int
        Position of the batch in the order, as counted by the pipeline.
    """

    payload: Any
    rows: Mapping[TableKey, torch.Tensor]
    size_bytes: int = 0
    index: int = 0


class Fetched(NamedTuple):
    """A sampled mini-batch and the rows it asked for: ``rows[key][i]`` is row ``work.rows[key][i]``."""

    work: Work
    rows: dict[TableKey, torch.Tensor]


def fetched_as_it_is(fetched: Fetched) -> Any:
    """Give what was fetched without change."""
    return fetched


class Grouping(Protocol):
    """Decides how many of the waiting batches are planned and read together."""

    def size(self, waiting: list[Work]) -> int:
        """Give a number from 1 to ``len(waiting)``."""


@dataclass(frozen=True)
class FixedGroups:
    """Groups of ``batches`` batches."""

    batches: int = 4

    def size(self, waiting: list[Work]) -> int:
        """Give the fixed number, or all there are at the end of an epoch."""
        return min(self.batches, len(waiting))


@dataclass(frozen=True)
class PipelineOptions:
    """How far the stages run ahead.

    Attributes
    ----------
    window : int
        Batches sampled beyond the group that is being planned; the cache policy sees their rows.
    max_group : int
        Most batches in one group.
    rotation : int
        Groups that share each read: a group's rows are read in so many steps, each for all groups under way.
    groups_in_flight : int
        Groups that are read to their end, or about to be, and wait to be gathered.
    prefetch : int
        Batches that are finished, or being made, while the consumer works on another.
    in_order : bool
        Deliver batches in the order of the epoch. If not, in the order in which they were sampled (GNNDrive §4.3).
    sample_workers : int
        Sampling threads; more than one needs ``in_order=False``.
    sample_bytes : int or None
        Bound for the memory of sampled batches that wait to be planned.
    """

    window: int = 16
    max_group: int = 8
    rotation: int = 1
    groups_in_flight: int = 2
    prefetch: int = 2
    in_order: bool = True
    sample_workers: int = 1
    sample_bytes: int | None = None

    def __post_init__(self) -> None:
        rules = {"window": 0, "max_group": 1, "rotation": 1, "groups_in_flight": 1, "prefetch": 1, "sample_workers": 1}
        for name, least in rules.items():
            if getattr(self, name) < least:
                raise ConfigError(f"{name} must be at least {least} (got {getattr(self, name)})")
        if self.in_order and self.sample_workers > 1:
            raise ConfigError(f"sample_workers must be 1 unless in_order=False (got {self.sample_workers})")


@dataclass
class _Group:
    works: list[Work]
    pending: dict[TableKey, Pending]
    position: dict[TableKey, dict[int, int]]  # table -> index in works -> batch number in that table's plan


@dataclass(frozen=True)
class _Room:
    """What groups in flight may take: how many groups, and how many bytes of each table."""

    groups: Permits
    tables: dict[TableKey, Permits]


@dataclass
class Pipeline:
    """Several tables' stores behind one sampler.

    Attributes
    ----------
    stores : mapping of table key to Store
        One per table; every key of :attr:`Work.rows` must be here.
    options : PipelineOptions
        How far to run ahead.
    grouping : Grouping
        How many batches to read together.
    trace : Trace
        Where spans are recorded.
    """

    stores: Mapping[TableKey, Store]
    options: PipelineOptions = field(default_factory=PipelineOptions)
    grouping: Grouping = field(default_factory=FixedGroups)
    trace: Trace = field(default_factory=Trace)

    def run(
        self,
        order: Iterable[S],
        sample: Callable[[S], Work],
        batch: Callable[[Fetched], B] = fetched_as_it_is,
        name: str = "gids",
    ) -> PipelineRun[B]:
        """Start one pass over ``order``. Nothing of it is left when the run ends or is closed.

        Parameters
        ----------
        order : iterable
            What to sample, piece by piece; taken on the sampling thread.
        sample : callable
            Makes one piece into a :class:`Work`.
        batch : callable
            Makes the result into what the consumer wants, on the consumer's thread.
        name : str
            Beginning of the threads' names.
        """
        options, run = self.options, Run(name)
        room = _Room(
            run.permits(options.rotation + options.groups_in_flight - 1),
            {key: run.permits(store.group_bytes) for key, store in self.stores.items()},
        )
        unfinished = _Unfinished(self.stores)
        run.at_stop(unfinished.cancel)
        run.at_close(unfinished.settle)

        seeds = _Shared(order)
        samples = run.ahead(
            "sample",
            map(self._sampling(sample), seeds),
            depth=SAMPLED_AHEAD,
            max_bytes=options.sample_bytes,
            size_bytes=lambda work: work.size_bytes,
            workers=options.sample_workers,
        )
        plans = run.ahead("plan", self._plan(samples, room, unfinished), depth=options.groups_in_flight)
        ready = run.permits(options.prefetch)
        fetched = run.ahead("fetch", self._fetch(plans, ready, room, unfinished), depth=options.prefetch)

        def taken(item: Fetched) -> Fetched:
            ready.release()  # let the next one be made
            return item

        return PipelineRun(run, map(batch, map(taken, fetched)))

    def _sampling(self, sample: Callable[[S], Work]) -> Callable[[tuple[int, S]], Work]:
        def numbered(item: tuple[int, S]) -> Work:
            index, seeds = item
            with self.trace.span("sample", batch=index):
                work = sample(seeds)
            work.index = index
            return work

        return numbered

    def _plan(self, samples: Iterator[Work], room: _Room, unfinished: _Unfinished) -> Iterator[_Group]:
        waiting: deque[Work] = deque()
        active: deque[_Group] = deque()  # begun, and some of their reads are not
        more = True
        while True:
            while more and len(waiting) < self.options.max_group + self.options.window:
                work = next(samples, None)
                if work is None:
                    more = False
                else:
                    waiting.append(work)
            if not waiting:
                while active:
                    yield from self._step(active, room)
                return
            works = [waiting.popleft() for _ in range(self.grouping.size(list(waiting)[: self.options.max_group]))]
            lookahead = list(waiting)[: self.options.window]
            group = unfinished.begin(_Group(works, {}, {}))
            plans = {key: self._plan_table(key, group, lookahead) for key in self.stores}
            while active and not all(self.stores[key].fits(plan) for key, plan in plans.items()):
                yield from self._step(active, room)
            room.groups.acquire()
            for key, plan in plans.items():
                unfinished.started(group, key, self.stores[key].begin(plan))
            active.append(group)
            yield from self._step(active, room)

    def _plan_table(self, key: TableKey, group: _Group, lookahead: list[Work]) -> Any:
        wanted = [number for number, work in enumerate(group.works) if key in work.rows]
        group.position[key] = {number: batch for batch, number in enumerate(wanted)}
        with self.trace.span("plan", table=str(key), batches=len(group.works), first=group.works[0].index):
            return self.stores[key].plan(
                [group.works[number].rows[key] for number in wanted],
                [work.rows[key] for work in lookahead if key in work.rows],
            )

    def _step(self, active: deque[_Group], room: _Room) -> Iterator[_Group]:
        """Begin to read the next part for all groups, when there is room for it; give those whose reads have all begun."""
        for key, store in self.stores.items():
            size_bytes = store.step_bytes()
            room.tables[key].acquire(size_bytes)
            with self.trace.span("start", table=str(key), bytes=size_bytes):
                store.step()
        while active and all(self.stores[key].underway(pending) for key, pending in active[0].pending.items()):
            yield active.popleft()

    def _fetch(
        self, groups: Iterator[_Group], ready: Permits, room: _Room, unfinished: _Unfinished
    ) -> Iterator[Fetched]:
        for group in groups:
            works, last = deque(group.works), len(group.works) - 1
            group.works.clear()  # what was delivered must not be kept alive by what was not
            for number in range(last + 1):
                work = works.popleft()
                ready.acquire()  # before its memory is taken: no batch is finished that has no place to wait
                rows = {}
                for key in work.rows:
                    with self.trace.span("fetch", batch=work.index, table=str(key), rows=len(work.rows[key])):
                        pending, batch = group.pending[key], group.position[key][number]
                        rows[key] = self.stores[key].gather(pending, batch)
                        if batch == len(group.position[key]) - 1:
                            room.tables[key].release(self.stores[key].freed(pending))
                if number == last:
                    unfinished.end(group)
                    room.groups.release()
                yield Fetched(work, rows)
                del work, rows


class PipelineRun(Generic[B]):
    """An iterator over the batches of one pass; closes itself at the end, on an error, and when it is dropped."""

    def __init__(self, run: Run, batches: Iterator[B]):
        self.run = run
        self._batches = batches

    def __iter__(self) -> PipelineRun[B]:
        return self

    def __next__(self) -> B:
        try:
            return next(self._batches)
        except Stopped:  # closed by someone else
            raise StopIteration from None
        except BaseException:  # the end, a stage's error, or Ctrl-C while waiting
            self.close()
            raise

    def close(self) -> None:
        """Stop reading, end the threads, forget what was planned and not delivered, and let go of what makes batches."""
        self.run.close()
        self._batches = iter(())

    def __enter__(self) -> PipelineRun[B]:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()


class _Unfinished:
    """Groups that were started and not gathered to their end; settles the stores when a run ends with some left."""

    def __init__(self, stores: Mapping[TableKey, Store]):
        self._stores = stores
        self._groups: list[_Group] = []  # guarded by _lock
        self._lock = threading.Lock()
        self._cancelled = False  # guarded by _lock

    def begin(self, group: _Group) -> _Group:
        with self._lock:
            self._groups.append(group)
        return group

    def started(self, group: _Group, key: TableKey, pending: Pending) -> None:
        with self._lock:
            group.pending[key] = pending
            if self._cancelled:
                pending.cancel()

    def end(self, group: _Group) -> None:
        with self._lock:
            self._groups.remove(group)

    def cancel(self) -> None:
        with self._lock:
            self._cancelled = True
            for group in self._groups:
                for pending in group.pending.values():
                    pending.cancel()

    def settle(self) -> None:
        """After all stages have ended: without this the stores would believe admissions that never happened."""
        if self._groups:
            self._groups.clear()
            for store in self._stores.values():
                store.reset()


class _Shared(Iterator[tuple[int, Any]]):
    """Numbers the items of an iterable and lets several threads take from it."""

    def __init__(self, items: Iterable[Any]):
        self._items = enumerate(items)
        self._lock = threading.Lock()

    def __next__(self) -> tuple[int, Any]:
        with self._lock:
            return next(self._items)
