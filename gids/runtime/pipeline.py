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
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from gids.budget.parts import SAMPLED_AHEAD
from gids.errors import GidsError
from gids.ledger import Account, Stopped
from gids.runtime.one_pass import Pass
from gids.runtime.sampled import InOrder, Numbered, SampledMeanwhile, in_turn
from gids.runtime.threads import Channel, Drain, Run
from gids.runtime.tiers import Tiers
from gids.runtime.trace import Trace
from gids.runtime.work import Fetched, Work, fetched_as_it_is
from gids.tiers.plan import Counters
from gids.types import TableKey

S = TypeVar("S")
B = TypeVar("B")


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
        self.observe, self.grown = observe, grown
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self.delivered: dict[TableKey, Counters] = {}  # rows of batches that the consumer took, by source
        self._tiers = tiers  # replaced under _lock, by the planning thread of a run or where none is active
        self._change: _Change | None = None  # guarded by _lock
        self._expected_s = 0.0  # guarded by _lock; how long planning waits for a change that is about to be asked for
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
        self._let(_Change(make, drains=True))

    def add_to(self, add: Callable[[Tiers], None]) -> None:
        """Add to the tiers between two plans, while groups are under way; returns when it is done.

        Parameters
        ----------
        add : callable
            Changes nothing for groups that are planned.
        """

        def same(tiers: Tiers) -> Tiers:
            add(tiers)
            return tiers

        self._let(_Change(same, drains=False))

    def expect_change(self, seconds: float) -> None:
        """Let planning wait so long, after the first group of a run, for a change that is about to be asked for.

        Stores that are replaced before they are full cost a moment; draining and refilling them costs a sweep.
        """
        with self._lock:
            self._expected_s = seconds

    def expect_no_change(self) -> None:
        """Let planning wait no more for a change."""
        with self._lock:
            self._expected_s = 0.0
            self._changed.notify_all()

    def wait_for_change(self, run: Run) -> bool:
        """Wait for the change that is expected; returns whether one was."""
        with self._lock:
            if not self._expected_s:
                return False
            until = time.monotonic() + self._expected_s
            while self._expected_s and not (self._change or self._closed or run.stopping):
                if not self._changed.wait(until - time.monotonic()):
                    break
            self._expected_s = 0.0
            return True

    def wake(self) -> None:
        """Let whoever waits here look again."""
        with self._lock:
            self._changed.notify_all()

    def _let(self, change: _Change) -> None:
        with self._lock:
            self._change = change
            self._changed.notify_all()
            while self._change is change and not self._closed:
                if self._active is None:
                    self.apply_change()
                else:
                    self._changed.wait()
            if self._closed:
                raise Stopped

    @property
    def wanted_change(self) -> _Change | None:
        """What somebody waits for to be done to the tiers."""
        return self._change

    def apply_change(self) -> None:
        """Do to the tiers what was asked for, on the planning thread; where it drains them, no group may be under way."""
        with self._lock:
            change, self._change = self._change, None
            self._expected_s = 0.0
            try:
                if change is not None:
                    self._tiers = change.make(self._tiers)
            finally:
                self._changed.notify_all()

    def apply_growth(self, make: Callable[[Tiers], Tiers]) -> None:
        """Replace the tiers because a table has grown, as :meth:`apply_change` does."""
        with self._lock:
            self._tiers = make(self._tiers)

    def stop_replacing(self) -> None:
        """Refuse replacements from now on, and wake whoever waits for one."""
        with self._lock:
            self._closed, self._change = True, None
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
            pass_ = Pass(self, run)
            numbered = pass_.sampling(sample)
            works: Iterator[Work] = map(numbered, Numbered(order))
            if on_consumer:
                feed: Channel[Work] = Channel("feed", SAMPLED_AHEAD)
                run.stops(feed)
                samples: Iterator[Work] = Drain(feed)
            elif self._in_order and self._workers > 1:
                # As many as without an order are under way: those that overtook the next one wait in the place of others.
                room = run.permits("sampled ahead", SAMPLED_AHEAD + self._workers)
                taken = map(in_turn(numbered), Numbered(order, room))
                samples = InOrder(run.ahead("sample", taken, depth=SAMPLED_AHEAD, workers=self._workers), room)
            else:
                samples = run.ahead("sample", works, depth=SAMPLED_AHEAD, workers=self._workers)
            groups = run.ahead("plan", pass_.plan(samples), depth=self._tiers.groups_in_flight)
            fetched = run.ahead("fetch", pass_.fetch(groups), depth=self._tiers.prefetch)
            if on_consumer:
                fetched = SampledMeanwhile(works, feed, run.channels[-1])
            result.batches = map(batch, map(pass_.taken, fetched))
        except BaseException:
            run.close()
            raise

    def _ended(self, run: Run) -> None:
        with self._lock:
            if self._active is run:
                self._active = None
            self._changed.notify_all()


@dataclass(frozen=True, eq=False)
class _Change:
    """What is to be done to the tiers, and whether the groups under way are to be gathered before."""

    make: Callable[[Tiers], Tiers]
    drains: bool


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
