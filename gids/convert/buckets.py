"""Records of any number, grouped by key in bounded memory: appended to files by ranges of keys, read back file by file."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from gids.dataset.table_writer import PieceWriter, TableWriter, write_errors


class Buckets:
    """Files of records; the first column of a record is its key, and every file has a range of keys.

    Parameters
    ----------
    directory : Path
        Where the files are; made and deleted by this class.
    name : str
        For messages.
    num_keys, num_buckets : int
        Keys are below ``num_keys``; every bucket but the last has as many.
    columns, dtype
        Shape of a record.
    step_records : int
        Records read at a time.
    limit_records : int
        Records that may be in memory at once.
    num_pieces : int
        Files of a bucket, each filled from its own part of the records; a bucket is its pieces one after the other.
    """

    def __init__(
        self,
        directory: Path,
        name: str,
        num_keys: int,
        num_buckets: int,
        columns: int,
        dtype: np.dtype,
        step_records: int,
        limit_records: int,
        num_pieces: int = 1,
    ):
        self.directory, self.name, self.num_keys = directory, name, num_keys
        self.num_buckets, self.columns, self.dtype = num_buckets, columns, dtype
        self.step_records, self.limit_records, self.num_pieces = step_records, limit_records, num_pieces
        self.width = max(1, -(-num_keys // num_buckets))
        self.record_bytes = columns * dtype.itemsize

    def begin(self) -> None:
        """Make an empty directory."""
        shutil.rmtree(self.directory, ignore_errors=True)
        self.directory.mkdir()

    def fill(self, records: Iterator[np.ndarray], report: Callable[[int], None], piece: int = 0) -> list[int]:
        """Write every record to a piece of the bucket of its key; returns how many each bucket got."""
        counts = np.zeros(self.num_buckets, np.int64)
        with ExitStack() as stack, write_errors(self.directory, self.name):
            paths = [self.path(bucket, piece) for bucket in range(self.num_buckets)]
            files = [stack.enter_context(path.open("wb", buffering=0)) for path in paths]
            for block in records:
                bucket = (block[:, 0] // self.width).astype(np.int16)
                order = np.argsort(bucket, kind="stable")
                sizes = np.bincount(bucket, minlength=self.num_buckets)
                ends = np.cumsum(sizes)
                block = block[order]
                for b in np.flatnonzero(sizes):
                    _write_all(files[b], block[ends[b] - sizes[b] : ends[b]])
                counts += sizes
                report(int(counts.sum()))
            for file in files:
                os.fsync(file.fileno())
        return [int(count) for count in counts]

    def keys(self, bucket: int) -> tuple[int, int]:
        """Return the first key of a bucket and the one after its last."""
        return bucket * self.width, min((bucket + 1) * self.width, self.num_keys)

    def parts(self, bucket: int) -> list[tuple[int, int]]:
        """Cut a bucket that is too large for memory into ranges of keys; a range of one key may be large."""
        low, high = self.keys(bucket)
        if sum(path.stat().st_size for path in self._paths(bucket)) <= self.limit_records * self.record_bytes:
            return [(low, high)]
        degrees = np.zeros(high - low, np.int64)
        for records in self.blocks(bucket):
            degrees += np.bincount(records[:, 0] - low, minlength=high - low)
        parts, begin, total = [], low, 0
        for key in range(low, high):
            if key > begin and total + degrees[key - low] > self.limit_records:
                parts.append((begin, key))
                begin, total = key, 0
            total += int(degrees[key - low])
        return [*parts, (begin, high)]

    def select(self, bucket: int, begin: int, end: int) -> np.ndarray:
        """Read the records of a range of keys, in the order in which they were appended."""
        if (begin, end) == self.keys(bucket):
            whole = [np.fromfile(path, self.dtype).reshape(-1, self.columns) for path in self._paths(bucket)]
            return whole[0] if len(whole) == 1 else np.concatenate(whole)
        kept = [records[(records[:, 0] >= begin) & (records[:, 0] < end)] for records in self.blocks(bucket)]
        return np.concatenate(kept)

    def blocks(self, bucket: int) -> Iterator[np.ndarray]:
        """Yield the records of a bucket, some at a time."""
        for path in self._paths(bucket):
            with path.open("rb") as file:
                while data := file.read(self.step_records * self.record_bytes):
                    yield np.frombuffer(data, self.dtype).reshape(-1, self.columns)

    def path(self, bucket: int, piece: int = 0) -> Path:
        """Return the file of a piece of a bucket."""
        return self.directory / f"{bucket}.{piece}.bin"

    def _paths(self, bucket: int) -> list[Path]:
        return [self.path(bucket, piece) for piece in range(self.num_pieces)]

    def remove(self) -> None:
        """Delete the files."""
        shutil.rmtree(self.directory, ignore_errors=True)


def put_rows(table: TableWriter | PieceWriter, first_row: int, rows: np.ndarray) -> None:
    """Append rows that belong at ``first_row``, without those that are stored already."""
    new = rows[max(0, table.rows_done - first_row) :]
    if len(new):
        table.append(np.ascontiguousarray(new).astype(table.table.dtype, copy=False))


def _write_all(file: object, records: np.ndarray) -> None:
    view = np.ascontiguousarray(records).reshape(-1).view(np.uint8).data
    while len(view):
        view = view[file.write(view) :]  # type: ignore[attr-defined]
