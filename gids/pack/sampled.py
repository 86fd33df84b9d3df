"""The first step: sample every batch, keep it, and note which rows it wants. A killed run goes on where it was."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from gids._native import count_uses
from gids.dataset.build import Build
from gids.dataset.packed import BATCH, SAMPLES
from gids.dataset.table_writer import Progress, write_errors
from gids.errors import ConfigError
from gids.pack.recipe import Packable, count_batches, iter_pieces
from gids.units import format_bytes

#: Batches, and bytes of samples, after which files are forced to disk and noted: so much is sampled again after a kill.
NOTED_BATCHES = 512
NOTED_BYTES = 256 << 20
NOTE = "sampled"


class Appended:
    """A file that grows, and is cut back to what was noted when a killed run goes on.

    Parameters
    ----------
    path : Path
        Which.
    size : int
        Bytes that are kept.
    """

    def __init__(self, path: Path, size: int = 0):
        self.path, self.size = path, size
        with write_errors(path, "the packed epochs"):
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            os.ftruncate(self._descriptor, size)

    def append(self, data: bytes | memoryview) -> int:
        """Write at the end; returns where."""
        offset, view = self.size, memoryview(data)
        with write_errors(self.path, "the packed epochs"):
            while len(view):
                done = os.pwrite(self._descriptor, view, self.size)
                self.size, view = self.size + done, view[done:]
        return offset

    def sync(self) -> None:
        """Force everything to disk."""
        with write_errors(self.path, "the packed epochs"):
            os.fdatasync(self._descriptor)

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)


class SampledEpochs:
    """All sampled batches: their records, and the rows that each wants of every table.

    Parameters
    ----------
    build : Build
        The directory that is being made.
    recipe : Packable
        What is sampled.
    """

    def __init__(self, build: Build, recipe: Packable):
        self.tables = recipe.tables
        self._build = build
        self._dtypes = [np.dtype("<u4") if t.num_rows < 1 << 32 else np.dtype("<i8") for t in self.tables.values()]
        self.records = np.zeros(0, BATCH)
        self._counts = np.zeros((0, len(self.tables)), np.int64)
        self._ends = np.zeros((1, len(self.tables)), np.int64)
        self.largest_sample_bytes = 0

    def rows_path(self, number: int) -> Path:
        """Where the rows of all batches of a table are, ascending within a batch."""
        return self._build.work / f"rows-{number}.bin"

    def finish(self, records: NDArray[Any], counts: NDArray[np.int64], largest_sample_bytes: int) -> None:
        """Take what was sampled."""
        self.records, self._counts = records, counts
        self._ends = np.concatenate([np.zeros((1, len(self.tables)), np.int64), np.cumsum(counts, axis=0)])
        self.largest_sample_bytes = largest_sample_bytes

    @property
    def accesses(self) -> NDArray[np.int64]:
        """Rows that all batches want of every table."""
        ends: NDArray[np.int64] = self._ends[-1]
        return ends

    def largest(self, number: int) -> int:
        """Return the rows that the largest batch wants of a table."""
        return int(self._counts[:, number].max(initial=0))

    def batches(self, number: int, begin: int = 0, end: int | None = None) -> Iterator[NDArray[Any]]:
        """Yield the rows of one table that each batch wants, ascending."""
        end = len(self.records) if end is None else end
        dtype = self._dtypes[number]
        with self.rows_path(number).open("rb") as file:
            file.seek(int(self._ends[begin, number]) * dtype.itemsize)
            for batch in range(begin, end):
                yield np.fromfile(file, dtype, int(self._counts[batch, number]))

    def num_rows(self, number: int, batch: int) -> int:
        """Return how many rows of one table a batch wants."""
        return int(self._counts[batch, number])

    def access_counts(self, number: int) -> NDArray[np.uint32]:
        """Count the batches that want each row of a table."""
        counts = np.zeros(list(self.tables.values())[number].num_rows, np.uint32)
        edges = np.linspace(0, len(counts), len(os.sched_getaffinity(0)) + 1).astype(self._dtypes[number])
        stopped = threading.Event()

        def count(part: NDArray[Any]) -> None:
            for ids in self.batches(number):
                if stopped.is_set():
                    return
                count_uses(ids[slice(*np.searchsorted(ids, part))], counts)

        with ThreadPoolExecutor(len(edges) - 1, "gids-pack") as threads:  # each counts a range of rows
            try:
                list(threads.map(count, np.column_stack([edges[:-1], edges[1:]])))
            finally:
                stopped.set()  # an interrupt does not wait until all is counted
        return counts


class ColdBatches:
    """Rows of a segment's batches that are not hot; read anew each time they are gone through.

    Parameters
    ----------
    sampled : SampledEpochs
        All batches.
    number : int
        Of the table.
    is_cold : bool[rows]
        Which of its rows are not hot.
    begin, end : int
        The segment.
    """

    def __init__(self, sampled: SampledEpochs, number: int, is_cold: NDArray[np.bool_], begin: int, end: int):
        self._sampled, self._number, self._is_cold = sampled, number, is_cold
        self._begin, self._end = begin, end

    def __len__(self) -> int:
        return self._end - self._begin

    def __iter__(self) -> Iterator[NDArray[Any]]:
        for ids in self._sampled.batches(self._number, self._begin, self._end):
            yield ids[self._is_cold[ids]]


def sample_epochs(
    build: Build,
    recipe: Packable,
    epochs: int,
    limit_bytes: int | None,
    progress: Progress | None,
    most_batches: int | None = None,
) -> SampledEpochs:
    """Sample every batch of every epoch into ``samples.bin``.

    Parameters
    ----------
    build : Build
        The directory that is being made.
    recipe : Packable
        What to sample.
    epochs : int
        How many.
    limit_bytes : int, optional
        Disk space that samples and rows must not exceed; refused where they would.
    progress : callable, optional
        Called as ``progress("samples", batches_done, batches)``.
    most_batches : int, optional
        Sample only so many, for a trial.
    """
    found, topology = SampledEpochs(build, recipe), recipe.open_topology()
    total = epochs * count_batches(recipe)
    total = total if most_batches is None else min(total, most_batches)
    note = build.journal.get(NOTE) or {"batches": 0, "sizes": [0] * (len(found.tables) + 3), "largest": 0}
    paths = [build.partial / SAMPLES, build.work / "records.bin", build.work / "counts.bin"]
    paths += [found.rows_path(number) for number in range(len(found.tables))]
    files = [Appended(path, size) for path, size in zip(paths, note["sizes"], strict=True)]
    samples, records, counts, *rows = files
    largest = int(note["largest"])

    def checkpoint(done: int) -> None:
        for file in files:
            file.sync()
        build.journal.note(NOTE, {"batches": done, "sizes": [file.size for file in files], "largest": largest})

    try:
        done, noted = int(note["batches"]), samples.size
        for epoch, piece in _pieces(recipe, epochs, done, total):
            record = np.zeros(1, BATCH)
            wanted: list[NDArray[Any]] = [np.empty(0, dtype) for dtype in found._dtypes]
            if piece is not None:
                sampled = recipe.sample(topology, epoch, piece, build.pool)
                data = sampled.data
                wanted = [
                    np.sort(sampled.rows[key].numpy().astype(dtype))
                    for key, dtype in zip(found.tables, found._dtypes, strict=True)
                ]
                record["seeds"] = piece.num_seeds
                record["padding"] = piece.padding
                record["sample_bytes"], record["sample_hash"] = len(data), xxhash.xxh3_64_intdigest(data)
                record["sample_offset"] = samples.append(data)
                largest = max(largest, sampled.size_bytes)
            records.append(record.tobytes())
            counts.append(np.array([len(ids) for ids in wanted], np.int64).tobytes())
            for file, ids in zip(rows, wanted, strict=True):
                file.append(ids.tobytes())
            done += 1
            _check_limit(files, limit_bytes, done, total)
            if done % NOTED_BATCHES == 0 or samples.size - noted > NOTED_BYTES:
                checkpoint(done)
                noted = samples.size
            if progress is not None:
                progress("samples", done, total)
        checkpoint(done)
    finally:
        for file in files:
            file.close()
        if recipe.options.memory.topology == "disk":
            topology.close()
    stored = np.fromfile(counts.path, np.int64).reshape(done, len(found.tables))
    found.finish(np.fromfile(records.path, BATCH), stored, largest)
    return found


def _pieces(recipe: Packable, epochs: int, first: int, total: int) -> Iterator[tuple[int, Any]]:
    per_epoch = count_batches(recipe)
    number = first
    while number < total:
        epoch, begin = divmod(number, per_epoch)
        for piece in iter_pieces(recipe, epoch, begin):
            yield epoch, piece
            number += 1
            if number == total:
                return


def _check_limit(files: list[Appended], limit_bytes: int | None, done: int, total: int) -> None:
    used = sum(file.size for file in files)
    if limit_bytes is not None and used > limit_bytes:
        least = int(used * total / done)
        raise ConfigError(
            f"disk must be at least {format_bytes(least)} for the sampled batches alone (got {format_bytes(limit_bytes)})"
        )
