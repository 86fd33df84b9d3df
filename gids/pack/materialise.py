"""The third step: one sequential pass over a table per episode, and every row goes where batches will read it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from gids import _native
from gids.dataset.build import Build
from gids.dataset.packed import REGION
from gids.dataset.table_writer import Progress, write_errors
from gids.errors import ConfigError, DatasetError, StorageError
from gids.pack.arrange import ArrangedTable, iter_regions, source_rows
from gids.storage import RowReader, StorageOptions
from gids.storage.reader import aligned_empty
from gids.units import format_bytes

#: Rows that are read before they are scattered: reading and writing at once slows both down.
MOST_BLOCK_BYTES = 128 << 20
LEAST_BLOCK_BYTES = 1 << 20
#: Buffers of a region, the largest first; a smaller one is taken only where it saves a pass.
BUFFER_BYTES = (1 << 20, 512 << 10, 256 << 10, 128 << 10, 64 << 10)
#: Bytes read after which a pass is made safe against a kill.
CHECKPOINT_BYTES = 4 << 30
#: Bytes that one native call may copy and write: an interrupt waits for it.
CALL_BYTES = 256 << 20
#: Threads that copy and write: while one waits for the disk, another copies.
THREADS = 4
PAGE_BYTES = 4096


@dataclass(frozen=True)
class Episode:
    """Regions that one pass fills: numbers ``first..last`` of a table's, with buffers of so many bytes."""

    first: int
    last: int
    buffer_bytes: int


