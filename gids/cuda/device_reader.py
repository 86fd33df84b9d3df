"""Rows that reach device memory in two steps: merged reads into a staging region, then a kernel that unpacks them."""

from __future__ import annotations

import abc
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from gids.cuda.array import DeviceArray
from gids.cuda.session import CudaSession, Session
from gids.errors import StorageError
from gids.storage.plan import ReadPlan
from gids.table import RowTable

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Round:
    """Reads that fit in the staging region together, and the pieces of rows in them.

    Attributes
    ----------
    file, offset, length : int64[reads]
        What to read.
    target : int64[reads]
        Where in the region.
    piece_from, piece_to, piece_bytes : int64[pieces]
        Bytes from this place of the region go to that place, counted from where the destination begins.
    """

    file: Ints
    offset: Ints
    length: Ints
    target: Ints
    piece_from: Ints
    piece_to: Ints
    piece_bytes: Ints

    @property
    def region_bytes(self) -> int:
        """Bytes of the region that the reads take."""
        return int((self.target + self.length).max(initial=0))


@dataclass(frozen=True)
class Prepared:
    """Reads for some rows before it is known where the rows go.

    Attributes
    ----------
    plan : ReadPlan
        The reads.
    run_begin, run_length : int64[runs]
        Rows ``plan.rows[begin : begin + length]`` go straight to their places if those are adjacent, ...
    unit : int
        ... and begin at a multiple of so many slots; lengths are multiples of it too.
    """

    plan: ReadPlan
    run_begin: Ints
    run_length: Ints
    unit: int = 1


def pack_rounds(table: RowTable, plan: ReadPlan, which: Ints, to: Ints, region_bytes: int, align: int) -> list[Round]:
    """Lay the reads ``which`` of a plan one behind the other, in as many rounds as the region needs.

    Parameters
    ----------
    table, plan
        What :func:`gids.storage.plan_reads` was given, and what it gave.
    which : int64 array
        Numbers of reads, ascending.
    to : int64[rows]
        Byte of the destination at which each of the rows asked for begins.
    region_bytes : int
        Size of the region; at least the longest read.
    align : int
        Reads begin at multiples of this in the region.
    """
    slots = -(-plan.length[which] // align) * align
    ends = np.cumsum(slots)
    rounds, begin = [], 0
    while begin < len(which):
        base = int(ends[begin] - slots[begin])
        end = max(int(np.searchsorted(ends, base + region_bytes, side="right")), begin + 1)
        reads, target = which[begin:end], ends[begin:end] - slots[begin:end] - base
        count = plan.count[reads]
        number = np.repeat(np.arange(len(reads)), count)
        order = np.arange(len(number)) + np.repeat(plan.first[reads] - (np.cumsum(count) - count), count)
        row_begin = plan.row_begin[reads][number]
        _, at = table.places(plan.rows[order])
        rounds.append(
            Round(
                plan.file[reads],
                plan.offset[reads],
                plan.length[reads],
                target,
                target[number] + at + row_begin - plan.offset[reads][number],
                to[plan.positions[order]] + row_begin,
                plan.row_end[reads][number] - row_begin,
            )
        )
        begin = end
    return rounds


class Reading(Protocol):
    """Reads that were begun: exactly one of the two calls ends them."""

    def wait(self) -> None:
        """Wait; raise StorageError for the first read that failed or was short, when all have ended."""

    def abandon(self) -> None:
        """Begin nothing more, and wait for what is in flight without looking at the outcome."""


class DeviceRead:
    """A group's rows under way. The destination must live until :meth:`wait` or :meth:`cancel` has returned.

    One thread waits while another may cancel.
    """

    def __init__(self, reader: DeviceReader, out: DeviceArray, rounds: Sequence[Round], direct: Reading | None):
        self._reader, self._out, self._rounds, self._direct = reader, out, list(rounds), direct
        self._lock = threading.Lock()
        self._region: DeviceArray | None = None  # guarded by _lock
        self._running: Reading | None = None  # guarded by _lock; the first of _rounds, once it was begun
        self._cancelled = False

    def start(self) -> DeviceRead:
        """Begin the first round, if there is room for it now."""
        with self._lock:
            try:
                if self._rounds:
                    self._region = self._reader.take_region(self._rounds[0].region_bytes, wait=False)
                    if self._region is not None:
                        self._running = self._reader.begin(self._rounds[0], self._region)
            except BaseException:
                self._end()
                raise
        return self

    def wait(self) -> None:
        """Return when every row has arrived; raises what went wrong, after all that was begun has ended."""
        with self._lock:
            try:
                direct, self._direct = self._direct, None
                if direct is not None:
                    direct.wait()
                while self._rounds and not self._cancelled:
                    self._step()
                if self._cancelled:
                    raise StorageError("the read was cancelled", self._reader.table.name)
            finally:
                self._end()

    def _step(self) -> None:
        reader, current = self._reader, self._rounds[0]
        if self._region is None or self._region.nbytes < current.region_bytes:
            self._give_back()
            self._region = reader.take_region(current.region_bytes, wait=True)
        assert self._region is not None
        running = reader.begin(current, self._region) if self._running is None else self._running
        self._running = None
        running.wait()
        unpack(reader.session, current, self._region, self._out)
        reader.session.synchronize()  # the region is read into again
        self._rounds.pop(0)

    def cancel(self) -> None:
        """Begin nothing more, and wait for what was begun: no engine can take a read back."""
        self._cancelled = True
        with self._lock:
            self._end()

    def _end(self) -> None:
        for reading in (self._direct, self._running):
            if reading is not None:
                reading.abandon()
        self._direct = self._running = None
        self._rounds = []
        self._give_back()

    def _give_back(self) -> None:
        region, self._region = self._region, None
        if region is not None:
            self._reader.give_region(region)


class DeviceReader(abc.ABC):
    """A reader of one table whose rows land in device memory."""

    table: RowTable
    session: CudaSession
    notes: str  #: What is to be known of how it reads; empty when nothing.

    @abc.abstractmethod
    def prepare(self, rows: Ints) -> Prepared:
        """Plan the reads for some rows, sorted and unique."""

    @abc.abstractmethod
    def submit(self, prepared: Prepared, out: DeviceArray, to: Ints) -> DeviceRead:
        """Start reading; the ``i``-th of the rows asked for begins at byte ``to[i]``, counted from ``out``."""

    @abc.abstractmethod
    def attach(self, memory: DeviceArray) -> None:
        """Take note of memory that rows will be read into for as long as the reader is open."""

    @abc.abstractmethod
    def stats(self) -> dict[str, int]:
        """Return counts since the opening: at least ``reads`` and ``bytes_read``."""

    @abc.abstractmethod
    def close(self) -> None:
        """Release everything."""

    @abc.abstractmethod
    def take_region(self, count: int, *, wait: bool) -> DeviceArray | None:
        """Return a staging region of at least ``count`` bytes; None where there is none now and ``wait`` is False."""

    @abc.abstractmethod
    def give_region(self, region: DeviceArray) -> None:
        """Take a region back; nothing may use it any more."""

    @abc.abstractmethod
    def begin(self, reads: Round, region: DeviceArray) -> Reading:
        """Start the reads of a round."""


def unpack(session: Session, reads: Round, region: DeviceArray, out: DeviceArray) -> None:
    """Queue the kernel that moves the pieces of a round to their places."""
    count = len(reads.piece_from)
    if count:
        arrays = [session.upload(part) for part in (reads.piece_from, reads.piece_to, reads.piece_bytes)]
        session.launch("unpack_pieces", count, region, *arrays, np.int64(count), out, lanes=32)
