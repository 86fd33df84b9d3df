"""Sequential access to a table's rows, for checks, labels and splits; batches are read by :mod:`gids.storage`."""

from __future__ import annotations

import os
from collections.abc import Iterator

import numpy as np
import torch

from gids.errors import StorageError
from gids.table import RowTable, Stripe

#: Bytes that one step of a sequential pass holds in memory.
BLOCK_BYTES = 32 << 20


def _read_exactly(stripe: Stripe, offset: int, length: int) -> bytearray:
    buffer = bytearray(length)
    view, done = memoryview(buffer), 0
    descriptor = os.open(stripe.path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        while done < length:
            count = os.preadv(descriptor, [view[done:]], offset + done)
            if count == 0:
                raise StorageError("file ends early", str(stripe.path), offset + done, length - done)
            done += count
    finally:
        os.close(descriptor)
    return buffer


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
    out = np.empty((end - begin, table.row_bytes), np.uint8)
    for stripe, offset, row, count in pieces(table, begin, end):
        length = (count - 1) * table.row_stride + table.row_bytes
        data = np.frombuffer(_read_exactly(table.stripes[stripe], offset, length), np.uint8)
        rows = np.lib.stride_tricks.as_strided(data, (count, table.row_bytes), (table.row_stride, 1))
        out[row - begin : row - begin + count] = rows
    return out


def as_tensor(table: RowTable, rows: np.ndarray) -> torch.Tensor:
    """View the bytes of rows as values: ``dtype[n, dim]``, or ``dtype[n]`` for ``dim == 1``."""
    tensor = torch.from_numpy(rows.reshape(-1)).view(table.torch_dtype)
    return tensor if table.dim == 1 else tensor.view(-1, table.dim)


def blocks(table: RowTable, multiple: int = 1) -> Iterator[tuple[int, int]]:
    """Cut a table into ranges of about :data:`BLOCK_BYTES`, each a multiple of ``multiple`` rows."""
    step = max(1, BLOCK_BYTES // max(table.row_stride, 1) // multiple) * multiple
    for begin in range(0, table.num_rows, step):
        yield begin, min(begin + step, table.num_rows)
