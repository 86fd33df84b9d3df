"""``gids bench disk``: rows from disk against tuned fio, merged groups against single reads, copies against torch."""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch

from gids.bench.fio import Shape, best_shape, fio_engine, rates_of, require_fio, run_fio
from gids.bench.harness import Bar, Measurement, Report
from gids.errors import DatasetError
from gids.storage import RowReader, StorageOptions
from gids.storage.curve import DeviceCurve
from gids.storage.plan import Int64Array
from gids.storage.probe import fewest_threads, probe, warm
from gids.table import RowTable, Stripe

FILE_BYTES, QUICK_FILE_BYTES = 4 << 30, 32 << 20
MULTIPLIER = 2654435761  # odd, so that every 32-bit word of the file is different: a misplaced row cannot go unnoticed
# Many short rounds: a virtual disk changes its speed by a fifth from one second to the next.
ROUNDS, QUICK_ROUNDS = 9, 2
SECONDS, QUICK_SECONDS = 0.5, 0.1
SHAPES = ((64, 1), (128, 1), (256, 1), (128, 2), (256, 2))  # depth and I/O threads; fio's jobs are tried alike

# (a) Depth kept full, registered files and buffers: nothing but the copy stands between us and what fio measures.
RANDOM_FLOOR = 0.95
# (e) The copy to the destination, the sort and the hand-over may cost a third of what fio spends on submitting.
CPU_FLOOR = 1.3
# (b) One read per row pays per I/O; merging pays per byte. At bandwidth / IOPS of about 20 rows per I/O, a group with
# every tenth row costs less than half as much merged, with every third less than a quarter; with one row in forty
# there is hardly anything to merge, and trying must not cost anything.
GROUP_FLOORS = {0.025: 0.95, 0.10: 2.5, 0.33: 4.0}
# Gaps at which every tenth row is read too, to show what the best of them can do on this disk.
GAPS = (0, 4096, 8192, 12288, 16384, 24576, 32768)
GAP_SHARE, GAP_PART = 0.10, 8  # of an eighth of the table: short enough to take turns often
# (c) Sequential rows are large reads; the copy overlaps with them.
SEQUENTIAL_FLOOR = 0.95
# (d) With no device, what is left is plan + copy, and the copy is what index_select does.
MEMORY_FLOOR = 0.9


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``gids bench disk``."""
    parser.add_argument(
        "--dir", type=Path, default=Path(), help="where the 4 GiB file goes; on the disk to be measured"
    )
    parser.add_argument("--keep", action="store_true", help="keep the file for the next run")


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
        """Give the file as rows of so many bytes."""
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
    """Give a file whose word i is ``i * MULTIPLIER``, on disk and not in the page cache."""
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


def verify(rows: Int64Array, out: torch.Tensor, samples: int = 2000) -> None:
    """Check rows against what the file holds by construction: the ends and a sample, outside the clock."""
    chosen = np.unique(np.linspace(0, len(rows) - 1, min(samples, len(rows))).astype(np.int64))
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


class SingleReads:
    """Random single rows, in groups of a few thousand of which two are under way at any time."""

    def __init__(self, setting: Setting, row_bytes: int, depth: int, threads: int):
        self.table = setting.table(row_bytes)
        self.reader = RowReader(self.table, setting.single_reads(depth, threads))
        # One row in a few hundred: too few to be neighbours, so that a row is a read.
        self.group = max(256, min(16384, self.table.num_rows // 400))
        self.seconds = setting.seconds
        self.out = torch.zeros(2, self.group, self.table.dim, dtype=torch.int32)
        self.generator = np.random.default_rng(depth)
        self.cpu_us: list[float] = []

    def run(self) -> float:
        """Give reads per second; verifies after the clock has stopped."""
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
    """Give the depth and threads with which single reads are fastest here."""
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


def random_rows(setting: Setting, row_bytes: int) -> Result:
    """Measure (a) and (e): single rows against fio's best for that block size."""
    fio_depth, fio_jobs = best_shape(setting.path, "randread", row_bytes, setting.seconds / 2, quick=setting.quick)
    fio_cpu: list[float] = []

    def fio() -> float:
        result = run_fio(setting.path, "randread", row_bytes, fio_depth, fio_jobs, setting.seconds)
        fio_cpu.append(result.cpu_us)
        return result.iops

    depth, threads = best_shape_of_ours(setting, row_bytes)
    single = SingleReads(setting, row_bytes, depth, threads)
    with single.reader:
        single.run()  # staging, destination and threads are there before the first round that counts
        single.cpu_us.clear()
        ours, theirs = in_turn(setting.rounds + 2, [single.run, fio])
    name = f"{row_bytes} B rows"
    return Result(
        [
            Measurement(f"{name}: gids, depth {depth}, {threads} threads", "reads", tuple(ours)),
            Measurement(f"{name}: fio, depth {fio_depth}, {fio_jobs} jobs", "reads", tuple(theirs)),
        ],
        {
            f"cpu_us_per_read_{row_bytes}": {
                "gids": statistics.median(single.cpu_us),
                "fio": statistics.median(fio_cpu),
            }
        },
        [
            Bar(f"random {name} / fio's best", paired(ours, theirs), RANDOM_FLOOR),
            Bar(f"CPU per {name} / fio's", paired(single.cpu_us, fio_cpu), CPU_FLOOR, lower_is_better=True),
        ],
    )


