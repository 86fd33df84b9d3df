"""Rows of other people's files, read forward in pieces: arrays, ``.npy``, raw bytes and members of ``.npz``."""

from __future__ import annotations

import zipfile
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch

from gids.dataset.in_place import NpyHeader, RowFile, is_npy, npy_header, raw_rows, read_npy_header
from gids.dataset.table_writer import Rows, dtype_name
from gids.errors import DatasetError
from gids.storage.system import read_errors, read_into
from gids.table import DTYPES


class RowSource(ABC):
    """Rows that can be read once from any row on; what every converter takes.

    Attributes
    ----------
    name : str
        For messages.
    num_rows, dim : int
        Shape; 1 for a plain list.
    dtype : str
        A key of :data:`gids.table.DTYPES`.
    row_file : RowFile or None
        Where the rows lie, if they can be used in place.
    divisible : bool
        Whether reading from the middle costs no more than its rows, so that several processes may each read a part.
    """

    name: str
    num_rows: int
    dim: int
    dtype: str
    row_file: RowFile | None = None
    divisible: bool = False

    @abstractmethod
    def read(self, begin: int, step: int) -> Iterator[Rows]:
        """Yield ``[step, dim]`` rows (fewer at the end), from row ``begin`` on."""

    def read_range(self, begin: int, end: int, step: int) -> Iterator[Rows]:
        """Yield rows from ``begin`` to ``end``, at most ``step`` at a time."""
        if begin >= end:
            return
        for rows in self.read(begin, min(step, end - begin)):
            yield rows[: end - begin]
            begin += len(rows)
            if begin >= end:
                return


def _width(shape: tuple[int, ...]) -> int:
    return int(np.prod(shape[1:], dtype=np.int64))


class ArrayRows(RowSource):
    """An array or tensor; a memory-mapped one is read piece by piece."""

    def __init__(self, array: Any, name: str):
        self.array = array if isinstance(array, torch.Tensor) else np.asanyarray(array)
        if self.array.ndim == 0:
            raise DatasetError(f"{name} must be an array with rows (got a single value)")
        if isinstance(self.array, torch.Tensor):
            self.array = self.array.view(torch.uint8) if self.array.dtype == torch.bool else self.array
        elif self.array.dtype == bool:
            self.array = self.array.view(np.uint8)
        self.name = name
        self.num_rows, self.dim = len(self.array), _width(tuple(self.array.shape))
        self.dtype = dtype_name(self.array.dtype)

    def read(self, begin: int, step: int) -> Iterator[Rows]:
        """Yield slices."""
        for first in range(begin, self.num_rows, step):
            part = self.array[first : first + step]
            yield part.reshape(len(part), self.dim)


class ColumnRows(RowSource):
    """One column of a source of rows, as a source of its own."""

    def __init__(self, table: RowSource, column: int, dtype: str | None = None):
        self.name, self.num_rows, self.dim = table.name, table.num_rows, 1
        self.dtype, self.divisible = dtype or table.dtype, table.divisible
        self._table, self._column = table, column

    def read(self, begin: int, step: int) -> Iterator[Rows]:
        """Yield the column of every piece of rows."""
        for rows in self._table.read(begin, step):
            column = rows[:, self._column]
            yield column if isinstance(column, torch.Tensor) else column.astype(self.dtype, copy=False)


class FileRows(RowSource):
    """Rows of a file, read rather than mapped: what was copied does not stay in this process's memory."""

    divisible = True

    def __init__(self, file: RowFile):
        self.name, self.row_file = str(file.path), file
        self.num_rows, self.dim, self.dtype = file.num_rows, file.dim, file.dtype

    def read(self, begin: int, step: int) -> Iterator[Rows]:
        """Read piece after piece."""
        assert self.row_file is not None
        dtype = np.dtype("int16" if self.dtype == "bfloat16" else self.dtype)  # numpy knows no bfloat16
        for first in range(begin, self.num_rows, step):
            rows = np.empty((min(step, self.num_rows - first), self.dim), dtype)
            read_into(self.row_file.path, self.row_file.data_offset + first * self.dim * dtype.itemsize, rows)
            yield torch.from_numpy(rows).view(torch.bfloat16) if self.dtype == "bfloat16" else rows


class ConvertedRows(RowSource):
    """Rows of a ``.npy`` file in another byte or axis order, converted while they are read."""

    divisible = True

    def __init__(self, header: NpyHeader):
        self.header, self.name = header, str(header.path)
        self.num_rows, self.dim = header.shape[0], _width(header.shape)
        kind = np.dtype(np.uint8) if header.dtype == bool else header.dtype
        self._stored, self._native = kind, kind.newbyteorder("=")
        self.dtype = dtype_name(self._native)

    def read(self, begin: int, step: int) -> Iterator[Rows]:
        """Read piece after piece; a piece of a file in column order is gathered column by column."""
        size = self._stored.itemsize
        # Where the i-th value of a row, in row order, stands among the columns of the file.
        columns = np.arange(self.dim).reshape(self.header.shape[1:], order="F").reshape(-1)
        for first in range(begin, self.num_rows, step):
            count = min(step, self.num_rows - first)
            rows = np.empty((count, self.dim), self._stored)
            if self.header.fortran:
                column = np.empty(count, self._stored)
                for i, number in enumerate(columns):
                    at = int(number) * self.num_rows + first
                    read_into(self.header.path, self.header.data_offset + at * size, column)
                    rows[:, i] = column
            else:
                read_into(self.header.path, self.header.data_offset + first * self.dim * size, rows)
            yield rows.astype(self._native, copy=False)

    def halves(self) -> tuple[RowSource, RowSource]:
        """Split a file of two long rows into a list of values each."""
        shape, itemsize, offset = self.header.shape, self._stored.itemsize, self.header.data_offset
        if self.header.fortran:  # pair after pair
            pairs = ConvertedRows(replace(self.header, shape=(_width(shape), 2), fortran=False))
            return ColumnRows(pairs, 0), ColumnRows(pairs, 1)
        starts = (offset, offset + _width(shape) * itemsize)
        first, second = (
            ConvertedRows(replace(self.header, shape=(_width(shape),), data_offset=start)) for start in starts
        )
        return first, second


