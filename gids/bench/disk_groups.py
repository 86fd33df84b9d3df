"""The groups of ``gids bench disk``: part of a table, merged, against single reads and against fio on the same reads."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import torch

from gids.bench.disk_common import Result, Setting, SingleReads, best_shape_of_ours, in_turn, paired, sampled, verify
from gids.bench.fio import plan_log, rates_of, replay_fio
from gids.bench.harness import Bar, Measurement
from gids.storage import ReadPlan, RowReader, plan_reads
from gids.storage.plan import Int64Array

# (b) One read per row pays per I/O; merging pays per byte. At bandwidth / IOPS of about 20 rows per I/O, a group with
# every tenth row costs less than half as much merged, with every third less than a quarter; with one row in forty
# there is hardly anything to merge, and trying must not cost anything.
GROUP_FLOORS = {0.025: 0.95, 0.10: 2.5, 0.33: 4.0}
# Sorted submission, a full queue and copies that overlap: nothing of what the disk gives for the merged reads is lost.
SAME_READS_FLOOR = 0.95
FIO_DEPTHS = (64, 128, 256)
# Gaps at which every tenth row is read too, to show what the best of them can do on this disk.
GAPS = (0, 4096, 8192, 12288, 16384, 24576, 32768)
GAP_SHARE, GAP_PART = 0.10, 8  # of an eighth of the table: short enough to take turns often


class FioPlan:
    """The reads of a plan, made by fio at the depth with which it is fastest."""

    def __init__(self, setting: Setting, plan: ReadPlan, log: Path):
        self.path, self.plan, self.log = setting.path, plan, log
        self.depth = FIO_DEPTHS[0]
        if not setting.quick:
            rates = rates_of([(depth, 1) for depth in FIO_DEPTHS], lambda shape: self._rate(shape[0]))
            self.depth = max(FIO_DEPTHS, key=lambda depth: statistics.median(rates[depth, 1]))

    @classmethod
    @contextmanager
    def of(cls, setting: Setting, plan: ReadPlan) -> Iterator[FioPlan]:
        """Write the plan to where fio can read it, and find the depth."""
        with plan_log(setting.path, plan) as log:
            yield cls(setting, plan, log)

    def _rate(self, depth: int) -> float:
        bandwidth = replay_fio(self.path, self.log, int(self.plan.length.max()), depth).bandwidth
        return self.plan.num_rows * bandwidth / self.plan.total_bytes

    def run(self) -> float:
        """Return useful rows per second."""
        return self._rate(self.depth)


def groups(setting: Setting) -> Result:
    """Measure (b): groups that cover part of the table, merged, against one read per row at its best depth.

    Beside each stands fio with exactly the merged reads, in their order: what the disk gives for this plan to someone
    who does nothing with the bytes.
    """
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
                out[sampled(len(rows))] = 0  # what verify looks at cannot be left over from the round before
                start = time.perf_counter()
                reader.read(rows, out=out[: len(rows)])
                seconds = time.perf_counter() - start
                verify(rows, out[: len(rows)])
                return len(rows) / seconds

            merged()
            with FioPlan.of(setting, plan_reads(table, rows, reader.limits)) as fio:
                ours, base, theirs = in_turn(setting.rounds, [merged, single.run, fio.run])
            name = f"{share:.1%} of 1 KiB rows"
            result.measurements += [
                Measurement(f"{name}: merged", "rows", tuple(ours)),
                Measurement(f"{name}: one read per row, depth {depth}, {threads} threads", "rows", tuple(base)),
                Measurement(f"{name}: the merged reads by fio, depth {fio.depth}", "rows", tuple(theirs)),
            ]
            result.bars += [
                Bar(f"{name}: merged / one read per row", paired(ours, base), floor),
                Bar(f"{name}: merged / the same reads by fio", paired(ours, theirs), SAME_READS_FLOOR),
            ]
            result.extra[f"{name}: the merged reads by fio, times one read per row"] = paired(theirs, base)
        gap_curve(setting, single, result)
    # What a device that keeps to its probed costs can give at most, whoever reads.
    alone = setting.curve.rows_per_second(row_bytes, 1e-6)
    result.extra["merged_by_the_cost_model"] = {
        str(share): setting.curve.rows_per_second(row_bytes, share) / alone for share in GROUP_FLOORS
    }
    return result


def gap_curve(setting: Setting, single: SingleReads, result: Result) -> None:
    """Read every tenth row at several merge gaps beside one read per row, and what the probed costs make of it.

    Where the best gap stays below the floor of that group, no gap reaches it: reads and bytes add up on this disk, as
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