def groups(setting: Setting) -> Result:
    """Measure (b): groups that cover part of the table, merged, against one read per row at its best depth."""
    row_bytes, result = 1024, Result()
    table = setting.table(row_bytes)
    depth, threads = best_shape_of_ours(setting, row_bytes)
    single = SingleReads(setting, row_bytes, depth, threads)
    generator = np.random.default_rng(0)
    out = torch.zeros(int(table.num_rows * max(GROUP_FLOORS)) + 1, table.dim, dtype=torch.int32)
    with single.reader, RowReader(table, setting.merged_reads()) as reader:
        single.run()
        for share, floor in GROUP_FLOORS.items():
            rows = np.sort(generator.choice(table.num_rows, int(table.num_rows * share), replace=False))

            def merged(rows: Int64Array = rows) -> float:
                out[0], out[len(rows) - 1] = 0, 0  # the ends are always verified
                start = time.perf_counter()
                reader.read(rows, out=out[: len(rows)])
                seconds = time.perf_counter() - start
                verify(rows, out[: len(rows)])
                return len(rows) / seconds

            merged()
            ours, base = in_turn(setting.rounds, [merged, single.run])
            name = f"{share:.1%} of 1 KiB rows"
            result.measurements += [
                Measurement(f"{name}: merged", "rows", tuple(ours)),
                Measurement(f"{name}: one read per row, depth {depth}, {threads} threads", "rows", tuple(base)),
            ]
            result.bars.append(Bar(f"{name}: merged / one read per row", paired(ours, base), floor))
        gap_curve(setting, single, result)
    # What a device that keeps to its probed costs can give at most, whoever reads.
    alone = setting.curve.rows_per_second(row_bytes, 1e-6)
    result.extra["merged_by_the_cost_model"] = {
        str(share): setting.curve.rows_per_second(row_bytes, share) / alone for share in GROUP_FLOORS
    }
    return result


def gap_curve(setting: Setting, single: SingleReads, result: Result) -> None:
    """Read every tenth row at several merge gaps beside one read per row, and what the probed costs make of it.

    Where the best gap stays below the floor of that group, no plan reaches it: reads and bytes add up on this disk, as
    the model says, and its bandwidth is too small for its IOPS.
    """
    table, curve = single.table, setting.curve
    part = table.num_rows // GAP_PART
    rows = np.sort(np.random.default_rng(2).choice(part, int(part * GAP_SHARE), replace=False))
    out = torch.zeros(len(rows), table.dim, dtype=torch.int32)

    def timed(reader: RowReader) -> Callable[[], float]:
        def merged() -> float:
            out.zero_()
            start = time.perf_counter()
            reader.read(rows, out=out)
            seconds = time.perf_counter() - start
            verify(rows, out)
            return len(rows) / seconds

        return merged

    with ExitStack() as stack:
        readers = [stack.enter_context(RowReader(table, setting.merged_reads(gap))) for gap in GAPS]
        *by_gap, base = in_turn(setting.rounds, [*map(timed, readers), single.run])
    alone = curve.rows_per_second(table.row_bytes, 1e-6)
    result.extra["every tenth row by merge gap, times one read per row"] = {
        str(gap): {
            "measured": paired(rates, base),
            "rows_per_second": statistics.median(rates),
            "model": curve.rows_per_second(table.row_bytes, GAP_SHARE, merge_gap_bytes=gap) / alone,
        }
        for gap, rates in zip(GAPS, by_gap, strict=True)
    }