def npy_rows(path: Path) -> RowSource:
    """Open a ``.npy`` file; rows in another byte or axis order are converted while they are read."""
    header = read_npy_header(path)
    return FileRows(npy_header(path)) if header.in_place else ConvertedRows(header)


def npy_or_raw_rows(path: Path, dtype: str, dim: int, num_rows: int | None = None) -> RowSource:
    """Open a file called ``.npy`` that may have no header (the large IGB files have none)."""
    return npy_rows(path) if is_npy(path) else FileRows(raw_rows(path, dtype, dim, num_rows))


def halves(source: RowSource) -> tuple[RowSource, RowSource]:
    """Split a source of two long rows into a list of values each."""
    if isinstance(source, ArrayRows):
        return ArrayRows(source.array[0], source.name), ArrayRows(source.array[1], source.name)
    if isinstance(source, ConvertedRows):
        return source.halves()
    if isinstance(source, NpzRows):
        return NpzRows(source.path, source.key, (0, 2)), NpzRows(source.path, source.key, (1, 2))
    assert source.row_file is not None
    file, row_bytes = source.row_file, source.dim * DTYPES[source.dtype].itemsize
    offsets = (file.data_offset, file.data_offset + row_bytes)
    first, second = (FileRows(RowFile(file.path, offset, (source.dim,), file.dtype)) for offset in offsets)
    return first, second


class NpzRows(RowSource):
    """A member of an ``.npz`` archive, decompressed as it is read; or a run of its values as a plain list.

    Parameters
    ----------
    path, key : Path, str
        Archive and array.
    part : tuple of int, optional
        ``(row, rows)``: read row ``row`` of an array with ``rows`` long rows as a list of values, e.g. the sources of
        a ``[2, num_edges]`` array.
    """

    def __init__(self, path: Path, key: str, part: tuple[int, int] | None = None):
        self.path, self.key, self.name = path, key, f"{path}[{key}]"
        with self._open() as (_, shape, dtype):
            self.shape, self._dtype = shape, dtype
        self.dtype = dtype_name(dtype)
        self._skip = 0
        self.num_rows, self.dim = shape[0], _width(shape)
        if part is not None:
            row, rows = part
            if shape[0] != rows:
                raise DatasetError(f"{self.name} must have {rows} rows (got shape {list(shape)})")
            self.num_rows, self.dim = _width(shape), 1
            self._skip = row * self.num_rows * dtype.itemsize

    def _open(self) -> _Member:
        return _Member(self.path, self.key)

    def read(self, begin: int, step: int) -> Iterator[Rows]:
        """Decompress up to ``begin``, then yield rows."""
        row_bytes = self.dim * self._dtype.itemsize
        with read_errors(self.path), self._open() as (stream, _, _):
            _skip(stream, self._skip + begin * row_bytes, self.name)
            for first in range(begin, self.num_rows, step):
                count = min(step, self.num_rows - first)
                try:
                    data = stream.read(count * row_bytes)
                except (zipfile.BadZipFile, zlib.error, EOFError) as error:
                    raise DatasetError(f"{self.name} is damaged after row {first} ({error})") from error
                if len(data) != count * row_bytes:
                    raise DatasetError(f"{self.name} ends early: row {first + len(data) // row_bytes} is missing")
                yield np.frombuffer(data, self._dtype).reshape(count, self.dim)


class _Member:
    """An open member of an archive, behind its ``.npy`` header."""

    def __init__(self, path: Path, key: str):
        self._path, self._key = path, key
        try:
            with read_errors(path):
                self._archive = zipfile.ZipFile(path)
                self._stream = self._archive.open(f"{key}.npy")
        except (zipfile.BadZipFile, KeyError, RuntimeError) as error:  # encrypted, or unknown packing
            raise DatasetError(f"{path} must be an .npz archive with an array {key!r} ({error})") from error

    def __enter__(self) -> tuple[IO[bytes], tuple[int, ...], np.dtype]:
        try:
            version = np.lib.format.read_magic(self._stream)
            header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
            shape, fortran, dtype = header(self._stream)
        except (ValueError, EOFError, SyntaxError, TypeError, RuntimeError, zipfile.BadZipFile, zlib.error) as error:
            raise DatasetError(f"{self._path}[{self._key}] must be an array of numbers ({error})") from error
        if fortran or dtype.hasobject:
            raise DatasetError(f"{self._path}[{self._key}] must hold numbers, row after row")
        return self._stream, shape, dtype

    def __exit__(self, *error: object) -> None:
        self._stream.close()
        self._archive.close()


def _skip(stream: IO[bytes], count: int, name: str) -> None:
    while count:
        data = stream.read(min(count, 1 << 24))
        if not data:
            raise DatasetError(f"{name} ends early")
        count -= len(data)


def npz_keys(path: Path) -> list[str]:
    """Names of the arrays in an archive."""
    try:
        with read_errors(path), zipfile.ZipFile(path) as archive:
            return [name.removesuffix(".npy") for name in archive.namelist()]
    except zipfile.BadZipFile as error:
        raise DatasetError(f"{path} must be an .npz archive ({error})") from error
