"""A performance model for machines we do not have. Every number it gives is a prediction, never a measurement.

Four resources serve a group of row requests, and the slowest decides:

    disk   n reads take n / min(iops, bandwidth / row) + T, T = latency + launch + termination (paper 004, eq. 2-3)
    pcie   rows from disk and from the host buffer cross it into the GPU
    hbm    every row is read from where it lies and written to the batch
    faults (mmap baseline) a page fault per row, `fault_threads` at a time, each the device's latency plus the kernel's work

    drain  (where a drive's speed by depth was measured) a group ends with its queue running empty: its last k reads run at
           the speed of depth k, not at the peak

How far to trust it:

- On this machine every constant is measured apart from what is predicted (`figures/model_here.py`). The bar of a
  prediction there is the range of its inputs: the disk's cost by every probe, and by the middle one a fifth more or less,
  as this kind of disk varies; the processor's work as its repeats differ, hidden behind the disk's in full or not at all.
- What it takes to hold nine of ten points that were checked there, all bars for other machines are widened by
  (:func:`checked_here`): 1 where they are held already.
- For the paper's machine a constant that the paper does not print is fitted to ONE bar, named in the figure as fitted.
  All other bars are held out, and their errors are printed into the picture, the bad ones too.
- For a machine that nobody measured, the error bars are the ranges of the inputs, widened by the factor by which
  the worst held-out bar was missed.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np


class Range(NamedTuple):
    """A prediction with its error bar."""

    low: float
    middle: float
    high: float

    def widened(self, factor: float) -> Range:
        """Let both ends be wrong by a factor on top of what they are."""
        return Range(self.low / factor, self.middle, self.high * factor)

    def missed_by(self, value: float) -> float:
        """Factor by which a value lies beyond the bar; 1 inside."""
        return max(1.0, self.low / value, value / self.high)


def span(middle: float, others: Iterable[float]) -> Range:
    """Return the range over all scenarios, with the likeliest of them in the middle."""
    everything = [middle, *others]
    return Range(min(everything), middle, max(everything))


@dataclass(frozen=True)
class Drive:
    """One device: its two limits and its latency."""

    name: str
    iops: float  # at the row size in question
    bandwidth: float  # bytes/s
    latency_s: float

    def rows_per_second(self, row_bytes: float) -> float:
        return min(self.iops, self.bandwidth / row_bytes)


@dataclass(frozen=True)
class Machine:
    """What a batch crosses on its way."""

    name: str
    drive: Drive
    drives: int
    pcie: float  # bytes/s into the GPU; on a machine without one, the memory copy rate
    hbm: float  # bytes/s of the memory that holds cache and batch
    overhead_s: float  # per group: kernel launch, first command, last completion
    fault_s: float = 0.0  # kernel work of one page fault, beyond the device's latency
    fault_threads: float = 1.0


@dataclass(frozen=True)
class Load:
    """One group of requests and where its rows are found; shares of rows add up to 1 with the disk's."""

    rows: float
    row_bytes: float
    cache_share: float = 0.0
    host_share: float = 0.0

    @property
    def disk_share(self) -> float:
        return 1.0 - self.cache_share - self.host_share


def fetch_seconds(machine: Machine, load: Load) -> float:
    """Time to bring one group's rows into the batch."""
    disk_rows = load.rows * load.disk_share
    rate = machine.drive.rows_per_second(load.row_bytes) * machine.drives
    disk = disk_rows / rate + machine.drive.latency_s + machine.overhead_s if disk_rows else machine.overhead_s
    ingress = load.rows * (1.0 - load.cache_share) * load.row_bytes / machine.pcie
    memory = 2.0 * load.rows * load.row_bytes / machine.hbm
    return max(disk, ingress, memory)


def ingress_bandwidth(machine: Machine, load: Load) -> float:
    """Bytes/s that enter the GPU while a group is fetched (paper 004, figure 9)."""
    return load.rows * (1.0 - load.cache_share) * load.row_bytes / fetch_seconds(machine, load)


def effective_bandwidth(machine: Machine, load: Load) -> float:
    """Bytes/s of features delivered to the batch, wherever they came from (paper 004, figure 10)."""
    return load.rows * load.row_bytes / fetch_seconds(machine, load)


def drain_seconds(depths: Sequence[float], iops: Sequence[float], reads: float, depth: int) -> float:
    """Time that ``reads`` take longer than at the peak, because the queue of ``depth`` runs empty at their end.

    With k reads left the drive runs at its speed at depth k: the sum over k of 1 / iops(k) - 1 / iops(depth). A group of
    few reads never comes to the peak, so this is most of its time.
    """
    left = np.arange(1, min(int(reads), depth) + 1)
    rates = np.interp(np.log2(left), np.log2(depths), iops)
    peak = np.interp(np.log2(depth), np.log2(depths), iops)
    return float(np.maximum(1 / rates - 1 / peak, 0).sum())


