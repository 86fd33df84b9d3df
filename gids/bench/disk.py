"""``gids bench disk``: rows from disk against tuned fio, merged groups against single reads, copies against torch."""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path

import numpy as np
import torch

from gids.bench.disk_common import (
    Result,
    Setting,
    SingleReads,
    bench_file,
    best_shape_of_ours,
    in_turn,
    paired,
    settle,
    verify,
)
from gids.bench.disk_groups import groups
from gids.bench.fio import Shape, best_shapes, fio_engine, require_fio, run_fio
from gids.bench.harness import Bar, Measurement, Report
from gids.storage import RowReader, StorageOptions
from gids.storage.probe import probe, warm

FILE_BYTES, QUICK_FILE_BYTES = 4 << 30, 32 << 20
# Many short rounds: a virtual disk changes its speed by a fifth from one second to the next.
ROUNDS, QUICK_ROUNDS = 9, 2
SECONDS, QUICK_SECONDS = 0.5, 0.1

# (a) Depth kept full, registered files and buffers: nothing but the copy stands between us and what fio measures.
RANDOM_FLOOR = 0.95
# (e) The copy to the destination, the sort and the hand-over may cost a third of what fio spends on submitting.
CPU_FLOOR = 1.3
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


class FioReads:
    """Random reads by fio of one block size, depth and number of jobs."""

    def __init__(self, setting: Setting, block_bytes: int, shape: Shape):
        self.setting, self.block_bytes, self.shape = setting, block_bytes, shape
        self.cpu_us: list[float] = []

    def run(self) -> float:
        """Return reads per second."""
        setting = self.setting
        result = run_fio(setting.path, "randread", self.block_bytes, *self.shape, setting.seconds)
        self.cpu_us.append(result.cpu_us)
        return result.iops


def random_rows(setting: Setting, row_bytes: int) -> Result:
    """Measure (a) and (e): single rows against fio's best for that block size, with one job and with two.

    Reads per second are compared with the faster of the two. Processor time is compared with both, and the one that
    takes less of it decides.
    """
    shapes = best_shapes(setting.path, "randread", row_bytes, setting.seconds / 2, quick=setting.quick)
    fio = [FioReads(setting, row_bytes, shape) for shape in shapes]
    depth, threads = best_shape_of_ours(setting, row_bytes)
    single = SingleReads(setting, row_bytes, depth, threads)
    with single.reader:
        single.run()  # staging, destination and threads are there before the first round that counts
        single.cpu_us.clear()
        ours, *theirs = in_turn(setting.rounds + 2, [single.run, *(each.run for each in fio)])
    name = f"{row_bytes} B rows"
    cpu_ratios = [paired(single.cpu_us, each.cpu_us) for each in fio]
    return Result(
        [
            Measurement(f"{name}: gids, depth {depth}, {threads} threads", "reads", tuple(ours)),
            *(
                Measurement(f"{name}: fio, depth {each.shape[0]}, {each.shape[1]} jobs", "reads", tuple(rates))
                for each, rates in zip(fio, theirs, strict=True)
            ),
        ],
        {
            f"cpu_us_per_read_{row_bytes}": {
                "gids": statistics.median(single.cpu_us),
                **{f"fio, {each.shape[1]} jobs": statistics.median(each.cpu_us) for each in fio},
                **{f"gids / fio, {each.shape[1]} jobs": r for each, r in zip(fio, cpu_ratios, strict=True)},
            }
        },
        [
            Bar(f"random {name} / fio's best", min(paired(ours, rates) for rates in theirs), RANDOM_FLOOR),
            Bar(f"CPU per {name} / fio's, one job or two", max(cpu_ratios), CPU_FLOOR, lower_is_better=True),
        ],
    )


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
        pace = settle(lambda: run_fio(path, "randread", 4096, 128, 1, seconds / 2).iops, 3 if args.quick else 30)
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
        "reads_per_s_before": pace,
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
