"""Reads to device memory by way of pinned staging: of a fixed size, pinned once, copied chunk by chunk as reads finish.

A thread keeps chunks of rows under way: while some are read, others are copied, and the next are asked for as soon as a
copy has ended. Groups follow each other without a gap.
"""

from __future__ import annotations

import functools
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from gids._native import Signal
from gids.cuda.array import DeviceArray
from gids.cuda.arrivals import wait_for_post
from gids.cuda.session import CudaSession
from gids.cuda.transfer import Pinned, StagingBuffer
from gids.errors import GidsError
from gids.storage import PendingRead, RowReader
from gids.table import RowTable

Ints = npt.NDArray[np.int64]

#: Bytes of a chunk, where staging has room for several: some thousand reads, or a third of a millisecond of the link.
CHUNK_BYTES = 8 << 20
#: Chunks that staging should have at least: one is read, one is copied, and one of each to follow.
LEAST_CHUNKS = 4


def chunk_rows(staging_bytes: int, row_bytes: int) -> int:
    """Return how many rows a chunk of such staging has."""
    return max(1, min(CHUNK_BYTES, staging_bytes // LEAST_CHUNKS) // row_bytes)


class _Chunk:
    """Rows of staging. Free, or a read's until its copy has ended."""

    def __init__(self, values: torch.Tensor, address: int):
        self.values, self.address = values, address
        self.signal = Signal()
        self.begin = self.end = 0  # of the read's rows
        self.read: StagedRead | None = None
        self.pending: PendingRead | None = None
        self.copied: Any = None  # event behind its copy


class StagedRead:
    """Rows on their way. The destination must live until :meth:`wait` or :meth:`cancel` has returned."""

    def __init__(self, rows: Ints, to: DeviceArray):
        self.rows, self.to = rows, to
        self.asked = 0  # rows that were asked for; of the reading thread alone
        self._copied = 0  # rows whose copy is queued
        self._event: Any = None  # behind the copy of all
        self._error: BaseException | None = None
        self._underway: list[PendingRead] = []
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)  # guards all that begins with an underscore

    @property
    def failed(self) -> bool:
        """Whether no more of it is to be read."""
        return self._error is not None

    def began(self, pending: PendingRead) -> None:
        """Take note of a chunk that is read; if the whole was cancelled meanwhile, it ends here."""
        with self._lock:
            if self._error is None:
                self._underway.append(pending)
                return
        pending.cancel()

    def copied(self, pending: PendingRead, rows: int, event: Any) -> None:
        """Take note of a chunk whose copy is queued."""
        with self._lock:
            if pending in self._underway:
                self._underway.remove(pending)
            self._copied += rows
            if self._copied == len(self.rows):
                self._event = event
                self._changed.notify_all()

    def fail(self, error: BaseException) -> None:
        """End it: what is under way is cancelled, and :meth:`wait` raises the first error."""
        with self._lock:
            if self._error is None:
                self._error = error
            underway, self._underway = self._underway, []
            self._changed.notify_all()
        for pending in underway:
            pending.cancel()

    def wait(self) -> Any:
        """Return the event behind the copies, once all of them are queued; raise what went wrong."""
        with self._lock:
            while self._event is None and self._error is None:
                self._changed.wait()
            if self._error is not None:
                raise self._error
            return self._event

    def cancel(self) -> None:
        """Read no more; staging is not written to any more when this returns."""
        self.fail(GidsError("the read was cancelled"))


class StagedReader:
    """Reads rows of one table into device memory, on a thread and a stream of its own.

    Parameters
    ----------
    table : RowTable
        Whose rows.
    reader : RowReader
        Reads them to the host.
    session : CudaSession
        The stream of the copies.
    staging_bytes : int
        Pinned memory, for as long as this is open; at least two rows are taken.
    pin : callable, optional
        Gives so much pinned memory; by default memory of its own, whose end waits for all work of the device.
    """

    def __init__(
        self,
        table: RowTable,
        reader: RowReader,
        session: CudaSession,
        staging_bytes: int,
        pin: Callable[[int], Pinned] | None = None,
    ):
        self._table, self._reader, self._session = table, reader, session
        rows = chunk_rows(staging_bytes, table.row_bytes)
        chunks = max(2, staging_bytes // (rows * table.row_bytes))
        self.staging_bytes = chunks * rows * table.row_bytes
        self._staging = (pin or functools.partial(StagingBuffer, session.device))(self.staging_bytes)
        values = torch.from_numpy(self._staging.bytes).view(table.torch_dtype).view(chunks, rows, table.dim)
        self._chunk_rows = rows
        self._free = [_Chunk(values[n], values[n].data_ptr()) for n in range(chunks)]
        self._copying: deque[_Chunk] = deque()
        self._reads: deque[StagedRead] = deque()  # guarded by _lock; not all of which was asked for
        self._closing = False  # guarded by _lock
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._thread: threading.Thread | None = None

    def submit(self, rows: Ints, to: DeviceArray) -> StagedRead:
        """Begin to read rows, one behind the other, into device memory that the session's stream may use."""
        read = StagedRead(rows, to)
        with self._lock:
            if self._thread is None:
                name = f"gids-staging-{self._table.name}"
                self._thread = threading.Thread(target=self._run, name=name, daemon=True)
                self._thread.start()
            self._reads.append(read)
            self._changed.notify_all()
        return read

    def close(self) -> None:
        """End the reads and the thread, and unpin."""
        with self._lock:
            self._closing = True
            reads = list(self._reads)
            self._changed.notify_all()
        for read in reads:
            read.cancel()
        if self._thread is not None:
            self._thread.join()
        try:
            self._session.synchronize()
        finally:
            self._staging.close()

    def _run(self) -> None:
        reading: deque[_Chunk] = deque()
        self._session.enter()
        while True:
            read = self._next(wait=not reading)
            chunk = None if read is None else self._take(read, wait=not reading)
            if chunk is not None:
                assert read is not None
                self._ask(read, chunk)
                reading.append(chunk)
            elif reading:
                self._copy(reading.popleft())
            elif read is None:
                return

    def _next(self, *, wait: bool) -> StagedRead | None:
        """Return the first read of which more is to be asked for; None where there is none, or at the end."""
        with self._lock:
            while True:
                while self._reads and (self._reads[0].failed or self._reads[0].asked == len(self._reads[0].rows)):
                    self._reads.popleft()
                if self._reads or not wait or self._closing:
                    return self._reads[0] if self._reads else None
                self._changed.wait()

    def _take(self, read: StagedRead, *, wait: bool) -> _Chunk | None:
        """Return a chunk that nothing uses, after waiting for a copy if told to; None where there is none."""
        if not self._free and self._copying and (wait or self._copying[0].signal.wait(0)):
            chunk = self._copying.popleft()
            if wait:
                try:
                    wait_for_post(chunk.signal, chunk.copied, "a copy to the device")
                except BaseException as error:
                    read.fail(error)
                    self._copying.append(chunk)
                    return None
            self._free.append(chunk)
        return self._free.pop() if self._free else None

    def _ask(self, read: StagedRead, chunk: _Chunk) -> None:
        begin, end = read.asked, min(read.asked + self._chunk_rows, len(read.rows))
        read.asked = end
        chunk.read, chunk.begin, chunk.end, chunk.pending = read, begin, end, None
        try:
            pending = self._reader.submit(torch.from_numpy(read.rows[begin:end]), chunk.values[: end - begin])
        except BaseException as error:
            read.fail(error)
            return
        chunk.pending = pending
        read.began(pending)

    def _copy(self, chunk: _Chunk) -> None:
        """Wait for the disk, and queue the copy of what it gave."""
        read, pending, session = chunk.read, chunk.pending, self._session
        chunk.read = chunk.pending = None
        assert read is not None
        if pending is None:
            self._free.append(chunk)
            return
        try:
            pending.wait()
        except BaseException as error:
            read.fail(error)
            self._free.append(chunk)
            return
        row_bytes = self._table.row_bytes
        try:
            to = read.to.pointer + chunk.begin * row_bytes
            session.copy_bytes(to, chunk.address, (chunk.end - chunk.begin) * row_bytes)
            chunk.copied = session.record()
            session.notify(chunk.signal)
        except BaseException as error:
            read.fail(error)
            self._free.append(chunk)
            return
        self._copying.append(chunk)
        read.copied(pending, chunk.end - chunk.begin, chunk.copied)
