"""A sweep that spills: one pass over a table copies the rows of many batches to disk, a chunk for each, read in order later.

A row costs two sequential reads and a write instead of a random read. The file has no name: its space goes with the
process, however that ends.
"""

from __future__ import annotations

import math
import os
import tempfile
import threading
import warnings
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gids._native import Scatter, ThreadPool
from gids.errors import ConfigError, StorageError
from gids.storage.reader import aligned_empty
from gids.table import RowTable, Stripe
from gids.tiers.host_buffer import HostRows, PendingRows, Reader

Ids = NDArray[np.int64]

#: Rows of the table that are read before they are copied: reading and writing at once slows both down.
BLOCK_BYTES = 64 << 20
PAGE_BYTES = 4096
#: Threads that copy and write: while one waits for the disk, another copies.
WRITERS = 4
#: A chunk begins at a page where that wastes no more than this part of it: two chunks then share no page.
WASTED_SHARE = 1 / 16


@dataclass(frozen=True)
class SpillSetup:
    """How the rows of a table are spilled.

    Attributes
    ----------
    directory : Path
        Where the file is made.
    limit_bytes : int
        Most space for it.
    fewest_batches : int
        A pass for fewer does not pay.
    buffer_bytes : int
        Of a chunk that are collected before they are written.
    most_written_bytes : int or None
        What may be written in all; then rows are read online.
    block_bytes : int
        Rows of the table that are read before they are copied.
    """

    directory: Path
    limit_bytes: int
    fewest_batches: int = 1
    buffer_bytes: int = 64 << 10
    most_written_bytes: int | None = None
    block_bytes: int = BLOCK_BYTES


class Superbatch:
    """Batches whose rows one pass copies; ``is_filled`` is None until it was tried."""

    def __init__(self) -> None:
        self.chunks: list[Chunk] = []
        self.is_filled: bool | None = None


@dataclass(frozen=True)
class Chunk:
    """Where the rows of a batch are: row ``rows[i]`` is row ``begin + i`` of the file; rows ascend."""

    superbatch: Superbatch
    begin: int
    rows: Ids


@dataclass
class _Foreseen:
    """A batch that was announced: its ids, those of them that memory does not hold, ascending, and its chunk."""

    ids: Tensor
    rows: Ids
    chunk: Chunk | None = field(default=None)


class SpilledRead:
    """A read of chunks; where it fails, the rows are read from the table instead."""

    def __init__(self, read: PendingRows, again: Callable[[], PendingRows], failed: Callable[[Exception], None]):
        self._read, self._again, self._failed = read, again, failed
        self._cancelled = self._repeated = False  # guarded by _lock
        self._lock = threading.Lock()
        self.ended = False

    def wait(self) -> object:
        """Return when the rows are in place; raise what went wrong with the table. From several threads."""
        read = self._read
        try:
            done = read.wait()
        except StorageError as error:
            with self._lock:
                if self._cancelled or (self._repeated and self._read is read):
                    raise
                if not self._repeated:
                    self._repeated, self._read = True, self._again()
            self._failed(error)
            done = self._read.wait()
        self.ended = True
        return done

    def cancel(self) -> object:
        """Cancel; nothing is written any more when this returns."""
        with self._lock:
            self._cancelled = True
            return self._read.cancel()


