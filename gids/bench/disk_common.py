"""What the parts of ``gids bench disk`` share: the file, the check of its bytes, the turns, and single reads."""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch

from gids.bench.fio import Shape, rates_of
from gids.bench.harness import Bar, Measurement
from gids.errors import DatasetError
from gids.storage import RowReader, StorageOptions, aligned_empty
from gids.storage.curve import DeviceCurve
from gids.storage.plan import Int64Array
from gids.storage.probe import fewest_threads
from gids.table import RowTable, Stripe

MULTIPLIER = 2654435761  # odd, so that every 32-bit word of the file is different: a misplaced row cannot go unnoticed
SHAPES = ((64, 1), (128, 1), (256, 1), (128, 2), (256, 2))  # depth and I/O threads; fio's jobs are tried alike


@dataclass
class Result:
    """What a part of the benchmark adds to the report."""

    measurements: list[Measurement] = field(default_factory=list)
    extra: dict[str, object] = field(default_factory=dict)
    bars: list[Bar] = field(default_factory=list)


@dataclass(frozen=True)
class Setting:
    """What every part needs to know."""

    path: Path
    size: int
    rounds: int
    seconds: float
    curve: DeviceCurve
    quick: bool

    def table(self, row_bytes: int, size: int | None = None) -> RowTable:
        """Return the file as rows of so many bytes."""
        rows = (size or self.size) // row_bytes
        return RowTable("bench", "int32", row_bytes // 4, rows, row_bytes, (Stripe(self.path, 0, rows),), rows)

    def single_reads(self, depth: int, threads: int) -> StorageOptions:
        """Options of one read per row."""
        return StorageOptions(queue_depth=depth, threads=threads, merge_gap_bytes=0)

    def merged_reads(self, merge_gap_bytes: int | None = None) -> StorageOptions:
        """Options that come from the curve, as in any run after ``gids probe``; the gap may be another."""
        curve = self.curve
        gap = curve.merge_gap_bytes if merge_gap_bytes is None else merge_gap_bytes
        return StorageOptions(queue_depth=curve.best_depth, threads=curve.threads, merge_gap_bytes=gap)


@contextmanager
def bench_file(directory: Path, size: int, keep: bool) -> Iterator[Path]:
    """Return a file whose word i is ``i * MULTIPLIER``, on disk and not in the page cache."""
    path = directory / f"gids-bench-disk-{size >> 20}MiB.bin"
    if not path.exists() or path.stat().st_size != size:
        with tempfile.NamedTemporaryFile(dir=directory, prefix=".gids-bench-", delete=False) as file:
            for first in range(0, size // 4, 1 << 22):
                words = np.arange(first, min(first + (1 << 22), size // 4), dtype=np.uint64) * MULTIPLIER
                file.write(words.astype(np.uint32).tobytes())
            file.flush()
            os.fsync(file.fileno())
        Path(file.name).replace(path)
    with path.open("rb") as written:
        os.posix_fadvise(written.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    try:
        yield path
    finally:
        if not keep:
            path.unlink()


def sampled(count: int, samples: int = 2000) -> Int64Array:
    """Return which of so many rows are verified: the ends and what lies evenly between them."""
    chosen: Int64Array = np.unique(np.linspace(0, count - 1, min(samples, count)).astype(np.int64))
    return chosen


def verify(rows: Int64Array, out: torch.Tensor) -> None:
    """Check rows against what the file holds by construction: the ends and a sample, outside the clock."""
    chosen = sampled(len(rows))
    words = rows[chosen, None].astype(np.uint64) * out.shape[1] + np.arange(out.shape[1], dtype=np.uint64)
    if not np.array_equal((words * MULTIPLIER).astype(np.uint32).view(np.int32), out[chosen].numpy()):
        raise DatasetError("bytes read must equal bytes written (they differ)")


def paired(first: list[float], second: list[float]) -> float:
    """Median over rounds of first / second: drift that hits both halves of a round cancels."""
    return statistics.median(a / b for a, b in zip(first, second, strict=True))


def in_turn(rounds: int, contenders: list[Callable[[], float]]) -> list[list[float]]:
    """Run every contender once per round, in reverse order in every other round; give their figures."""
    figures: list[list[float]] = [[] for _ in contenders]
    for number in range(rounds):
        order = range(len(contenders)) if number % 2 == 0 else reversed(range(len(contenders)))
        for i in order:
            figures[i].append(contenders[i]())
    return figures


def settle(rate: Callable[[], float], most: int = 30) -> list[float]:
    """Repeat until three rates in a row lie within a tenth, at most so often; give all rates.

    A virtual disk may take seconds to reach its pace, and meanwhile the first depth that is tried looks worst.
    """
    rates = [rate() for _ in range(3)]
    while len(rates) < most and min(rates[-3:]) < 0.9 * max(rates[-3:]):
        rates.append(rate())
    return rates


class SingleReads:
    """Random single rows, in groups of a few thousand of which two are under way at any time."""

    def __init__(self, setting: Setting, row_bytes: int, depth: int, threads: int):
        self.table = setting.table(row_bytes)
        self.reader = RowReader(self.table, setting.single_reads(depth, threads))
        # One row in a few hundred: too few to be neighbours, so that a row is a read.
        self.group = max(256, min(16384, self.table.num_rows // 400))
        self.seconds = setting.seconds
        self.out = [aligned_empty(self.group, self.table.dim, torch.int32).zero_() for _ in range(2)]
        self.generator = np.random.default_rng(depth)
        self.cpu_us: list[float] = []

    def run(self) -> float:
        """Return reads per second; verifies after the clock has stopped."""
        before, cpu, start = self.reader.stats()["reads"], time.process_time(), time.perf_counter()
        flying = []
        for turn in range(1 << 30):
            rows = self.generator.integers(0, self.table.num_rows, self.group)
            flying.append((rows, self.reader.submit(rows, self.out[turn % 2])))
            if time.perf_counter() - start > self.seconds:
                break
            if len(flying) == 2:
                flying.pop(0)[1].wait()
        done = [(rows, pending.wait()) for rows, pending in flying]
        seconds, used = time.perf_counter() - start, time.process_time() - cpu
        reads = self.reader.stats()["reads"] - before
        self.cpu_us.append(used / reads * 1e6)
        for rows, out in done:
            verify(rows, out)
        return reads / seconds


def best_shape_of_ours(setting: Setting, row_bytes: int) -> tuple[int, int]:
    """Return the depth and threads with which single reads are fastest here."""
    if setting.quick:
        return SHAPES[0]

    def rate(shape: tuple[int, int]) -> float:
        single = SingleReads(replace(setting, seconds=setting.seconds / 2), row_bytes, *shape)
        with single.reader:
            return single.run()

    rates = rates_of(SHAPES, rate)
    best: dict[int, Shape] = {}  # by threads
    for shape in sorted(SHAPES, key=lambda shape: statistics.median(rates[shape])):
        best[shape[1]] = shape
    # As in the probe: a second thread takes processor time from whoever trains, and must bring more than noise.
    return best[fewest_threads({threads: rates[shape] for threads, shape in best.items()})]
