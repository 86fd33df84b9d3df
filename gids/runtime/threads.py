"""Stages that run ahead of their consumer: a named thread each, bounded channels between them, and one way to stop."""

from __future__ import annotations

import _thread
import atexit
import contextlib
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Generic, TypeVar

from gids.errors import GidsError
from gids.ledger import Account, Ledger, Stopped

T = TypeVar("T")

#: How long close() waits for a stage that is inside native code before it says which one did not end.
JOIN_TIMEOUT_S = 30.0


class Channel(Generic[T]):
    """A queue between two stages, bounded in items; both ends wait, and stop together."""

    def __init__(self, name: str, max_items: int):
        self.name, self.max_items = name, max_items
        self._items: deque[T] = deque()  # guarded by _lock
        self._ended: BaseException | None = None  # guarded by _lock; no more items follow those in _items
        self._stopped = False  # guarded by _lock
        # Entered as a lock, not as a condition: an interrupt cannot come between its taking and the block.
        self._lock = threading.RLock()  # reentrant: the collector may give memory back while we hold it
        self._changed = threading.Condition(self._lock)
        self.put_wait_s = self.get_wait_s = 0.0  # each written by one end only
        self.taken = self.depth_sum = 0

    def put(self, item: T) -> None:
        """Add an item; waits while the channel is full."""
        with self._lock:
            begin = time.perf_counter()
            while not self._stopped and len(self._items) >= self.max_items:
                self._changed.wait()
            self.put_wait_s += time.perf_counter() - begin
            if self._stopped:
                raise Stopped
            self._items.append(item)
            self._changed.notify_all()

    def end(self, reason: BaseException) -> None:
        """Say that no item follows: ``reason`` is raised once those already here were taken (StopIteration: the end)."""
        with self._lock:
            undecided = self._ended is None or isinstance(self._ended, StopIteration)
            if undecided and not self._stopped:  # the first error is the one to raise
                self._ended = reason
            self._changed.notify_all()

    def get(self) -> T:
        """Take the oldest item; waits for one, raises the reason of the end when there is none left."""
        with self._lock:
            begin = time.perf_counter()
            depth = len(self._items)
            while not self._is_ready():
                self._changed.wait()
            self.get_wait_s += time.perf_counter() - begin
            if self._stopped:
                raise Stopped
            if not self._items:
                assert self._ended is not None
                raise self._ended
            self.taken += 1
            self.depth_sum += depth
            item = self._items.popleft()
            self._changed.notify_all()
            return item

    def wait_ready(self, timeout_s: float) -> bool:
        """Return whether :meth:`get` would not wait, after waiting for that for a while."""
        with self._lock:
            if not self._is_ready():
                self._changed.wait(timeout_s)
            return self._is_ready()

    def _is_ready(self) -> bool:
        return bool(self._items) or self._ended is not None or self._stopped

    def stop(self) -> None:
        """Drop every item and wake whoever waits at either end."""
        with self._lock:
            self._stopped = True
            self._items.clear()
            self._ended = None  # once raised, its traceback holds whoever took from here
            self._changed.notify_all()

    def __len__(self) -> int:
        return len(self._items)


class Worker(threading.Thread):
    """A daemon thread that an interrupt of the main thread, at any moment, neither loses nor takes for ended.

    Two things of :mod:`threading` are not so. An interrupt inside ``start()`` can leave a thread that waits for ever: it is
    therefore called on a thread of its own, where no handler of a signal ever runs. And before Python 3.13 an interrupt
    inside ``join()`` marks a thread as ended that still runs (https://github.com/python/cpython/issues/90882), so that
    whoever then frees what it uses crashes: a worker says itself when it has ended.

    Parameters
    ----------
    target : callable
        What to run.
    name : str
        Of the thread.
    failed : callable, optional
        Called with the error where the system has no thread for it; by default it is only printed.
    """

    def __init__(self, target: Callable[[], None], name: str, failed: Callable[[GidsError], None] | None = None):
        super().__init__(name=name, daemon=True)
        self._work, self._failed = target, failed
        self.begun = self.ended = False

    def start(self) -> None:
        """Let the thread start; it may not have begun when this returns."""
        try:
            _thread.start_new_thread(self._start_here, ())
        except RuntimeError as error:
            raise self._no_thread(error) from None

    def _start_here(self) -> None:
        try:
            super().start()
        except RuntimeError as error:
            if self._failed is None:
                raise
            self._failed(self._no_thread(error))

    def _no_thread(self, error: RuntimeError) -> GidsError:
        remedy = "raise RLIMIT_NPROC (ulimit -u), or the limit of tasks of the container or cgroup (pids.max)"
        return GidsError(f"thread {self.name} must be started, the system refuses ({error}): {remedy}")

    def run(self) -> None:
        """Run the target."""
        self.begun = True
        try:
            self._work()
        finally:
            del self._work  # with what it uses
            self.ended = True

    def wait_until_ended(self, timeout_s: float) -> bool:
        """Return whether the thread has ended, after waiting for it so long."""
        deadline = time.monotonic() + timeout_s
        if self.begun:
            self.join(timeout_s)
        while not self.ended and time.monotonic() < deadline:  # after a join that was interrupted
            time.sleep(0.001)
        if self.ended:
            self.join(1.0)  # from its last line to where the interpreter counts it as ended
        return self.ended


