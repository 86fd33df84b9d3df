"""A whole column into memory at the disk's speed: several reads at once, past the page cache where the file allows it."""

from __future__ import annotations

import errno
import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt

from gids import _native
from gids.dataset.rows import blocks, read_rows
from gids.errors import DatasetError, StorageError
from gids.storage.system import read_errors
from gids.table import RowTable, Stripe

Array = npt.NDArray[Any]

#: Bytes of one read, and reads at once: enough to keep a drive busy with large reads.
PIECE_BYTES = 8 << 20
READS = 4
_DIRECT_BYTES = 4096


def load_table(table: RowTable) -> Array:
    """Read a whole one-column table into memory on huge pages."""
    if table.dim != 1:
        raise DatasetError(f"{table.name} must have dim 1 to be used as an array (got {table.dim})")
    dtype = np.dtype(table.dtype)
    whole: Array = _native.huge_bytes(table.num_rows * dtype.itemsize).view(dtype)
    if table.row_stride == dtype.itemsize and len(table.stripes) == 1:
        read_bytes(table.stripes[0], whole.view(np.uint8))
        return whole
    for begin, end in blocks(table):
        whole[begin:end] = read_rows(table, begin, end).reshape(-1).view(dtype)
    return whole


def read_bytes(stripe: Stripe, out: Array) -> None:
    """Fill ``out`` with a stripe's bytes from their beginning on, in several reads at once."""
    if not len(out):
        return
    with read_errors(stripe.path, stripe.data_offset, len(out)):
        plain = os.open(stripe.path, os.O_RDONLY | os.O_CLOEXEC)
    direct = _open_direct(stripe, out)
    try:
        with ThreadPoolExecutor(min(READS, -(-len(out) // PIECE_BYTES)), "gids-load") as threads:
            jobs = [
                threads.submit(_read_piece, plain, direct, stripe, out, begin)
                for begin in range(0, len(out), PIECE_BYTES)
            ]
            for job in jobs:
                job.result()
    finally:
        os.close(plain)
        if direct is not None:
            os.close(direct)


def _open_direct(stripe: Stripe, out: Array) -> int | None:
    if stripe.data_offset % _DIRECT_BYTES or out.ctypes.data % _DIRECT_BYTES:
        return None
    try:
        return os.open(stripe.path, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECT)
    except OSError:  # a file system without direct reads
        return None


def _read_piece(plain: int, direct: int | None, stripe: Stripe, out: Array, begin: int) -> None:
    end, done = min(begin + PIECE_BYTES, len(out)), begin
    view = memoryview(out.data)
    while done < end:
        # Whole pages past the page cache; what is left of the last one, and what a device refuses, through it.
        whole = (end - done) // _DIRECT_BYTES * _DIRECT_BYTES
        past = direct is not None and whole > 0 and done % _DIRECT_BYTES == 0
        try:
            with read_errors(stripe.path, stripe.data_offset + done, end - done):
                if past and direct is not None:
                    count = os.preadv(direct, [view[done : done + whole]], stripe.data_offset + done)
                else:
                    count = os.preadv(plain, [view[done:end]], stripe.data_offset + done)
        except StorageError as error:
            if not past or error.errno != errno.EINVAL:
                raise
            direct = None
            continue
        if count == 0:
            raise StorageError("file ends early", str(stripe.path), stripe.data_offset + done, len(out) - done)
        done += count