def sequential(setting: Setting) -> Result:
    """Measure (c): rows in file order against fio's sequential bandwidth."""
    shapes = [(block, depth) for block in (128 << 10, 256 << 10, 1 << 20) for depth in (8, 32)]
    shapes = shapes[:1] if setting.quick else shapes
    rates = [run_fio(setting.path, "read", block, depth, 1, setting.seconds).bandwidth for block, depth in shapes]
    block, depth = shapes[int(np.argmax(rates))]
    table = setting.table(1024)
    count = min(table.num_rows, 1 << 20)
    out = torch.zeros(count, table.dim, dtype=torch.int32)
    starts = iter(np.random.default_rng(1).integers(0, table.num_rows - count + 1, 1000).tolist())
    with RowReader(table, setting.merged_reads()) as reader:

        def ours() -> float:
            begin = next(starts)
            rows = np.arange(begin, begin + count)
            start = time.perf_counter()
            reader.read(rows, out=out)
            seconds = time.perf_counter() - start
            verify(rows, out)
            return count * table.row_bytes / seconds

        ours()
        mine, fio = in_turn(
            setting.rounds,
            [ours, lambda: run_fio(setting.path, "read", block, depth, 1, setting.seconds).bandwidth],
        )
    return Result(
        [
            Measurement("sequential: gids", "bytes", tuple(mine)),
            Measurement(f"sequential: fio, {block >> 10} KiB, depth {depth}", "bytes", tuple(fio)),
        ],
        bars=[Bar("sequential / fio's bandwidth", paired(mine, fio), SEQUENTIAL_FLOOR)],
    )


def memory(setting: Setting) -> Result:
    """Measure (d): the null device against torch.index_select on the same rows."""
    table = setting.table(1024, min(setting.size, 1 << 30))
    source = torch.from_numpy(np.fromfile(setting.path, np.int32, table.num_rows * table.dim).reshape(-1, table.dim))
    count = min(200_000, table.num_rows // 4)
    generator = np.random.default_rng(3)
    out = torch.zeros(2, count, table.dim, dtype=torch.int32)
    with RowReader(table, StorageOptions(engine="memory")) as reader:

        def ours() -> float:
            rows = generator.integers(0, table.num_rows, count)
            start = time.perf_counter()
            reader.read(rows, out=out[0])
            seconds = time.perf_counter() - start
            verify(rows, out[0])
            return count / seconds

        def theirs() -> float:
            rows = torch.from_numpy(generator.integers(0, table.num_rows, count))
            start = time.perf_counter()
            torch.index_select(source, 0, rows, out=out[1])
            return count / (time.perf_counter() - start)

        ours(), theirs()
        mine, select = in_turn(max(setting.rounds, 5) * 2, [ours, theirs])
    return Result(
        [
            Measurement("memory: gids", "rows", tuple(mine)),
            Measurement("memory: torch.index_select", "rows", tuple(select)),
        ],
        bars=[Bar("memory engine / torch.index_select", paired(mine, select), MEMORY_FLOOR)],
    )


def run(args: argparse.Namespace) -> Report:
    """Measure everything; takes about four minutes, ``--quick`` some seconds."""
    require_fio()
    size = QUICK_FILE_BYTES if args.quick else FILE_BYTES
    with bench_file(args.dir, size, args.keep) as path:
        warm(path, size, seconds=60.0)  # no contender pays for the first read of a block
        seconds = QUICK_SECONDS if args.quick else SECONDS
        curve = probe(path, seconds=0.3 if args.quick else 8.0)
        setting = Setting(path, size, QUICK_ROUNDS if args.quick else ROUNDS, seconds, curve, args.quick)
        parts = [random_rows(setting, row_bytes) for row_bytes in (512, 1024, 4096)]
        parts += [groups(setting), sequential(setting), memory(setting)]
        with RowReader(setting.table(1024)) as reader:
            engine = {"engine": reader.engine, "reason": reader.engine_reason, "notes": reader.notes}
    settings: dict[str, object] = {
        "file_bytes": size,
        "rounds": setting.rounds,
        "seconds_per_run": seconds,
        "page_cache": "bypassed (O_DIRECT)",
        "ratio": "median over rounds of gids / opponent, in alternating order",
        "merge_gap_bytes": curve.merge_gap_bytes,
        "queue_depth": curve.best_depth,
        "threads": curve.threads,
        "cost": curve.cost._asdict(),
        **engine,
        "fio_engine": fio_engine(),
    }
    return Report(
        "disk",
        settings,
        [m for part in parts for m in part.measurements],
        {name: value for part in parts for name, value in part.extra.items()},
        [bar for part in parts for bar in part.bars],
    )
