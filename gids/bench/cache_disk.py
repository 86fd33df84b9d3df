"""The accumulator's model on this disk: its constants from some passes over the depths, judged by those between them."""

from __future__ import annotations

import os
import statistics
from pathlib import Path

import numpy as np

from gids.bench.harness import Bar, Report
from gids.storage.probe import depth_passes, probe
from gids.tiers import AccessModel


def _make_file(path: Path, size_bytes: int) -> Path:
    block = np.random.default_rng(0).bytes(8 << 20)
    with path.open("wb") as file:
        for _ in range(size_bytes // len(block)):
            file.write(block)
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return path


def _medians(passes: list[tuple[float, ...]]) -> list[float]:
    return [statistics.median(at_depth) for at_depth in zip(*passes, strict=True)]


def depth_curve(directory: Path, size_bytes: int, seconds: float, rounds: int, ceiling: float, report: Report) -> None:
    """Fit the model to every other pass over the depths, and hold it against the passes between.

    A disk that others use too is faster now and slower then, by more than what is promised. Passes of both kinds take
    turns, many short ones, so that both medians see the same disk and what is left between them is the model.

    Parameters
    ----------
    directory : Path
        Where a file is made to be read.
    size_bytes : int
        Its size.
    seconds : float
        For the passes that the model is fitted to, and again for those that judge it.
    rounds : int
        Passes of each kind; at each depth their median counts.
    ceiling : float
        Largest relative error that is promised, at any depth.
    report : Report
        Gets the results and the bar.
    """
    file = _make_file(directory / "random-reads", size_bytes)
    curve = probe(file, seconds=seconds / 6)  # reads the file once, and says how many threads are worth it
    passes = depth_passes(file, size_bytes, threads=curve.threads, rounds=2 * rounds, seconds=2 * seconds)
    # Every other pass goes down the depths: of four in turn the first and the last make the model.
    probed = _medians([rates for number, rates in enumerate(passes) if number % 4 in (0, 3)])
    measured = _medians([rates for number, rates in enumerate(passes) if number % 4 in (1, 2)])
    model = AccessModel.fit(curve.depths, probed)
    predicted = [model.iops(depth) for depth in curve.depths]
    errors = [abs(guess / seen - 1) for guess, seen in zip(predicted, measured, strict=True)]
    report.extra["accumulator"] = {
        "peak_iops": model.peak_iops,
        "overhead_us": model.overhead_s * 1e6,
        "sharpness": model.sharpness,
        "accesses for 95 %": model.accesses_for(0.95),
        "depths": list(curve.depths),
        "probed_iops": probed,
        "predicted_iops": predicted,
        "measured_iops": measured,
        "error": errors,
        "passes_iops": [list(rates) for rates in passes],
        "threads": curve.threads,
    }
    report.bars.append(Bar("accumulator's model, largest error", max(errors), ceiling, lower_is_better=True))
