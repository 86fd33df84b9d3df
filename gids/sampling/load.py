"""A whole column into memory at the disk's speed: several reads at once, past the page cache where the file allows it."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

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


class Place(Protocol):
    """Provides memory for a column: of this process, or shared with others that ask for the same name."""

    def __call__(self, name: str, num_bytes: int, fill: Callable[[Array], None]) -> Array:
        """Return so many bytes that ``fill`` has written, here or elsewhere."""


def own_memory(name: str, num_bytes: int, fill: Callable[[Array], None]) -> Array:
    """Return memory of this process on huge pages, filled; a :class:`Place`."""
    memory: Array = _native.huge_bytes(num_bytes)
    fill(memory)
    return memory


def load_table(table: RowTable, *, below: int | None = None, place: Place = own_memory, name: str = "") -> Array:
    """Read a whole one-column table into memory.

    Parameters
    ----------
    table : RowTable
        The column.
    below : int, optional
        What all values must be smaller than, and not negative: each piece is checked where it was read.
    place : Place
        Where the column goes.
    name : str
        What it is called there.
    """
    if table.dim != 1:
        raise DatasetError(f"{table.name} must have dim 1 to be used as an array (got {table.dim})")
    dtype = np.dtype(table.dtype)

    def check(values: Array) -> None:
        if below is not None and len(values) and not 0 <= values.min() <= values.max() < below:
            raise DatasetError(f"{table.name} must be in [0, {below}) (got {values.min()} to {values.max()})")

    def fill(memory: Array) -> None:
        whole = memory.view(dtype)
        if table.row_stride == dtype.itemsize and len(table.stripes) == 1:
            read_bytes(table.stripes[0], memory, lambda begin, end: check(memory[begin:end].view(dtype)))
            return
        for begin, end in blocks(table):
            whole[begin:end] = read_rows(table, begin, end).reshape(-1).view(dtype)
            check(whole[begin:end])

    return place(name or table.name, table.num_rows * dtype.itemsize, fill).view(dtype)


def read_bytes(stripe: Stripe, out: Array, done: Callable[[int, int], None] = lambda begin, end: None) -> None:
    """Fill ``out`` with a stripe's bytes from their beginning on, in several reads at once.

    ``done(begin, end)`` is called for each piece when it is there, by the thread that read it.
    """
    if not len(out):
        return
    with read_errors(stripe.path, stripe.data_offset, len(out)):
        plain = os.open(stripe.path, os.O_RDONLY | os.O_CLOEXEC)
    direct = _open_direct(stripe, out)
    try:
        with ThreadPoolExecutor(min(READS, -(-len(out) // PIECE_BYTES)), "gids-load") as threads:
            jobs = []
            for begin in range(0, len(out), PIECE_BYTES):
                try:
                    jobs.append(threads.submit(_read_piece, plain, direct, stripe, out, begin, done))
                except RuntimeError:  # the system has no more threads
                    _read_piece(plain, direct, stripe, out, begin, done)
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


def _read_piece(
    plain: int, direct: int | None, stripe: Stripe, out: Array, begin: int, finish: Callable[[int, int], None]
) -> None:
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
    finish(begin, end)