def block_bytes(memory_bytes: int) -> int:
    """Return the part of the memory that holds rows being read."""
    return max(LEAST_BLOCK_BYTES, min(MOST_BLOCK_BYTES, memory_bytes // 4))


def plan_episodes(
    regions: list[tuple[int, int, bool]], row_bytes: int, memory_bytes: int, table_name: str
) -> list[Episode]:
    """Divide regions into as few passes as the memory allows, with the largest buffers that allow so few.

    Parameters
    ----------
    regions : list of (int, int, bool)
        Begin, end, and whether rows come in any order.
    row_bytes : int
        Of the table.
    memory_bytes : int
        For rows being read, buffers, and lists of rows.
    table_name : str
        For messages.
    """
    room = memory_bytes - block_bytes(memory_bytes)
    plans = [_episodes(regions, row_bytes, room, size) for size in BUFFER_BYTES]
    possible = [plan for plan in plans if plan is not None]
    if not possible:
        most = max(_region_bytes(*region, row_bytes, BUFFER_BYTES[-1]) for region in regions)
        least = most + block_bytes(0) + most // 3
        raise ConfigError(
            f"memory must be at least {format_bytes(least)} to pack {table_name} (got {format_bytes(memory_bytes)})"
        )
    return min(possible, key=len)  # the first of equals has the largest buffers


def _region_bytes(begin: int, end: int, placed: bool, row_bytes: int, buffer_bytes: int) -> int:
    rows = end - begin
    held = rows * row_bytes if placed else min(rows * row_bytes, buffer_bytes)
    return held + 2 * PAGE_BYTES + rows * 16 + 128


def _episodes(
    regions: list[tuple[int, int, bool]], row_bytes: int, room: int, buffer_bytes: int
) -> list[Episode] | None:
    episodes, first, used = [], 0, 0
    for number, (begin, end, placed) in enumerate(regions):
        size = _region_bytes(begin, end, placed, row_bytes, buffer_bytes)
        if size > room:
            return None
        if used + size > room:
            episodes.append(Episode(first, number, buffer_bytes))
            first, used = number, 0
        used += size
    return [*episodes, Episode(first, len(regions), buffer_bytes)] if regions else []


class TableFile:
    """The file of one packed table while it is filled.

    Parameters
    ----------
    build : Build
        The directory that is being made.
    number : int
        Of the table.
    entry : ArrangedTable
        Which rows go where.
    memory_bytes : int
        For everything that a pass holds.
    storage : StorageOptions, optional
        How the table is read.
    progress : callable, optional
        Called with bytes read.
    """

    def __init__(
        self,
        build: Build,
        number: int,
        entry: ArrangedTable,
        memory_bytes: int,
        storage: StorageOptions | None = None,
        progress: Progress | None = None,
    ):
        self.path = build.partial / f"rows-{number}.bin"
        self.bytes_read = self.bytes_written = 0
        self._build, self._number, self._entry, self._progress = build, number, entry, progress
        self._storage = storage or StorageOptions()
        self._regions = list(iter_regions(entry))
        self._block_rows = max(1, block_bytes(memory_bytes) // entry.table.row_bytes)
        self.episodes = plan_episodes(self._regions, entry.table.row_bytes, memory_bytes, entry.table.name)
        self._sums: NDArray[np.uint64] = np.zeros(2 * len(self._regions), np.uint64)

    @property
    def size_bytes(self) -> int:
        """Bytes of the file when it is complete."""
        return self._entry.rows * self._entry.table.row_bytes

    @property
    def least_memory_bytes(self) -> tuple[int, int]:
        """Memory of a single pass with the smallest buffers: for hot rows, and for all others."""
        row_bytes, hot, more = self._entry.table.row_bytes, 0, 0
        for begin, end, placed in self._regions:
            size = _region_bytes(begin, end, placed, row_bytes, BUFFER_BYTES[-1])
            if begin < len(self._entry.hot):
                hot += size
            else:
                more += size
        return hot, more

    def fill(self) -> None:
        """Run every pass that is not noted as done."""
        self._reserve()
        note = self._build.journal.get(f"pass {self._number}") or {"episode": 0, "row": 0, "sums": None}
        if note["sums"] is not None:
            self._sums = np.fromfile(self._build.work / note["sums"], np.uint64)
        pool = _native.ThreadPool(THREADS, "gids-pack")
        with RowReader(self._entry.table, self._storage, pool) as reader:
            for number in range(note["episode"], len(self.episodes)):
                self._run(number, note["row"] if number == note["episode"] else 0, reader, pool)
        with write_errors(self.path, self._entry.table.name):
            os.truncate(self.path, self.size_bytes)
            _sync(self.path)
        records = np.zeros(len(self._regions), REGION)
        records["begin"] = [begin for begin, _, _ in self._regions]
        records["sum"], records["weighted"] = self._sums[0::2], self._sums[1::2]
        regions = self._build.partial / f"regions-{self._number}.bin"
        with write_errors(regions, self._entry.table.name):
            records.tofile(regions)
            _sync(regions)

    def _reserve(self) -> None:
        """Take the disk space now, so that a full disk is seen before anything is copied."""
        whole = -(-max(self.size_bytes, 1) // PAGE_BYTES) * PAGE_BYTES
        with write_errors(self.path, self._entry.table.name), self.path.open("ab") as file:
            os.posix_fallocate(file.fileno(), 0, whole)

    def _run(self, number: int, resume_row: int, reader: RowReader, pool: _native.ThreadPool) -> None:
        episode, table = self.episodes[number], self._entry.table
        regions = self._regions[episode.first : episode.last]
        sources = source_rows(self._build, self._number, regions[0][0], regions[-1][1])
        places = np.zeros(len(sources) if any(placed for _, _, placed in regions) else 0, np.int64)
        base = regions[0][0]
        for begin, end, placed in regions:
            if placed:
                part = slice(begin - base, end - base)
                places[part] = np.argsort(sources[part], kind="stable")
                sources[part] = sources[part][places[part]]
        sums = self._sums[2 * episode.first : 2 * episode.last]
        try:
            scatter = _native.Scatter(
                str(self.path),
                table.row_bytes,
                np.array([begin for begin, _, _ in regions], np.int64),
                np.array([end - base for _, end, _ in regions], np.int64),
                np.array([placed for _, _, placed in regions], np.uint8),
                sources,
                places,
                sums,
                episode.buffer_bytes,
                resume_row,
            )
            begin, end = max(int(sources.min()), resume_row), int(sources.max()) + 1
            copied_bytes = len(sources) * table.row_bytes / max(1, end - int(sources.min()))  # of a row of the table
            self._pass(number, scatter, begin, end, max(1, int(CALL_BYTES / copied_bytes)), reader, pool)
        except StorageError as error:
            if str(self.path) not in str(error):
                raise
            hint = ": free some space and run the command again" if error.errno else ""
            raise DatasetError(f"packing {table.name} failed: {error}{hint}") from error
        self.bytes_written += scatter.bytes_written

    def _pass(
        self,
        number: int,
        scatter: _native.Scatter,
        begin: int,
        end: int,
        call_rows: int,
        reader: RowReader,
        pool: _native.ThreadPool,
    ) -> None:
        table = self._entry.table
        block = aligned_empty(min(self._block_rows, end - begin), table.dim, table.torch_dtype)
        since = 0
        for first in range(begin, end, self._block_rows):
            count = min(self._block_rows, end - first)
            reader.submit(torch.arange(first, first + count), block[:count]).wait()
            flat = block[:count].reshape(-1).view(torch.uint8).numpy()
            for at in range(0, count, call_rows):
                rows = min(call_rows, count - at)
                part = flat[at * table.row_bytes : (at + rows) * table.row_bytes]
                scatter.add(first + at, part, rows, pool)
            self.bytes_read += flat.nbytes
            since += flat.nbytes
            if since >= CHECKPOINT_BYTES and first + count < end:
                scatter.checkpoint(pool)
                self._note(number, first + count)
                since = 0
            if self._progress is not None:
                done = number * table.num_rows + first + count
                self._progress(table.name, done * table.row_bytes, len(self.episodes) * table.total_bytes)
        scatter.checkpoint(pool)
        self._note(number + 1, 0)

    def _note(self, episode: int, row: int) -> None:
        """Note what is safe on disk. Sums go to a file of their own first: a note never speaks of what is not there."""
        name = f"sums-{self._number}-{episode}-{row}.bin"
        before = self._build.journal.get(f"pass {self._number}")
        path = self._build.work / name
        with write_errors(path, self._entry.table.name):
            self._sums.tofile(path)
            _sync(path)
        self._build.journal.note(f"pass {self._number}", {"episode": episode, "row": row, "sums": name})
        if before is not None and before["sums"] not in (None, name):
            (self._build.work / before["sums"]).unlink(missing_ok=True)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