def factor_holding(factors: Sequence[float], share: float) -> float:
    """Return the least factor by which bars must be widened so that this share of points lies inside.

    Parameters
    ----------
    factors : sequence of float
        Of :meth:`Range.missed_by`, one per point.
    share : float
        Of the points.
    """
    return sorted(factors)[math.ceil(share * len(factors)) - 1]


def checked_here() -> float:
    """Factor by which bars are widened for machines that are not here: from the kept check against this kind of machine."""
    if not CHECKED.exists():
        return 1.0
    cases = json.loads(CHECKED.read_text())["results"]["cases"]
    return factor_holding([1 + case["beyond"] for case in cases], HELD_SHARE)


def widened_words(factor: float) -> str:
    """Say by how much the check against this machine widened every bar."""
    how = "as they are" if factor == 1 else f"after widening by {factor:.2f}x, as all bars here are"
    return f"Of the points checked on this machine nine of ten lie inside their bars {how}."


def constants(results: dict) -> tuple[Sequence[str], list[tuple[str, ...]]]:
    """Tabulate what a picture of the model rests on."""
    return CONSTANT_HEADS, CONSTANTS


def mmap_seconds(machine: Machine, load: Load) -> float:
    """Time of the DGL mmap baseline: rows not in the page cache fault one by one on each thread."""
    return load.rows * load.disk_share * (machine.drive.latency_s + machine.fault_s) / machine.fault_threads


def accumulated(load: Load, batches: float) -> Load:
    """The load of several batches that are read as one group."""
    return replace(load, rows=load.rows * batches)


def accesses_needed(machine: Machine, efficiency: float) -> float:
    """Overlapping accesses that reach a share of the drives' peak: the accumulator's rule (paper 004, eq. 3)."""
    start = machine.drive.latency_s + machine.overhead_s
    return machine.drive.iops * start * efficiency / (1 - efficiency) * machine.drives


def group_batches(load: Load, accesses: float) -> int:
    """Batches that the accumulator reads as one group, so that enough accesses remain for the drives."""
    return max(1, math.ceil(accesses / (load.rows * load.disk_share)))


def overhead_for(machine: Machine, load: Load, bandwidth: float) -> float:
    """Overhead per group with which a load is ingested at ``bandwidth``: fits the model to one measured bar."""
    at_peak = fetch_seconds(replace(machine, overhead_s=0.0), load)
    return load.rows * (1.0 - load.cache_share) * load.row_bytes / bandwidth - at_peak


#: Of the points checked on this machine, those that the bars must hold.
HELD_SHARE = 0.9
CHECKED = Path(__file__).parent / "results" / "model_here.json"

OPTANE = Drive("Intel Optane", iops=5.8e9 / 4096, bandwidth=5.8e9, latency_s=11e-6)
SAMSUNG = Drive("Samsung 980 Pro", iops=700e3, bandwidth=7.0e9, latency_s=324e-6)
GEN5 = Drive("PCIe 5.0 NVMe", iops=2.5e6, bandwidth=14e9, latency_s=60e-6)

PAPER_OVERHEAD_S = 30e-6
A100 = Machine(
    "A100 + Optane", OPTANE, drives=1, pcie=24e9, hbm=1555e9, overhead_s=PAPER_OVERHEAD_S, fault_s=3e-6, fault_threads=1
)
GEN5_MACHINE = replace(A100, name="4 x PCIe 5.0", drive=GEN5, drives=4, pcie=48e9, hbm=3350e9)

CONSTANT_HEADS = ("constant", "value", "where it is from")
#: Shown beside every picture of the model; what nobody measured is called an assumption.
CONSTANTS: list[tuple[str, str, str]] = [
    ("Optane, 4 KiB reads", "5.8 GB/s, 1.42 M/s", "paper 004, 4.3 (its 4.2 says 1.5 M/s, its 3.3 6 GB/s)"),
    ("980 Pro, 4 KiB reads", "0.7 M/s", "paper 004, 4.2 (its 3.3 says 0.8 M/s of flash in general)"),
    ("980 Pro, large reads", "7.0 GB/s", "data sheet; decides nothing here: rows of 4 KiB are bound by reads/s"),
    ("latency, Optane and 980 Pro", "11 us, 324 us", "paper 004, 4.2, measured there"),
    ("launch and termination", "25 + 5 us a group", "paper 004, 4.2; figure 9 fits it instead and says so"),
    ("PCIe 4.0 x16 into the A100", "24 GB/s", "assumption: the paper's link is 32 GB/s, its best figure is 23.4 GB/s"),
    ("HBM of the A100", "1555 GB/s", "paper 004, table 1"),
    ("page fault, kernel's work", "3 us, one at a time", "assumption; figure 13 fits the faults per row on top of it"),
    ("PCIe 5.0 drive", "2.5 M/s, 14 GB/s, 60 us", "assumption: the class that data sheets of 2024 give"),
    ("PCIe 5.0 x16, HBM beside it", "48 GB/s, 3350 GB/s", "assumption: twice the A100's link; data sheet of an H100"),
]
