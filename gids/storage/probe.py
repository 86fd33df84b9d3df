"""Measure a device in seconds: latency, IOPS against depth and block size, bandwidth."""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch

from gids.errors import ConfigError
from gids.storage.curve import SECTOR_BYTES, DeviceCurve
from gids.storage.options import StorageOptions
from gids.storage.plan import Int64Array
from gids.storage.reader import RowReader
from gids.table import RowTable, Stripe
from gids.units import format_bytes

DEPTHS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
BLOCKS = (512, 4096, 16384, 65536, 262144, 1 << 20)
ROUNDS = 5  # passes over threads, depths and sizes
#: What a further I/O thread has to bring. It takes processor time from whoever trains, and less is noise.
THREAD_GAIN = 1.1
MIN_FILE_BYTES = 16 << 20
SCRATCH_BYTES = 1 << 30
REGION_BYTES = 1 << 30  # what is read at random; more than the caches inside drives


def _is_full(file: Path) -> bool:
    """Whether a file has hardly any holes: they are read without the device, as in one node's part of a dataset."""
    status = file.stat()
    return status.st_blocks * 512 >= 0.9 * status.st_size


@contextlib.contextmanager
def probe_file(path: Path, scratch_bytes: int = SCRATCH_BYTES) -> Iterator[Path]:
    """Return a file to read on the device of ``path``: the file itself, the largest in the directory, or a scratch one.

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
    try:
        files = [entry for entry in path.iterdir() if entry.is_file() and os.access(entry, os.R_OK) and _is_full(entry)]
    except OSError as error:
        raise ConfigError(f"{path} must be a directory that can be listed ({error.strerror})") from error
    largest = max(files, key=lambda entry: entry.stat().st_size, default=None)
    if largest is not None and largest.stat().st_size >= scratch_bytes // 4:
        yield largest
        return
    with contextlib.ExitStack() as stack:
        try:
            scratch = stack.enter_context(tempfile.NamedTemporaryFile(dir=path, prefix=".gids-probe-"))
            chunk = np.random.default_rng(0).bytes(1 << 20)
            for _ in range(scratch_bytes >> 20):
                scratch.write(chunk)
            scratch.flush()
            os.fsync(scratch.fileno())
        except OSError as error:
            raise ConfigError(
                f"{path} must have room for a scratch file of {format_bytes(scratch_bytes)} that gids may write "
                f"({error.strerror}); or give a file of at least 16 MiB to read, or a smaller --scratch"
            ) from error
        os.posix_fadvise(scratch.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        yield Path(scratch.name)


def thread_counts() -> tuple[int, ...]:
    """I/O threads that are tried: powers of two, as many as there are processors and at most four."""
    return tuple(n for n in (1, 2, 4) if n <= (os.cpu_count() or 1))


def fewest_threads(rates: Mapping[int, Sequence[float]]) -> int:
    """Return the fewest threads to which no larger number adds more than :data:`THREAD_GAIN`, and not by chance.

    Parameters
    ----------
    rates : mapping from int to sequence of float
        Reads per second by number of threads, of trials that took turns. The gain has to show in three of four of them.
    """

    def gain(few: int, many: int) -> float:
        return float(np.quantile(np.divide(rates[many], rates[few]), 0.25))

    return min(few for few in rates if all(gain(few, many) <= THREAD_GAIN for many in rates if many > few))


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
    """Random reads per second of one block size at one depth.

    What is asked for are the first and the last sector of each block. The planner bridges what lies between, as it does
    in a merged group, and nobody copies it: what is measured is the device, not the memory behind it.
    """
    table = _rows_of(path, SECTOR_BYTES, region_bytes)
    sectors = block_bytes // SECTOR_BYTES
    blocks = table.num_rows // sectors
    options = StorageOptions(
        engine=engine,
        queue_depth=depth,
        threads=min(threads, depth),
        merge_gap_bytes=max(0, block_bytes - 2 * SECTOR_BYTES),
        max_io_bytes=max(block_bytes, 4096),
        staging_bytes=max(16 << 20, 8 * block_bytes * threads),
    )
    generator = np.random.default_rng(depth * 7919 + block_bytes)
    # Few enough that hardly any two are neighbours, so that a block is a read.
    group = max(1, min(blocks // 50, (32 << 20) // block_bytes, 64 * depth))
    ends = np.array([0, sectors - 1] if sectors > 1 else [0])
    out = torch.zeros(2, group * len(ends), SECTOR_BYTES, dtype=torch.uint8)

    def rows(count: int) -> Int64Array:
        chosen: Int64Array = generator.integers(0, blocks, (count, 1)) * sectors + ends
        return chosen.reshape(-1)

    with RowReader(table, options) as reader:
        few = min(group, depth)
        reader.read(rows(few), out=out[0, : few * len(ends)])
        before = reader.stats()["reads"]
        start = time.perf_counter()
        # Two groups at a time: the next is planned and queued while the first is read, so the depth never sags.
        flying = [reader.submit(rows(group), out[0])]
        turn = 1
        while time.perf_counter() - start < seconds:
            flying.append(reader.submit(rows(group), out[turn]))
            flying.pop(0).wait()
            turn = 1 - turn
        flying.pop().wait()
        return (reader.stats()["reads"] - before) / (time.perf_counter() - start)


def _passes(points: Sequence[int], rounds: int, rate: Callable[[int], float]) -> list[tuple[float, ...]]:
    """Measure every point once a pass, in passes that go up and down in turn.

    A device that others use too is now fast, now slow: the median over passes is what it does at a point.
    """
    passes = []
    for number in range(rounds):
        order = points if number % 2 == 0 else points[::-1]
        rates = {point: rate(point) for point in order}
        passes.append(tuple(rates[point] for point in points))
    return passes


def _medians(passes: list[tuple[float, ...]]) -> list[float]:
    return [float(np.median(rates)) for rates in zip(*passes, strict=True)]


def depth_passes(
    path: Path, region_bytes: int, *, threads: int, rounds: int, seconds: float, engine: str = "auto"
) -> list[tuple[float, ...]]:
    """Measure random reads of 4 KiB per second at every one of :data:`DEPTHS`, in passes that go up and down in turn.

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
    return _passes(DEPTHS, rounds, lambda depth: _rate(path, region_bytes, 4096, depth, threads, each, engine))


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
    # The sizes get twice the time: they decide what a read costs against a byte, and with that every merged group.
    each = seconds / (len(counts) + len(DEPTHS) + 2 * len(BLOCKS))
    with probe_file(path, scratch_bytes) as file:
        region = warm(file, REGION_BYTES, seconds / 2, engine)
        passes = _passes(counts, ROUNDS, lambda n: _rate(file, region, 4096, DEPTHS[-1], n, each / ROUNDS, engine))
        for threads, rate in zip(counts, _medians(passes), strict=True):
            progress(f"4 KiB with {threads} threads: {rate:,.0f} reads/s")
        threads = fewest_threads(dict(zip(counts, zip(*passes, strict=True), strict=True)))
        by_depth = _medians(
            depth_passes(file, region, threads=threads, rounds=ROUNDS, seconds=each * len(DEPTHS), engine=engine)
        )
        for depth, rate in zip(DEPTHS, by_depth, strict=True):
            progress(f"4 KiB at depth {depth}: {rate:,.0f} reads/s")
        best = DEPTHS[int(np.argmax(by_depth))]

        def block_rate(block: int) -> float:
            # A deep queue of large reads only adds memory: 16 MiB in flight keep any drive busy.
            depth = max(1, min(best, (16 << 20) // block))
            return _rate(file, region, block, depth, threads, 2 * each / ROUNDS, engine)

        by_block = _medians(_passes(BLOCKS, ROUNDS, block_rate))
        for block, rate in zip(BLOCKS, by_block, strict=True):
            progress(f"{block} B: {rate:,.0f} reads/s")
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
