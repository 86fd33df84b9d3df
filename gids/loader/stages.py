"""Stages that run ahead of their consumer: a named thread each, bounded channels between them, and one way to stop."""

from __future__ import annotations

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

T = TypeVar("T")

#: How long close() waits for a stage that is inside native code before it says which one did not end.
JOIN_TIMEOUT_S = 30.0


class Stopped(Exception):
    """Raised inside a stage that waits when its run is stopped."""


class Channel(Generic[T]):
    """A queue between two stages, bounded in items and in bytes; both ends wait, and stop together.

    One item is always accepted by an empty channel, however large, so a bound in bytes can never block for ever.
    """

    def __init__(self, name: str, max_items: int, max_bytes: int | None = None):
        self.name, self.max_items, self.max_bytes = name, max_items, max_bytes
        self._items: deque[tuple[T, int]] = deque()  # guarded by _changed
        self._bytes = 0  # guarded by _changed; sum over _items
        self._ended: BaseException | None = None  # guarded by _changed; no more items follow those in _items
        self._stopped = False  # guarded by _changed
        self._changed = threading.Condition()
        self.put_wait_s = self.get_wait_s = 0.0  # each written by one end only
        self.taken = self.depth_sum = 0

    def put(self, item: T, size_bytes: int = 0) -> None:
        """Add an item; waits while the channel is full."""
        with self._changed:
            begin = time.perf_counter()
            while not self._stopped and self._full(size_bytes):
                self._changed.wait()
            self.put_wait_s += time.perf_counter() - begin
            if self._stopped:
                raise Stopped
            self._items.append((item, size_bytes))
            self._bytes += size_bytes
            self._changed.notify_all()

    def _full(self, size_bytes: int) -> bool:
        if not self._items:
            return False
        over = self.max_bytes is not None and self._bytes + size_bytes > self.max_bytes
        return over or len(self._items) >= self.max_items

    def end(self, reason: BaseException) -> None:
        """Say that no item follows: ``reason`` is raised once those already here were taken (StopIteration: the end)."""
        with self._changed:
            untold = self._ended is None or isinstance(self._ended, StopIteration)
            if untold and not self._stopped:  # the first error is the one to tell
                self._ended = reason
            self._changed.notify_all()

    def get(self) -> T:
        """Take the oldest item; waits for one, raises the reason of the end when there is none left."""
        with self._changed:
            begin = time.perf_counter()
            self.taken += 1
            self.depth_sum += len(self._items)
            while not self._items and self._ended is None and not self._stopped:
                self._changed.wait()
            self.get_wait_s += time.perf_counter() - begin
            if self._stopped:
                raise Stopped
            if not self._items:
                assert self._ended is not None
                raise self._ended
            item, size_bytes = self._items.popleft()
            self._bytes -= size_bytes
            self._changed.notify_all()
            return item

    def stop(self) -> None:
        """Drop every item and wake whoever waits at either end."""
        with self._changed:
            self._stopped = True
            self._items.clear()
            self._bytes = 0
            self._ended = None  # once raised, its traceback holds whoever took from here
            self._changed.notify_all()

    def __len__(self) -> int:
        return len(self._items)


class Permits:
    """An amount (of groups, of bytes) that may be in use at once; acquiring waits, and can be stopped.

    Where nothing is in use, any amount is given: a bound that is too small slows down and never blocks for ever.
    """

    def __init__(self, limit: int):
        self.limit = limit
        self._used = 0  # guarded by _changed
        self._stopped = False  # guarded by _changed
        self._changed = threading.Condition()
        self.wait_s = 0.0
        self.peak = 0

    def acquire(self, amount: int = 1) -> None:
        """Take an amount, waiting until it fits."""
        with self._changed:
            begin = time.perf_counter()
            while self._used and self._used + amount > self.limit and not self._stopped:
                self._changed.wait()
            self.wait_s += time.perf_counter() - begin
            if self._stopped:
                raise Stopped
            self._used += amount
            self.peak = max(self.peak, self._used)

    def release(self, amount: int = 1) -> None:
        """Give an amount back."""
        with self._changed:
            self._used -= amount
            self._changed.notify_all()

    def stop(self) -> None:
        """Wake whoever waits."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()


_LIVE: weakref.WeakSet[Run] = weakref.WeakSet()


class Run:
    """The threads and channels of one pass over a pipeline. Closing it ends all of them, from any state.

    Stages hold no reference to the object that consumes them, so that dropping the consumer closes the run.
    """

    def __init__(self, name: str = "gids"):
        self.name = name
        self.channels: list[Channel[Any]] = []
        self._stoppables: list[Channel[Any] | Permits] = []
        self._threads: list[threading.Thread] = []
        self._at_stop: list[Callable[[], None]] = []
        self._at_close: list[Callable[[], None]] = []
        self._pid = os.getpid()
        self._closed = False
        _LIVE.add(self)

    def permits(self, limit: int) -> Permits:
        """Make permits that stop with this run."""
        permits = Permits(limit)
        self._stoppables.append(permits)
        return permits

    def at_stop(self, action: Callable[[], None]) -> None:
        """Call ``action`` when the run is told to end, before its stages are waited for: it wakes what they wait on."""
        self._at_stop.append(action)

    def at_close(self, action: Callable[[], None]) -> None:
        """Call ``action`` after all stages have ended; last in, first called."""
        self._at_close.append(action)

    def ahead(
        self,
        stage: str,
        items: Iterable[T],
        *,
        depth: int,
        max_bytes: int | None = None,
        size_bytes: Callable[[T], int] | None = None,
        workers: int = 1,
    ) -> Iterator[T]:
        """Run ``items`` on threads ``<name>-<stage>`` and give an iterator over them, at most ``depth`` ahead.

        With several workers, ``items`` must be an iterator that several threads may advance; items then come in the
        order in which they are ready. An exception ends the stage and is raised to whoever consumes it.
        """
        channel: Channel[T] = Channel(stage, depth, max_bytes)
        self.channels.append(channel)
        self._stoppables.append(channel)
        running = [workers]
        lock = threading.Lock()

        def work() -> None:
            reason: BaseException = StopIteration()
            try:
                for item in items:
                    channel.put(item, size_bytes(item) if size_bytes else 0)
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
            thread = threading.Thread(target=work, name=f"{self.name}-{stage}{suffix}", daemon=True)
            self._threads.append(thread)
            thread.start()
        return _Drain(channel)

    def close(self) -> None:
        """End every stage and wait until it has ended. Safe to call twice, and in a forked child."""
        if self._closed:
            return
        self._closed = True
        if os.getpid() != self._pid:  # a forked child has none of the threads, and their locks may be held for ever
            return
        for stoppable in self._stoppables:
            stoppable.stop()
        for action in self._at_stop:
            action()
        if threading.current_thread() in self._threads:
            # The garbage collector ran on one of our own threads: it cannot wait for itself.
            threading.Thread(target=self._finish, name=f"{self.name}-close", daemon=True).start()
        else:
            self._finish()

    def _finish(self) -> None:
        late = []
        for thread in self._threads:
            thread.join(JOIN_TIMEOUT_S)
            if thread.is_alive():
                late.append(thread.name)
        for action in reversed(self._at_close):
            action()
        self._at_close.clear()
        if late:
            raise GidsError(f"threads did not end within {JOIN_TIMEOUT_S:.0f} s: {', '.join(late)}")

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class _Drain(Iterator[T]):
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
