"""Use a feature file where it is: ``.npy`` (behind its header) or raw rows; nothing is copied, only checksums are made."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from pathlib import Path
from tokenize import TokenError

import numpy as np

from gids import _native
from gids.dataset import checksum
from gids.dataset.manifest import ChecksumFile, StoredTable
from gids.dataset.rows import blocks, read_rows
from gids.dataset.table_writer import Progress, dtype_name, write_errors
from gids.errors import ConfigError, DatasetError
from gids.storage.system import read_errors
from gids.table import DTYPES, RowTable, Stripe

_NPY_MAGIC = b"\x93NUMPY"


@dataclass(frozen=True)
class RowFile:
    """A file of rows: where the first one begins, how many there are, and what they hold."""

    path: Path
    data_offset: int
    shape: tuple[int, ...]
    dtype: str

    @property
    def num_rows(self) -> int:
        """Rows in the file."""
        return self.shape[0]

    @property
    def dim(self) -> int:
        """Values in a row."""
        return int(np.prod(self.shape[1:], dtype=np.int64))


def is_npy(path: Path) -> bool:
    """Whether a file begins as ``numpy.save`` begins it; some published ``.npy`` files are raw rows."""
    with read_errors(path), path.open("rb") as file:
        return file.read(len(_NPY_MAGIC)) == _NPY_MAGIC


@dataclass(frozen=True)
class NpyHeader:
    """What a ``.npy`` file says about its array: the values begin at ``data_offset``."""

    path: Path
    shape: tuple[int, ...]
    dtype: np.dtype
    fortran: bool
    data_offset: int

    @property
    def in_place(self) -> bool:
        """Whether rows can be used where they are: in native byte order, row after row."""
        one_axis = sum(length > 1 for length in self.shape) < 2
        return self.dtype.isnative and (one_axis or not self.fortran) and self.dtype != bool


def read_npy_header(path: Path) -> NpyHeader:
    """Read the header of a ``.npy`` file and check that the file is as long as it says. Nothing is mapped."""
    try:
        with read_errors(path), path.open("rb") as file:
            version = np.lib.format.read_magic(file)
            read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
            shape, fortran, dtype = read(file)
            offset, size = file.tell(), os.fstat(file.fileno()).st_size
    except (ValueError, EOFError, SyntaxError, TypeError, RecursionError, MemoryError, TokenError) as error:
        raise DatasetError(f"{path} must be a whole .npy file of numbers ({error})") from error
    if dtype.hasobject or dtype.kind not in "biuf":
        raise DatasetError(f"{path} must be a whole .npy file of numbers (got {dtype})")
    if len(shape) == 0:
        raise DatasetError(f"{path} must hold an array with rows (got a single value)")
    needed = offset + math.prod(shape) * dtype.itemsize  # of Python's integers, which do not overflow
    if min(shape) < 0 or size < needed:
        raise DatasetError(f"{path} must be a whole .npy file of numbers (needs {needed} bytes, got {size})")
    return NpyHeader(path, shape, dtype, fortran, offset)


def npy_header(path: Path) -> RowFile:
    """Read the header of a ``.npy`` file and check that its rows can be read in place."""
    header = read_npy_header(path)
    if not header.in_place:
        raise DatasetError(f"{path} must be in native byte order and row after row to be used in place: convert it")
    return RowFile(path, header.data_offset, header.shape, dtype_name(header.dtype))


def raw_rows(path: Path, dtype: str, dim: int, num_rows: int | None = None, data_offset: int = 0) -> RowFile:
    """Describe a file of raw rows; the number of rows follows from its size unless it is given."""
    if dtype not in DTYPES:
        raise ConfigError(f"dtype must be one of {', '.join(DTYPES)} (got {dtype!r})")
    row_bytes = dim * DTYPES[dtype].itemsize
    size = path.stat().st_size - data_offset
    if num_rows is None and size % row_bytes:
        raise DatasetError(f"{path} must hold whole rows of {row_bytes} bytes (got {size} bytes)")
    rows = size // row_bytes if num_rows is None else num_rows
    if size < rows * row_bytes:
        raise DatasetError(f"{path} must have at least {rows * row_bytes} bytes for {rows} rows (got {size})")
    return RowFile(path, data_offset, (rows, dim), dtype)


def reference(
    file: RowFile, key: str, name: str, directory: Path, progress: Progress | None, pool: _native.ThreadPool
) -> StoredTable:
    """Describe a file of rows as a table and store its checksums in the unfinished dataset at ``directory``."""
    path = file.path.absolute()
    stripe = Stripe(path, file.data_offset, file.num_rows)
    row_bytes = file.dim * DTYPES[file.dtype].itemsize
    table = RowTable(name, file.dtype, file.dim, file.num_rows, row_bytes, (stripe,), max(1, file.num_rows))
    per_chunk = checksum.chunk_rows(table.row_bytes)
    target = directory / "checksums" / f"{key}.xxh3"
    target.parent.mkdir(parents=True, exist_ok=True)
    with write_errors(target, name), target.open("wb") as out:
        for begin, end in blocks(table, per_chunk):
            out.write(checksum.chunk_records(read_rows(table, begin, end), per_chunk, pool).tobytes())
            if progress is not None:
                progress(name, end * table.row_bytes, table.total_bytes)
        out.flush()
        os.fsync(out.fileno())
    record = ChecksumFile(str(target.relative_to(directory)), per_chunk, checksum.file_digest(target))
    return StoredTable(table, (path.stat().st_size,), record)