_LIVE: weakref.WeakSet[Run] = weakref.WeakSet()


class Run:
    """The threads and channels of one pass over a pipeline. Closing it ends all of them, from any state.

    Whoever makes a run keeps it *before* its first stage starts, so that an interrupt at any moment leaves an owner that
    can close it; closing may be interrupted too, and is then done by the next call. Stages hold no reference to the
    object that consumes them, so that dropping the consumer closes the run.

    Parameters
    ----------
    name : str
        Beginning of the threads' names.
    """

    def __init__(self, name: str = "gids"):
        self.name = name
        self.channels: list[Channel[Any]] = []
        self.reason = "it was closed"  # why the run has ended, for whoever still iterates
        self._stoppables: list[Channel[Any] | Account | Ledger] = []
        self._at_stop: list[Callable[[], None]] = []
        self._at_close: list[Callable[[], None]] = []
        self._threads: list[Worker] = []  # each adds itself, once it runs
        self._stopping = False  # a thread that adds itself from here on does nothing
        self._finished = False
        self._closing = threading.RLock()  # one closes at a time; the collector may close while we do
        self.pid = os.getpid()
        _LIVE.add(self)

    @property
    def stopping(self) -> bool:
        """Whether the run is ending."""
        return self._stopping

    def permits(self, name: str, limit: int) -> Account:
        """Make an account of so many items that stops with this run."""
        permits = Account(name, limit)
        self.stops(permits)
        return permits

    def stops(self, stoppable: Channel[Any] | Account | Ledger) -> None:
        """Stop ``stoppable`` when the run ends."""
        self._stoppables.append(stoppable)

    def at_stop(self, action: Callable[[], None]) -> None:
        """Call ``action`` when the run ends, before its threads are waited for: it wakes what they wait on."""
        self._at_stop.append(action)

    def at_close(self, action: Callable[[], None]) -> None:
        """Call ``action`` after all stages have ended; last in, first called. It may be called twice."""
        self._at_close.append(action)

    def ahead(self, stage: str, items: Iterable[T], *, depth: int, workers: int = 1) -> Iterator[T]:
        """Run ``items`` on threads ``<name>-<stage>`` and return an iterator over them, at most ``depth`` ahead.

        With several workers, ``items`` must be an iterator that several threads may advance; items then come in the
        order in which they are ready. An exception ends the stage and is raised to whoever consumes it.
        """
        channel: Channel[T] = Channel(stage, depth)
        self.stops(channel)
        self.channels.append(channel)
        running = [workers]
        lock = threading.Lock()

        def work() -> None:
            # Added before it looks: close() sets the flag before it looks at the list, so one of them sees the other.
            # No lock: an interrupt of the closing thread could leave it taken.
            worker = threading.current_thread()
            assert isinstance(worker, Worker)
            self._threads.append(worker)
            if self._stopping:
                return
            reason: BaseException = StopIteration()
            try:
                for item in items:
                    channel.put(item)
                    del item  # while it waits for the next one, the stage must not keep this one alive
            except Stopped:
                reason = Stopped()  # without the traceback, which would keep the batch in hand alive
            except BaseException as error:
                reason = error
            with lock:
                running[0] -= 1
                last = running[0] == 0
            if last or not isinstance(reason, StopIteration):
                channel.end(reason)
            del reason  # its traceback holds this frame: a cycle, and memory that waits for the garbage collector

        for number in range(workers):
            suffix = f"-{number}" if workers > 1 else ""
            Worker(work, f"{self.name}-{stage}{suffix}", channel.end).start()
        return Drain(channel)

    def close(self, reason: str | None = None) -> None:
        """End every stage and wait until it has ended. Safe to call again, from any thread, and in a forked child."""
        if self._finished or os.getpid() != self.pid:  # a forked child has none of the threads, and locks may be held
            return
        if reason is not None and not self._stopping:
            self.reason = reason
        self._stopping = True
        threads = list(self._threads)
        for stoppable in list(self._stoppables):
            stoppable.stop()
        for action in list(self._at_stop):
            action()
        if threading.current_thread() in threads:
            # The garbage collector ran on one of our own threads: it cannot wait for itself.
            threading.Thread(target=self._finish, args=(threads,), name=f"{self.name}-close", daemon=True).start()
        else:
            self._finish(threads)

    def _finish(self, threads: list[Worker]) -> None:
        late = [thread.name for thread in threads if not thread.wait_until_ended(JOIN_TIMEOUT_S)]
        if late:
            # What they use stays open: closing it under them would crash, and the next close() tries again.
            raise GidsError(f"threads did not end within {JOIN_TIMEOUT_S:.0f} s: {', '.join(late)}")
        with self._closing:
            while self._at_close:
                self._at_close[-1]()
                self._at_close.pop()
            self._finished = True
            self._at_stop.clear()  # whoever still holds the run holds nothing of what it used
            self._stoppables.clear()

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class Drain(Iterator[T]):
    """Takes from a channel. No generator: one that waits for its next call would keep what it gave alive."""

    def __init__(self, channel: Channel[T]):
        self._channel = channel

    def __next__(self) -> T:
        return self._channel.get()


@atexit.register
def _close_all() -> None:
    # Stage threads are daemons so that a forgotten run cannot keep the interpreter alive; end them in good order.
    for run in list(_LIVE):
        with contextlib.suppress(GidsError):
            run.close()
