"""Measure a device in seconds: latency, IOPS against depth and block size, bandwidth."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch

from gids.errors import ConfigError
from gids.storage.curve import DeviceCurve
from gids.storage.options import StorageOptions
from gids.storage.reader import RowReader
from gids.table import RowTable, Stripe

DEPTHS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
BLOCKS = (512, 4096, 16384, 65536, 262144, 1 << 20)
ROUNDS = 5  # passes over the depths
MIN_FILE_BYTES = 16 << 20
SCRATCH_BYTES = 1 << 30
REGION_BYTES = 1 << 30  # what is read at random; more than the caches inside drives


@contextmanager
def probe_file(path: Path, scratch_bytes: int = SCRATCH_BYTES) -> Iterator[Path]:
    """Give a file to read on the device of ``path``: the file itself, the largest in the directory, or a scratch one.

    Parameters
    ----------
    path : Path
        A file of at least 16 MiB or block device, or a directory.
    scratch_bytes : int
        Size of the scratch file that is written, and removed again, where a directory has no file a quarter as large.
    """
    if not path.exists():
        raise ConfigError(f"path must exist (got {path})")
    if not path.is_dir():
        yield path
        return
    files = [entry for entry in path.iterdir() if entry.is_file() and os.access(entry, os.R_OK)]
    largest = max(files, key=lambda entry: entry.stat().st_size, default=None)
    if largest is not None and largest.stat().st_size >= scratch_bytes // 4:
        yield largest
        return
    with tempfile.NamedTemporaryFile(dir=path, prefix=".gids-probe-") as scratch:
        chunk = np.random.default_rng(0).bytes(1 << 20)
        for _ in range(scratch_bytes >> 20):
            scratch.write(chunk)
        scratch.flush()
        os.fsync(scratch.fileno())
        os.posix_fadvise(scratch.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        yield Path(scratch.name)


def thread_counts() -> tuple[int, ...]:
    """I/O threads that are tried: powers of two, as many as there are processors and at most four."""
    return tuple(n for n in (1, 2, 4) if n <= (os.cpu_count() or 1))


def warm(path: Path, most_bytes: int, seconds: float, engine: str = "auto") -> int:
    """Read a file once from its start, so that every layer below has seen it; gives the bytes that were read.

    Virtual disks and hybrid drives answer the first read of a block many times slower than later ones. What counts for
    training is the second epoch and not the first.

    Parameters
    ----------
    path : Path
        The file.
    most_bytes : int
        Where to stop.
    seconds : float
        When to stop, if that comes first.
    engine : str
        As for :func:`probe`.
    """
    table = _rows_of(path, 1 << 20, most_bytes)
    slice_rows, done, start = 32, 0, time.perf_counter()
    out = torch.empty(slice_rows, 1 << 20, dtype=torch.uint8)
    with RowReader(table, StorageOptions(engine=engine, queue_depth=32, max_io_bytes=512 << 10)) as reader:
        while done < table.num_rows and (done == 0 or time.perf_counter() - start < seconds):
            rows = np.arange(done, min(done + slice_rows, table.num_rows))
            reader.read(rows, out=out[: len(rows)])
            done += len(rows)
    return done << 20


def _rows_of(path: Path, block_bytes: int, most_bytes: int) -> RowTable:
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
    if size < MIN_FILE_BYTES:
        raise ConfigError(f"path must hold at least {MIN_FILE_BYTES} bytes to be measured (got {size} in {path})")
    rows = min(size, most_bytes) // block_bytes
    return RowTable(str(path), "uint8", block_bytes, rows, block_bytes, (Stripe(path, 0, rows),), rows)


def _rate(
    path: Path, region_bytes: int, block_bytes: int, depth: int, threads: int, seconds: float, engine: str
) -> float:
    """Random reads per second of one block size at one depth."""
    table = _rows_of(path, block_bytes, region_bytes)
    options = StorageOptions(
        engine=engine,
        queue_depth=depth,
        threads=min(threads, depth),
        merge_gap_bytes=0,
        max_io_bytes=max(block_bytes, 4096),
        staging_bytes=max(16 << 20, 8 * block_bytes * threads),
    )
    generator = np.random.default_rng(depth * 7919 + block_bytes)
    with RowReader(table, options) as reader:
        # Few enough that hardly any two are neighbours, so that nothing is merged.
        group = max(1, min(table.num_rows // 50, (32 << 20) // block_bytes, 64 * depth))
        out = torch.empty(2, group, block_bytes, dtype=torch.uint8)
        reader.read(generator.integers(0, table.num_rows, min(group, depth)), out=out[0, : min(group, depth)])
        before = reader.stats()["reads"]
        start = time.perf_counter()
        # Two groups at a time: the next is planned and queued while the first is read, so the depth never sags.
        flying = [reader.submit(generator.integers(0, table.num_rows, group), out[0])]
        turn = 1
        while time.perf_counter() - start < seconds:
            flying.append(reader.submit(generator.integers(0, table.num_rows, group), out[turn]))
            flying.pop(0).wait()
            turn = 1 - turn
        flying.pop().wait()
        return (reader.stats()["reads"] - before) / (time.perf_counter() - start)


def depth_passes(
    path: Path, region_bytes: int, *, threads: int, rounds: int, seconds: float, engine: str = "auto"
) -> list[tuple[float, ...]]:
    """Measure random reads of 4 KiB per second at every one of :data:`DEPTHS`, in passes that go up and down in turn.

    A device that others use too is now fast, now slow: the median over passes is what it does at a depth.

    Parameters
    ----------
    path : Path
        A file.
    region_bytes : int
        How much of it is read, from its start.
    threads : int
        I/O threads.
    rounds : int
        Passes.
    seconds : float
        Time for all of them.
    engine : str
        As for :func:`probe`.
    """
    each = seconds / (rounds * len(DEPTHS))
    passes = []
    for number in range(rounds):
        order = DEPTHS if number % 2 == 0 else DEPTHS[::-1]
        rates = {depth: _rate(path, region_bytes, 4096, depth, threads, each, engine) for depth in order}
        passes.append(tuple(rates[depth] for depth in DEPTHS))
    return passes


def probe(
    path: Path,
    *,
    seconds: float = 4.0,
    engine: str = "auto",
    progress: Callable[[str], None] = lambda text: None,
    scratch_bytes: int = SCRATCH_BYTES,
) -> DeviceCurve:
    """Measure the device that holds ``path``.

    Parameters
    ----------
    path : Path
        A file of at least 16 MiB, or a directory: its largest file is read, or a scratch file that is removed again.
    seconds : float
        Time for all measurements together; half as much again may be spent on warming up.
    engine : str
        What to measure with; the default is what readers use.
    progress : callable
        Called with one line per measurement.
    scratch_bytes : int
        Size of the scratch file where one is needed.
    """
    counts = thread_counts()
    each = seconds / (len(counts) + len(DEPTHS) + len(BLOCKS))
    with probe_file(path, scratch_bytes) as file:
        region = warm(file, REGION_BYTES, seconds / 2, engine)
        by_threads = []
        for threads in counts:
            by_threads.append(_rate(file, region, 4096, DEPTHS[-1], threads, each, engine))
            progress(f"4 KiB with {threads} threads: {by_threads[-1]:,.0f} reads/s")
        # The fewest that come close to the best: a thread more takes processor time from whoever trains.
        threads = next(n for n, rate in zip(counts, by_threads, strict=True) if rate >= 0.9 * max(by_threads))
        passes = depth_passes(file, region, threads=threads, rounds=ROUNDS, seconds=each * len(DEPTHS), engine=engine)
        by_depth = [float(np.median(rates)) for rates in zip(*passes, strict=True)]
        for depth, rate in zip(DEPTHS, by_depth, strict=True):
            progress(f"4 KiB at depth {depth}: {rate:,.0f} reads/s")
        best = DEPTHS[int(np.argmax(by_depth))]
        by_block = []
        for block in BLOCKS:
            # A deep queue of large reads only adds memory: 16 MiB in flight keep any drive busy.
            depth = max(1, min(best, (16 << 20) // block))
            by_block.append(_rate(file, region, block, depth, threads, each, engine))
            progress(f"{block} B at depth {depth}: {by_block[-1]:,.0f} reads/s")
    bandwidth = max(block * rate for block, rate in zip(BLOCKS, by_block, strict=True))
    return DeviceCurve(
        depths=DEPTHS,
        iops_at_depth=tuple(by_depth),
        block_bytes=4096,
        blocks=BLOCKS,
        iops_at_block=tuple(by_block),
        bandwidth=bandwidth,
        latency_us=1e6 / by_depth[0],
        source="probe",
        threads=threads,
    )