class RowSpill:
    """Chunks of one table on disk: announced with every plan, filled by one pass, read in the place of the table's rows.

    One thread announces and reads, as a store plans and advances.

    Parameters
    ----------
    table : RowTable
        Whose rows.
    reader : Reader
        Of the table; not closed by this.
    open_reader : callable
        Opens a reader of the file, which is a table of the same rows.
    setup : SpillSetup
        Where, and how much.
    host : HostRows, optional
        Rows that are in memory and take no part.
    check : callable
        Raises where the run ends; called often during a pass.
    """

    def __init__(
        self,
        table: RowTable,
        reader: Reader,
        open_reader: Callable[[RowTable], Reader],
        setup: SpillSetup,
        host: HostRows | None = None,
        check: Callable[[], None] = lambda: None,
    ):
        self.table, self.setup, self.bytes_written = table, setup, 0
        self._reader, self._check = reader, check
        self._hosted = np.empty(0, np.int64) if host is None else np.sort(host.rows.numpy())
        self._limit_rows = setup.limit_bytes // PAGE_BYTES * PAGE_BYTES // table.row_bytes
        self._foreseen: deque[_Foreseen] = deque()
        self._reads: list[SpilledRead] = []  # that may be under way
        self._filled: Superbatch | None = None  # whose rows the file has
        self._off = self._worn = False  # something failed; enough was written
        self._file = None
        self._spilled: Reader | None = None
        try:
            self._file = tempfile.TemporaryFile(dir=setup.directory, buffering=0, prefix=".gids-spill-")  # noqa: SIM115 # closed by close()
            self._path = Path(f"/proc/self/fd/{self._file.fileno()}")
            os.ftruncate(self._file.fileno(), self._limit_rows * table.row_bytes)
            rows = self._limit_rows
            stripe = Stripe(self._path, 0, rows)
            spilled = RowTable(
                f"spilled {table.name}", table.dtype, table.dim, rows, table.row_bytes, (stripe,), max(1, rows)
            )
            self._spilled = open_reader(spilled)
        except (OSError, ConfigError) as error:
            self._give_up(error)
        self._page_rows = PAGE_BYTES // math.gcd(PAGE_BYTES, table.row_bytes)

    def foresee(self, batches: Sequence[Tensor], lookahead: Sequence[Tensor]) -> list[Chunk | None]:
        """Take the next batches and those that follow them; return where the rows of the first will be.

        Parameters
        ----------
        batches, lookahead : sequence of Tensor
            int64 ids, as a store plans them. The same tensors come again as they come nearer.
        """
        future = [*batches, *lookahead]
        known = next((n for n, (f, t) in enumerate(zip(self._foreseen, future, strict=False)) if f.ids is not t), None)
        if known is not None:  # not the future that was announced
            self.forget()
        self._note(future[len(self._foreseen) :])
        for number in range(len(batches)):
            if self._foreseen[number].chunk is None:
                self._begin(number)
        return [self._foreseen.popleft().chunk for _ in batches]

    def _note(self, batches: Sequence[Tensor]) -> None:
        if len(batches) > 4 * WRITERS:
            with ThreadPoolExecutor(WRITERS, "gids-spill") as threads:
                self._foreseen += threads.map(self._cold, batches)
        else:
            self._foreseen += map(self._cold, batches)

    def _cold(self, ids: Tensor) -> _Foreseen:
        rows = np.sort(ids.numpy())
        if len(self._hosted):
            places = np.minimum(np.searchsorted(self._hosted, rows), len(self._hosted) - 1)
            rows = rows[self._hosted[places] != rows]
        return _Foreseen(ids, rows)

    def _begin(self, first: int) -> None:
        """Assign chunks to the batches from one on, as many as the disk holds; to none where that would not pay."""
        if self._off or self._worn or len(self._foreseen) - first < self.setup.fewest_batches:
            return
        superbatch, begin = Superbatch(), 0
        for number in range(first, len(self._foreseen)):
            rows = self._foreseen[number].rows
            whole = -(-begin // self._page_rows) * self._page_rows
            if (whole - begin) <= len(rows) * WASTED_SHARE:
                begin = whole
            if begin + len(rows) > self._limit_rows:
                break
            superbatch.chunks.append(Chunk(superbatch, begin, rows))
            begin += len(rows)
        most = self.setup.most_written_bytes
        ends = 2 * PAGE_BYTES * len(superbatch.chunks)  # pages that a chunk begins or ends in are written whole
        if most is not None and self.bytes_written + begin * self.table.row_bytes + ends > most:
            self._worn = True
            return
        if len(superbatch.chunks) < self.setup.fewest_batches:
            return
        for number, chunk in enumerate(superbatch.chunks):
            self._foreseen[first + number].chunk = chunk

    def submit(
        self, rows: NDArray[np.int64], out: Tensor, places: NDArray[np.int32], chunks: Sequence[Chunk | None]
    ) -> list[PendingRows]:
        """Begin to read rows to places of ``out``, from the chunks where they are there, else from the table.

        Parameters
        ----------
        rows : int64[n]
            Unique.
        out : Tensor
            Rows of the table's kind.
        places : int32[n]
            Where in ``out``.
        chunks : sequence of Chunk or None
            Of the batches that want the rows.
        """
        left: NDArray[np.bool_] = np.ones(len(rows), bool)
        reads: list[PendingRows] = []
        # A pass writes to where the superbatch before it was: that is read before it begins.
        for superbatch, of_one in groupby(chunks, lambda chunk: None if chunk is None else chunk.superbatch):
            if superbatch is not None and self._is_filled(superbatch):
                reads += self._submit(rows, out, places, [chunk for chunk in of_one if chunk is not None], left)
        if left.any():
            reads.append(self._reader.submit(torch.from_numpy(rows[left]), out, places=places[left]))
        return reads

    def _submit(
        self,
        rows: NDArray[np.int64],
        out: Tensor,
        places: NDArray[np.int32],
        chunks: list[Chunk],
        left: NDArray[np.bool_],
    ) -> list[PendingRows]:
        """Begin to read those of the rows that are left and that chunks have; takes them out of ``left``."""
        positions = np.full(len(rows), -1, np.int64)
        for chunk in chunks:
            if len(chunk.rows):
                these = np.flatnonzero(left)
                at = np.minimum(np.searchsorted(chunk.rows, rows[these]), len(chunk.rows) - 1)
                found = chunk.rows[at] == rows[these]
                positions[these[found]] = chunk.begin + at[found]
                left[these[found]] = False
        spilled = positions >= 0
        if not spilled.any():
            return []
        assert self._spilled is not None
        wanted, where = torch.from_numpy(rows[spilled]), places[spilled]
        read = SpilledRead(
            self._spilled.submit(torch.from_numpy(positions[spilled]), out, places=where),
            lambda: self._reader.submit(wanted, out, places=where),
            self._give_up,
        )
        self._reads = [other for other in self._reads if not other.ended] + [read]
        return [read]

    def _is_filled(self, superbatch: Superbatch) -> bool:
        if superbatch.is_filled is None and not self._off:
            try:
                if self._filled is not None:
                    self._filled.is_filled = False  # whoever asks late for its rows reads them online
                self._fill(superbatch)
                superbatch.is_filled, self._filled = True, superbatch
            except OSError as error:  # StorageError is one
                self._give_up(error)
        if superbatch.is_filled is None:
            superbatch.is_filled = False
        return superbatch.is_filled and not self._off

    def _fill(self, superbatch: Superbatch) -> None:
        """Copy the rows of all chunks in one pass over the table."""
        for read in self._reads:  # their place is written to now, and reading would slow down the writing
            with suppress(StorageError):  # told to whoever gathers the rows
                read.wait()
        self._reads.clear()
        chunks = [chunk for chunk in superbatch.chunks if len(chunk.rows)]
        if not chunks:
            return
        assert self._file is not None
        row_bytes = self.table.row_bytes
        end = -(-(chunks[-1].begin + len(chunks[-1].rows)) * row_bytes // PAGE_BYTES) * PAGE_BYTES
        os.posix_fallocate(self._file.fileno(), 0, end)
        scatter = Scatter(
            str(self._path),
            row_bytes,
            np.array([chunk.begin for chunk in chunks], np.int64),
            np.cumsum([len(chunk.rows) for chunk in chunks]),
            np.zeros(len(chunks), np.uint8),
            np.concatenate([chunk.rows for chunk in chunks]),
            np.empty(0, np.int64),
            np.zeros(2 * len(chunks), np.uint64),
            self.setup.buffer_bytes,
            0,
        )
        first = min(int(chunk.rows[0]) for chunk in chunks)
        last = max(int(chunk.rows[-1]) for chunk in chunks) + 1
        block_rows = max(1, self.setup.block_bytes // row_bytes)
        block = aligned_empty(min(block_rows, last - first), self.table.dim, self.table.torch_dtype)
        pool = ThreadPool(WRITERS, "gids-spill")
        try:
            for begin in range(first, last, block_rows):
                self._check()
                count = min(block_rows, last - begin)
                self._reader.submit(torch.arange(begin, begin + count), block[:count]).wait()
                scatter.add(begin, block[:count].reshape(-1).view(torch.uint8).numpy(), count, pool)
            scatter.checkpoint(pool)
        finally:
            self.bytes_written += scatter.bytes_written

    def _give_up(self, error: Exception) -> None:
        """Read the table from now on, as if nothing had been spilled."""
        if not self._off:
            self._off = True
            warnings.warn(
                f"spilling rows of {self.table.name} to {self.setup.directory} failed ({error}): they are read online "
                "from now on",
                RuntimeWarning,
                stacklevel=2,
            )

    def forget(self) -> None:
        """Forget what was announced; no read may be under way, or it was cancelled."""
        self._foreseen.clear()
        self._reads.clear()

    def stats(self) -> Mapping[str, int]:
        """Return reads of the file, bytes read from it, and bytes written to it."""
        io = {"reads": 0, "bytes_read": 0} if self._spilled is None else self._spilled.stats()
        return {"reads": io["reads"], "bytes_read": io["bytes_read"], "bytes_written": self.bytes_written}

    def close(self) -> None:
        """Return the space."""
        self.forget()
        if self._spilled is not None:
            self._spilled.close()
        if self._file is not None:
            self._file.close()
