"""Short benchmarks of a device for ``gids selftest --report``: rows a second through every engine that it allows."""

from __future__ import annotations

import importlib.util
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import gids
from gids.generate import communities
from gids.runtime import MemoryOptions, OrderOptions
from gids.storage.reader import engine_availability


@dataclass(frozen=True)
class Speed:
    """One engine.

    Attributes
    ----------
    engine : str
        Its name.
    rows_per_second : float or None
        Rows delivered to the device over one epoch, without cache and host buffer; None: not run.
    detail : str
        How they were read, or why they were not.
    """

    engine: str
    rows_per_second: float | None
    detail: str


def measure_engines(ordinal: int, num_nodes: int, dim: int = 256) -> list[Speed]:
    """Load one epoch with each engine, after one that is not measured.

    Parameters
    ----------
    ordinal : int
        Which device.
    num_nodes, dim : int
        Size of the graph that is made for it.
    """
    with tempfile.TemporaryDirectory(prefix="gids-selftest-") as directory:
        dataset = communities(Path(directory) / "graph", num_nodes=num_nodes, degree=8, dim=dim, train=0.5)
        return [_measure(dataset, engine, ordinal) for engine in ("uring", "pread", "gds", "nvme")]


def _measure(dataset: gids.Dataset, engine: str, ordinal: int) -> Speed:
    refusal = engine_availability().get(engine, "")
    if engine == "gds" and importlib.util.find_spec("kvikio") is None:
        refusal = "kvikio is not installed (pip install 'gids[gds]')"
    if refusal:
        return Speed(engine, None, refusal)
    try:
        with gids.Loader(
            dataset,
            "train",
            fanouts=[5, 5],
            batch_size=256,
            order=OrderOptions(seed=1),
            memory=MemoryOptions(cache=0, host_buffer=0),
            device=f"cuda:{ordinal}",
            storage=engine,
        ) as loader:
            for _ in loader:
                pass
            rows, begin = 0, time.perf_counter()
            for batch in loader:
                rows += int(batch.x.shape[0])
            seconds = time.perf_counter() - begin
            return Speed(engine, rows / seconds, "; ".join(f"{k}: {v}" for k, v in loader.notes.items()))
    except gids.GidsError as error:  # an engine that this machine does not allow is a result too
        return Speed(engine, None, f"{type(error).__name__}: {error}")
