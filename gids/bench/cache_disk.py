"""The accumulator's model on this disk: fitted to one series of measurements, judged by another."""

from __future__ import annotations

import os
import statistics
import time
from pathlib import Path

import numpy as np
import torch

from gids.bench.harness import Bar, Report
from gids.storage import RowReader, StorageOptions
from gids.table import RowTable, Stripe
from gids.tiers import AccessModel

DEPTHS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
DIM = 1024  # float32: reads of 4 KiB, as in the paper's figure 8
#: Rounds over all depths: two up, two down in each set, so that drift and order hit both sets alike.
FIT_ROUNDS, JUDGE_ROUNDS = (0, 3, 4, 7), (1, 2, 5, 6)


def _make_table(path: Path, size_bytes: int) -> RowTable:
    block = np.random.default_rng(0).bytes(8 << 20)
    with path.open("wb") as file:
        for _ in range(size_bytes // len(block)):
            file.write(block)
        os.fsync(file.fileno())
    rows = path.stat().st_size // (DIM * 4)
    return RowTable("random reads", "float32", DIM, rows, DIM * 4, (Stripe(path, 0, rows),), rows)


def _measure(table: RowTable, depth: int, seconds: float, guess: float, generator: torch.Generator) -> float:
    count = max(2 * depth, int(guess * seconds))
    rows = torch.randint(0, table.num_rows, (count,), generator=generator)
    out = torch.empty(count, DIM)
    with RowReader(table, StorageOptions(queue_depth=depth, merge_gap_bytes=0)) as reader:
        reader.read(rows[:depth])
        before = reader.stats()["reads"]
        begin = time.perf_counter()
        reader.read(rows, out)
        return (reader.stats()["reads"] - before) / (time.perf_counter() - begin)


def depth_curve(directory: Path, size_bytes: int, seconds: float, ceiling: float, report: Report) -> None:
    """Measure random 4 KiB reads at every depth; half of the rounds fit the model, the other half judge it."""
    table = _make_table(directory / "random-reads", size_bytes)
    generator = torch.Generator().manual_seed(0)
    measured: dict[int, list[float]] = {depth: [] for depth in DEPTHS}
    _measure(table, max(DEPTHS), seconds, 100_000.0, generator)  # the file was just written: let the drive settle
    for number in sorted(FIT_ROUNDS + JUDGE_ROUNDS):
        for depth in DEPTHS if number % 2 == 0 else reversed(DEPTHS):
            guess = measured[depth][-1] if measured[depth] else 10_000.0 * min(depth, 16)
            measured[depth].append(_measure(table, depth, seconds, guess, generator))
    fitted_to = [statistics.median(measured[depth][i] for i in FIT_ROUNDS) for depth in DEPTHS]
    judged_by = [statistics.median(measured[depth][i] for i in JUDGE_ROUNDS) for depth in DEPTHS]
    model = AccessModel.fit(DEPTHS, fitted_to)
    predicted = [model.iops(depth) for depth in DEPTHS]
    errors = [abs(guess / seen - 1) for guess, seen in zip(predicted, judged_by, strict=True)]
    report.extra["accumulator"] = {
        "peak_iops": model.peak_iops,
        "overhead_us": model.overhead_s * 1e6,
        "accesses for 95 %": model.accesses_for(0.95),
        "depths": list(DEPTHS),
        "predicted_iops": predicted,
        "measured_iops": judged_by,
        "error": errors,
        "rounds_iops": {str(depth): rates for depth, rates in measured.items()},
    }
    report.bars.append(Bar("accumulator's model, largest error", max(errors), ceiling, lower_is_better=True))
