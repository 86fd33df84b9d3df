"""Measure what a device writes, and how fast it reads back what was just written: what spilling and packing cost."""

from __future__ import annotations

import mmap
import os
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from gids.errors import ConfigError
from gids.storage.curve import load_curve
from gids.storage.options import StorageOptions
from gids.storage.reader import RowReader
from gids.table import RowTable, Stripe
from gids.units import format_bytes

WRITTEN_BYTES = 256 << 20
WRITE_BYTES = 1 << 20
WRITERS = 4


class WriteRates(NamedTuple):
    """Bytes per second: written in large pieces, and read for the first time after that."""

    write: float
    read_back: float


def probe_writes(directory: Path, most_bytes: int | None = None) -> WriteRates:
    """Write a scratch file without a name in large direct writes, several at once, and read it; takes about a second.

    Parameters
    ----------
    directory : Path
        Where the file is made.
    most_bytes : int, optional
        What may be written, where that is less than a trial takes; one write at least.
    """
    size = WRITTEN_BYTES if most_bytes is None else min(WRITTEN_BYTES, most_bytes)
    size = max(1, size // WRITE_BYTES) * WRITE_BYTES
    memory = mmap.mmap(-1, WRITE_BYTES)
    memory.write(np.random.default_rng(0).bytes(WRITE_BYTES))
    try:
        with tempfile.TemporaryFile(dir=directory, buffering=0) as file:
            path = Path(f"/proc/self/fd/{file.fileno()}")
            os.posix_fallocate(file.fileno(), 0, size)
            written = _write(path, memory, size)
            return WriteRates(written, _read(path, size))
    except OSError as error:
        raise ConfigError(
            f"{directory} must have room for {format_bytes(size)} on trial ({error.strerror or error})"
        ) from error
    finally:
        memory.close()


def _write(path: Path, memory: mmap.mmap, size: int) -> float:
    flags = os.O_WRONLY | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags | os.O_DIRECT)
    except OSError:  # a file system without direct access
        descriptor = os.open(path, flags)
    try:
        begin = time.perf_counter()
        with ThreadPoolExecutor(WRITERS, "gids-write") as threads:
            list(threads.map(lambda at: os.pwrite(descriptor, memory, at), range(0, size, WRITE_BYTES)))
        os.fdatasync(descriptor)
        return size / (time.perf_counter() - begin)
    finally:
        os.close(descriptor)


def _read(path: Path, size: int) -> float:
    rows = size // WRITE_BYTES
    table = RowTable("what was written", "uint8", WRITE_BYTES, rows, WRITE_BYTES, (Stripe(path, 0, rows),), rows)
    out = torch.empty(min(rows, 32), WRITE_BYTES, dtype=torch.uint8)
    with RowReader(table, StorageOptions(queue_depth=32, max_io_bytes=512 << 10)) as reader:
        begin = time.perf_counter()
        for first in range(0, rows, len(out)):
            wanted = torch.arange(first, min(first + len(out), rows))
            reader.submit(wanted, out[: len(wanted)]).wait()
        return size / (time.perf_counter() - begin)


def write_rates(directory: Path, most_bytes: int | None = None) -> WriteRates:
    """Return what ``gids probe`` measured of the device that holds a directory; where it did not, :func:`probe_writes`."""
    curve = load_curve(directory)
    if curve.write_bandwidth is None or curve.read_back_bandwidth is None:
        return probe_writes(directory, most_bytes)
    return WriteRates(curve.write_bandwidth, curve.read_back_bandwidth)
