"""Numbers that only the device knows while a batch is sampled, in one array: the host waits once for all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gids.cuda.array import DeviceArray
from gids.cuda.session import Session

#: Numbers of one array; a batch of many relations takes several.
CHUNK = 256


@dataclass(frozen=True)
class Count:
    """A number on the device.

    Attributes
    ----------
    array : int64[1]
        Where kernels find it.
    bound : int
        The most that it can be: what memory and grids are sized by.
    index : int
        Which of its :class:`Counts` it is.
    """

    array: DeviceArray
    bound: int
    index: int

    @property
    def flag(self) -> DeviceArray:
        """The number as uint32[1], for kernels that set a flag."""
        return self.array.view((1,), np.uint32)


class Counts:
    """Numbers of one batch, zero at first. Each is written by the launch that follows its making, once.

    Parameters
    ----------
    session : Session
        Where.
    known : sequence of int
        Numbers that the host brings: :attr:`given`.
    """

    def __init__(self, session: Session, known: Sequence[int] = ()):
        self._session = session
        first = np.zeros(max(CHUNK, len(known)), np.int64)
        first[: len(known)] = known
        self._chunks = [session.upload(first)]
        self._room = len(first)
        self._made: list[DeviceArray] = []
        self._read: npt.NDArray[np.int64] = np.empty(0, np.int64)
        self.given = [self.new(value) for value in known]

    def new(self, bound: int) -> Count:
        """Return a number that the next launch will write, at most ``bound``."""
        if not self._room:
            self._chunks.append(self._session.upload(np.zeros(CHUNK, np.int64)))
            self._room = CHUNK
        at = len(self._chunks[-1]) - self._room
        self._room -= 1
        self._made.append(self._chunks[-1][at : at + 1])
        return Count(self._made[-1], bound, len(self._made) - 1)

    def read(self, count: Count) -> int:
        """Return a number; waits for all that was queued, if the host has not read it before."""
        if count.index >= len(self._read):
            last = len(self._chunks[-1]) - self._room
            parts = self._session.download_all([*self._chunks[:-1], self._chunks[-1][:last]])
            self._read = np.concatenate(parts)
        return int(self._read[count.index])

    def exact(self, count: Count) -> Count:
        """Return the number with itself as its bound. Waits as :meth:`read`."""
        return Count(count.array, self.read(count), count.index)
