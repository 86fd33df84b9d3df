"""Sequential access to a table's rows, for checks, labels and splits; batches are read by :mod:`gids.storage`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from gids import _native
from gids.errors import ConfigError
from gids.storage.system import read_into
from gids.table import RowTable

#: Bytes that one step of a sequential pass holds in memory.
BLOCK_BYTES = 32 << 20


def pieces(table: RowTable, begin: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """Cut rows ``begin..end`` where the stripe changes: yields (stripe, byte offset, first row, number of rows)."""
    row = begin
    while row < end:
        stripe, offset = table.locate(row)
        stop = end if len(table.stripes) == 1 else min(end, (row // table.stripe_rows + 1) * table.stripe_rows)
        yield stripe, offset, row, stop - row
        row = stop


def read_rows(table: RowTable, begin: int = 0, end: int | None = None) -> np.ndarray:
    """Read consecutive rows as bytes.

    Returns
    -------
    numpy.ndarray
        ``uint8[end - begin, row_bytes]``, without padding.
    """
    end = table.num_rows if end is None else end
    if end > begin:
        table.check_held(begin, end - 1)
    out = np.empty((end - begin, table.row_bytes), np.uint8)
    for stripe, offset, row, count in pieces(table, begin, end):
        path, target = table.stripes[stripe].path, out[row - begin : row - begin + count]
        if table.row_stride == table.row_bytes:
            read_into(path, offset, target)
            continue
        data = np.empty((count - 1) * table.row_stride + table.row_bytes, np.uint8)
        read_into(path, offset, data)
        rows = np.lib.stride_tricks.as_strided(data, (count, table.row_bytes), (table.row_stride, 1))
        target[:] = rows
    return out


def load_offsets(table: RowTable) -> np.ndarray:
    """Read a list of offsets into memory on huge pages: ``int64[num_rows]``, whose ``base`` owns the memory."""
    memory = _native.huge_bytes(table.num_rows * table.row_bytes)
    stripe = table.stripes[0]
    if len(table.stripes) == 1 and table.row_stride == table.row_bytes:
        read_into(stripe.path, stripe.data_offset, memory)
    else:
        for begin, end in blocks(table):
            memory[begin * table.row_bytes : end * table.row_bytes] = read_rows(table, begin, end).reshape(-1)
    return memory.view(np.int64)


class StoredOffsets:
    """A list of offsets that stays on disk: what is asked for is read, and nothing is kept."""

    def __init__(self, table: RowTable):
        self.table = table

    def __len__(self) -> int:
        return self.table.num_rows

    def __getitem__(self, key: int | slice) -> Any:
        """Read one offset, or ``int64[n]`` of consecutive ones."""
        if isinstance(key, slice):
            begin, end, step = key.indices(len(self))
            if step != 1:
                raise ConfigError(f"offsets of {self.table.name} must be read one after the other (got step {step})")
            return read_rows(self.table, begin, max(begin, end)).reshape(-1).view(np.int64)
        row = range(len(self))[key]
        return int(read_rows(self.table, row, row + 1).view(np.int64)[0, 0])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """Read all of them."""
        return load_offsets(self.table).astype(dtype or np.int64, copy=False)


def offset_parts(table: RowTable) -> Iterator[np.ndarray]:
    """Yield consecutive parts of a list of offsets, for who does not need the whole of it."""
    for begin, end in blocks(table):
        yield read_rows(table, begin, end).reshape(-1).view(np.int64)


def as_tensor(table: RowTable, rows: np.ndarray) -> torch.Tensor:
    """View the bytes of rows as values: ``dtype[n, dim]``, or ``dtype[n]`` for ``dim == 1``."""
    tensor = torch.from_numpy(rows.reshape(-1)).view(table.torch_dtype)
    return tensor if table.dim == 1 else tensor.view(-1, table.dim)


def blocks(table: RowTable, multiple: int = 1) -> Iterator[tuple[int, int]]:
    """Cut a table into ranges of about :data:`BLOCK_BYTES`, each a multiple of ``multiple`` rows."""
    step = max(1, BLOCK_BYTES // max(table.row_stride, 1) // multiple) * multiple
    for begin in range(0, table.num_rows, step):
        yield begin, min(begin + step, table.num_rows)
