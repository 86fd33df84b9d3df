"""The part of ``gids bench sample`` that opens: a graph into memory, beside fio reading the same file in order."""

from __future__ import annotations

import shutil
import time

import numpy as np

from gids.bench.fio import run_fio
from gids.bench.harness import Bar, Contender, Report, alternate
from gids.bench.page_cache import forget_pages
from gids.bench.sample_disk import EDGE, StoredGraph
from gids.sampling import Topology

BLOCK_BYTES = 1 << 20
#: Depths that fio is tried with; the fastest is the opponent.
FIO_DEPTHS = (4, 16, 32)

# Floor of the issue: neighbours are read as fast as the disk gives them in order, checked on the way.
FLOOR_OPEN = 0.8


def open_section(report: Report, graph: StoredGraph, rounds: int, fio_s: float) -> None:
    """Alternate opening the graph into memory and fio's reading in order."""
    path = graph.directory / "indices.bin"
    if shutil.which("fio") is None:
        report.extra["open"] = "fio is not installed: no comparison"
        return
    seconds = min(fio_s, 1.0)  # of large reads in order: they vary less
    depth = max(FIO_DEPTHS, key=lambda depth: run_fio(path, "read", BLOCK_BYTES, depth, 1, seconds).bandwidth)
    num_bytes = graph.indices_table(EDGE).total_bytes

    def fio() -> float:
        start = time.perf_counter()
        return run_fio(path, "read", BLOCK_BYTES, depth, 1, seconds).bandwidth * (time.perf_counter() - start)

    def opened() -> float:
        Topology.from_dataset(graph)
        return num_bytes

    contenders = [
        Contender("open into memory", opened, prepare=lambda: forget_pages(path)),
        Contender("fio, in order", fio),
    ]
    rates = alternate(contenders, unit="bytes", rounds=rounds)
    report.measurements += rates.values()
    pairs = zip(rates["open into memory"].rates, rates["fio, in order"].rates, strict=True)
    report.bars.append(
        Bar("open: bytes/s over fio's in order", float(np.median([a / b for a, b in pairs])), FLOOR_OPEN)
    )
