"""Sampled batches in the order of their pieces: by several threads, or on the thread that trains."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

from gids.budget.parts import SAMPLED_AHEAD
from gids.ledger import Account, Stopped
from gids.runtime.threads import Channel
from gids.runtime.work import Fetched, Work

S = TypeVar("S")


class SampledMeanwhile(Iterator[Fetched]):
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


class Numbered(Iterator[tuple[int, Any]]):
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
    """A piece that could not be sampled: raised when its turn comes, after the batches before it."""

    index: int
    error: BaseException


def in_turn(sample: Callable[[tuple[int, S]], Work]) -> Callable[[tuple[int, S]], Work | _Failed]:
    """Return a function that samples, or returns the error, for :class:`InOrder` to raise."""

    def sampled(item: tuple[int, S]) -> Work | _Failed:
        try:
            return sample(item)
        except Stopped:
            raise
        except BaseException as error:
            return _Failed(item[0], error)

    return sampled


class InOrder(Iterator[Work]):
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
