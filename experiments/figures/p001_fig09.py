"""Paper 001, figure 9, measured: how the time of a batch depends on the memory limit."""

from __future__ import annotations

from matplotlib.figure import Figure

from experiments.baselines.race import race
from experiments.figures.p001_fig08 import LOADERS, turns_of
from experiments.graphs import power_law
from experiments.plots import sweep_lines
from experiments.words import listed, per_batch
from gids.units import parse_bytes

TITLE = "Paper 001, figure 9: memory limits, measured here"
CLAIM = (
    "From 8 to 128 GB at dimension 512 all systems gain; PyG over a mapped file is the most sensitive and catches up where all fits in the "
    "page cache; Ginex runs out of memory at 8 GB on Twitter, GNNDrive does not."
)
DIFFERS = (
    "Dimension 512 as in the paper, a table of 1 GB; data preparation only. The process alone takes about 340 MiB of every limit; with 512 MiB no configuration of gids takes on this batch size. Ginex and "
    "GNNDrive are their policies on our reads. At the largest limit the whole table fits."
)
CONFIG = {
    "full": {
        "nodes": 500_000,
        "dim": 512,
        "limits": ["640MiB", "896MiB", "1792MiB"],
        "fanouts": [10, 10],
        "batch_size": 1024,
        "batches": 16,
        "mapped_batches": 2,
        "mapped_warm": 6,
        "rounds": 3,
    },
    "tiny": {
        "nodes": 20_000,
        "dim": 16,
        "limits": [None],
        "fanouts": [5, 5],
        "batch_size": 64,
        "batches": 2,
        "mapped_batches": 1,
        "mapped_warm": 1,
        "rounds": 1,
    },
}
SECONDS = 65


def run(config: dict) -> dict:
    data = str(power_law(config["nodes"], dim=config["dim"]).path)
    results = {}
    for limit in config["limits"]:
        results[limit or "none"] = race(
            turns_of(data, config, 64 << 20 if limit is None else None),
            rounds=config["rounds"],
            limit_bytes=parse_bytes(limit) if limit else None,
            isolated=limit is not None,
        )
    return results


def here(results: dict) -> str:
    parts = [f"{name} {' / '.join(per_batch(r, name) for r in results.values())}" for name in LOADERS]
    return f"A batch with limits of {' / '.join(results)} takes: {listed(parts)}."


def draw(results: dict, figure: Figure) -> None:
    sweep_lines(figure.subplots(), results, LOADERS, "memory limit of each process, page cache included")
