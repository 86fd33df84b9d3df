"""Append rows to one table of an unfinished dataset: stripes, checksums, checkpoints."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from gids import _native
from gids.dataset import checksum
from gids.dataset.journal import Journal
from gids.dataset.manifest import ChecksumFile, StoredTable, stripe_row_counts
from gids.dataset.rows import pieces, read_rows
from gids.errors import ConfigError, DatasetError
from gids.table import DTYPES, RowTable, Stripe
from gids.units import format_bytes

#: Bytes after which rows are forced to disk and noted in the journal: at most this much is done again after a kill.
CHECKPOINT_BYTES = 256 << 20

Rows = np.ndarray | torch.Tensor
Progress = Callable[[str, int, int], None]  # table name, bytes done, bytes in all
Check = Callable[[np.ndarray, int], None]  # integer values about to be written, and the row they begin at


def dtype_name(dtype: str | np.dtype | type | torch.dtype) -> str:
    """Return the name that a manifest uses for a numpy or torch dtype."""
    name = str(dtype).removeprefix("torch.") if isinstance(dtype, str | torch.dtype) else np.dtype(dtype).name
    if name not in DTYPES:
        raise ConfigError(f"dtype must be one of {', '.join(DTYPES)} (got {name!r})")
    return name


def row_bytes_of(rows: Rows, dtype: str, dim: int, name: str) -> np.ndarray:
    """View rows as ``uint8[n, row_bytes]``, without a copy where they are contiguous."""
    if dtype_name(rows.dtype) != dtype:
        raise ConfigError(f"rows of {name} must have dtype {dtype} (got {dtype_name(rows.dtype)})")
    width = 1 if rows.ndim == 1 else int(np.prod(rows.shape[1:]))
    if rows.ndim == 0 or width != dim:
        raise ConfigError(f"rows of {name} must have shape [n, {dim}] (got {list(rows.shape)})")
    item_bytes = DTYPES[dtype].itemsize
    if isinstance(rows, torch.Tensor):
        flat = rows.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
    else:
        native = rows if rows.dtype.isnative else rows.astype(rows.dtype.newbyteorder("="))
        flat = np.ascontiguousarray(native).reshape(-1).view(np.uint8)
    return flat.reshape(len(rows), dim * item_bytes)


@dataclass(frozen=True)
class TableFiles:
    """The files of a table that is being written."""

    table: RowTable
    checksums: Path
    chunk_rows: int


class TableWriter:
    """Writes the rows of one table in order. Made by :class:`gids.DatasetWriter`.

    Attributes
    ----------
    rows_done : int
        Rows that need not be appended (again): above zero at the start where a killed job goes on.
    """

    def __init__(
        self,
        journal: Journal,
        key: str,
        name: str,
        dtype: str,
        dim: int,
        num_rows: int,
        files: Sequence[Path],
        *,
        stripe_rows: int | None = None,
        row_stride: int | None = None,
        check: Check | None = None,
        progress: Progress | None = None,
        pool: _native.ThreadPool,
    ):
        row_bytes = dim * DTYPES[dtype].itemsize if dtype in DTYPES else 0
        rows_per_unit = max(1, num_rows) if len(files) == 1 else stripe_rows or max(1, (1 << 20) // max(row_bytes, 1))
        counts = stripe_row_counts(max(num_rows, 0), rows_per_unit, len(files))
        stripes = tuple(Stripe(path, 0, rows) for path, rows in zip(files, counts, strict=True))
        self.table = RowTable(name, dtype, dim, num_rows, row_stride or row_bytes, stripes, rows_per_unit)
        self.chunk_rows = checksum.chunk_rows(self.table.row_bytes)
        self._journal, self._key, self._check, self._progress, self._pool = journal, key, check, progress, pool
        self._spec = [dtype, dim, num_rows, self.table.row_stride, rows_per_unit, [str(path) for path in files]]
        note = journal.get(f"table {key}")
        self.rows_done = note["rows"] if note is not None and note["spec"] == self._spec else 0
        self._pending = np.empty((0, self.table.row_bytes), np.uint8)  # rows after the last whole chunk
        self._since_checkpoint = 0
        self._checksum_path = journal.directory / "checksums" / f"{key}.xxh3"
        self._descriptors: list[int] = []
        self._complete = False
        for path in (*files, self._checksum_path):
            path.parent.mkdir(parents=True, exist_ok=True)
        self._require_space()
        for path in (*files, self._checksum_path):
            self._descriptors.append(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666))
        self._report()

    def _require_space(self) -> None:
        needed: dict[int, int] = {}
        home: dict[int, Path] = {}
        for stripe in self.table.stripes:
            device = stripe.path.parent.stat().st_dev
            stored = stripe.path.stat().st_blocks * 512 if stripe.path.exists() else 0
            needed[device] = needed.get(device, 0) + max(0, stripe.num_rows * self.table.row_stride - stored)
            home[device] = stripe.path.parent
        for device, count in needed.items():
            free = shutil.disk_usage(home[device]).free
            if count > free:
                raise DatasetError(
                    f"{self.table.name} needs {format_bytes(count)} on the disk of {home[device]}, "
                    f"which has {format_bytes(free)} free: free some space and run the command again"
                )

    def append(self, rows: Rows) -> None:
        """Append rows, ``dtype[n, dim]`` (or ``dtype[n]`` for ``dim == 1``)."""
        data = row_bytes_of(rows, self.table.dtype, self.table.dim, self.table.name)
        if self.rows_done + len(data) > self.table.num_rows:
            raise ConfigError(
                f"{self.table.name} must get {self.table.num_rows} rows (got {self.rows_done + len(data)})"
            )
        if self._check is not None and len(data):
            self._check(data.reshape(-1).view(self.table.dtype), self.rows_done)
        write_rows(self.table, self._descriptors, self.rows_done, data)
        self._add_to_checksums(data)
        self.rows_done += len(data)
        self._since_checkpoint += data.nbytes
        if self._since_checkpoint >= CHECKPOINT_BYTES:
            self._checkpoint(self.rows_done - len(self._pending))
        self._report()

    def checkpoint(self) -> None:
        """Force what was appended to disk and note it: after a kill, only rows of an unfinished chunk are missing."""
        if not self._complete:
            self._checkpoint(self.rows_done - len(self._pending))

    def finish(self) -> StoredTable:
        """Force everything to disk; gives the table for the manifest. Rows must be complete."""
        if self.rows_done != self.table.num_rows:
            raise ConfigError(f"{self.table.name} must get {self.table.num_rows} rows (got {self.rows_done})")
        sizes = tuple(stripe.num_rows * self.table.row_stride for stripe in self.table.stripes)
        if not self._complete:
            if len(self._pending):
                self._write_records(self._pending, self.rows_done - len(self._pending))
            records = -(-self.table.num_rows // self.chunk_rows) * checksum.RECORD.itemsize
            for descriptor, size in zip(self._descriptors, (*sizes, records), strict=True):
                os.ftruncate(descriptor, size)  # a former run may have left a longer file
            self._checkpoint(self.table.num_rows)
            self._complete = True
            self.close()
        relative = self._checksum_path.relative_to(self._journal.directory)
        digest = checksum.file_digest(self._checksum_path)
        return StoredTable(self.table, sizes, ChecksumFile(str(relative), self.chunk_rows, digest))

    @property
    def files(self) -> TableFiles:
        """Where the rows go, for :class:`PieceWriter` in other processes."""
        return TableFiles(self.table, self._checksum_path, self.chunk_rows)

    def filled(self) -> None:
        """Take it that others have written all rows and checksums, and forced them to disk."""
        self.rows_done, self._pending = self.table.num_rows, self._pending[:0]
        self._report()

    def close(self) -> None:
        """Close the files; rows after the last checkpoint may be lost."""
        while self._descriptors:
            os.close(self._descriptors.pop())

    def _report(self) -> None:
        if self._progress is not None:
            self._progress(self.table.name, self.rows_done * self.table.row_bytes, self.table.total_bytes)

    def _checkpoint(self, rows: int) -> None:
        for descriptor, stripe in zip(self._descriptors, (*self.table.stripes, None), strict=True):
            with write_errors(stripe.path if stripe else self._checksum_path, self.table.name):
                os.fdatasync(descriptor)
        self._journal.note(f"table {self._key}", {"rows": rows, "spec": self._spec})
        self._since_checkpoint = 0

    def _add_to_checksums(self, data: np.ndarray) -> None:
        first = self.rows_done - len(self._pending)
        if len(self._pending):
            room = self.chunk_rows - len(self._pending)
            self._pending = np.concatenate([self._pending, data[:room]])
            data = data[room:]
            if len(self._pending) < self.chunk_rows:
                return
            self._write_records(self._pending, first)
            first += self.chunk_rows
        whole = len(data) // self.chunk_rows * self.chunk_rows
        if whole:
            self._write_records(data[:whole], first)
        self._pending = data[whole:].copy()

    def _write_records(self, rows: np.ndarray, first_row: int) -> None:
        records = checksum.chunk_records(rows, self.chunk_rows, self._pool)
        offset = first_row // self.chunk_rows * checksum.RECORD.itemsize
        _write(self._descriptors[-1], records.view(np.uint8), offset, self._checksum_path, self.table.name)


class PieceWriter:
    """Writes consecutive rows of a table that a :class:`TableWriter` has begun, in any process that sees its files.

    Parameters
    ----------
    files : TableFiles
        Of the table.
    begin : int
        First row; with ``sealed`` at the beginning of a chunk, and every append but the last of whole chunks.
    sealed : bool
        Write checksums too; otherwise :func:`seal` does, when all rows are there.
    """

    def __init__(self, files: TableFiles, begin: int, sealed: bool = False):
        self.table, self.rows_done, self.chunk_rows = files.table, begin, files.chunk_rows
        self._files, self._sealed = files, sealed
        paths = [stripe.path for stripe in self.table.stripes] + [files.checksums]
        self._descriptors = [os.open(path, os.O_RDWR | os.O_CLOEXEC) for path in paths]

    def append(self, rows: Rows) -> None:
        """Append rows, ``dtype[n, dim]`` (or ``dtype[n]`` for ``dim == 1``)."""
        data = row_bytes_of(rows, self.table.dtype, self.table.dim, self.table.name)
        write_rows(self.table, self._descriptors, self.rows_done, data)
        if self._sealed:
            self.seal(data)
        self.rows_done += len(data)

    def seal(self, data: np.ndarray) -> None:
        """Write the checksums of rows from :attr:`rows_done` on, ``uint8[n, row_bytes]``."""
        records = checksum.chunk_records(data, self.chunk_rows, _native.ThreadPool(1, "gids-write"))
        offset = self.rows_done // self.chunk_rows * checksum.RECORD.itemsize
        _write(self._descriptors[-1], records.view(np.uint8), offset, self._files.checksums, self.table.name)

    def close(self) -> None:
        """Force everything to disk."""
        while self._descriptors:
            descriptor = self._descriptors.pop()
            with write_errors(self._files.checksums, self.table.name):
                os.fdatasync(descriptor)
            os.close(descriptor)

    def __enter__(self) -> PieceWriter:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def seal(files: TableFiles, begin: int, end: int, step_bytes: int) -> None:
    """Write the checksums of rows that are on disk; ``begin`` and ``end`` are where chunks do, or the table does.

    ``step_bytes`` are read at a time.
    """
    step = max(1, step_bytes // (files.chunk_rows * files.table.row_bytes)) * files.chunk_rows
    with PieceWriter(files, begin) as piece:
        for first in range(begin, end, step):
            piece.rows_done = first
            piece.seal(read_rows(files.table, first, min(end, first + step)))


def write_rows(table: RowTable, descriptors: Sequence[int], first_row: int, data: np.ndarray) -> None:
    """Write rows, ``uint8[n, row_bytes]``, where a table has them; ``descriptors`` are of its stripes."""
    if table.row_stride != table.row_bytes:
        padded = np.zeros((len(data), table.row_stride), np.uint8)
        padded[:, : table.row_bytes] = data
        data = padded
    for stripe, offset, row, count in pieces(table, first_row, first_row + len(data)):
        part = data[row - first_row : row - first_row + count]
        _write(descriptors[stripe], part, offset, table.stripes[stripe].path, table.name)


def _write(descriptor: int, data: np.ndarray, offset: int, path: Path, name: str) -> None:
    view, done = np.ascontiguousarray(data).reshape(-1).data, 0
    with write_errors(path, name):
        while done < len(view):
            done += os.pwrite(descriptor, view[done:], offset + done)


@contextlib.contextmanager
def write_errors(path: Path, name: str) -> Iterator[None]:
    """Turn what the kernel says about a failed write into a :class:`DatasetError` that names file and table."""
    try:
        yield
    except OSError as error:
        hint = ": free some space and run the command again" if error.errno in (errno.ENOSPC, errno.EDQUOT) else ""
        raise DatasetError(f"writing {path} of {name} failed: {error.strerror}{hint}") from error


def work_array(path: Path, dtype: npt.DTypeLike, length: int) -> np.ndarray:
    """Return an array of zeros in a file of its own, whose space is there: without it, a write would kill the process."""
    size = max(length, 1) * np.dtype(dtype).itemsize
    with write_errors(path, "the work in progress"), path.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, size)
    return np.memmap(path, dtype, "r+", shape=(length,))
