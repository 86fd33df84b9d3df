"""Paper 001, figure 8, measured: how the time of a batch grows with the feature dimension."""

from __future__ import annotations

from matplotlib.figure import Figure

from experiments.baselines import Job
from experiments.baselines.race import Turn, race
from experiments.graphs import power_law
from experiments.plots import sweep_lines
from experiments.words import faster, listed, per_batch
from gids.units import parse_bytes

TITLE = "Paper 001, figure 8: feature dimensions, measured here"
CLAIM = (
    "From dimension 64 to 512 GNNDrive's epoch on MAG240M grows 1.1x and PyG's over a mapped file 7.0x; at 128 (Papers100M) GNNDrive is 16.9x "
    "faster than PyG over a mapped file and 2.6x than Ginex."
)
DIFFERS = (
    "Data preparation only, under one memory limit, with an R-MAT graph; Ginex and GNNDrive are their policies on our reads, so the gap "
    "between them is the cache policy's alone. PyG's map has MADV_RANDOM, and gids samples for it. Small dimensions fit in the page cache, as in the paper."
)
LOADERS = ("PyG memmap", "Ginex", "GNNDrive", "gids")
CONFIG = {
    "full": {
        "nodes": 500_000,
        "dims": [64, 128, 256, 512],
        "fanouts": [10, 10],
        "batch_size": 1024,
        "batches": 16,
        "mapped_batches": 2,
        "mapped_warm": 6,
        "rounds": 3,
        "limit": "640MiB",
    },
    "tiny": {
        "nodes": 20_000,
        "dims": [16],
        "fanouts": [5, 5],
        "batch_size": 64,
        "batches": 2,
        "mapped_batches": 1,
        "mapped_warm": 1,
        "rounds": 1,
        "limit": None,
    },
}
SECONDS = 80


def run(config: dict) -> dict:
    limit = parse_bytes(config["limit"]) if config["limit"] else None
    results = {}
    for dim in config["dims"]:
        dataset = power_law(config["nodes"], dim=dim)
        results[str(dim)] = race(
            turns_of(str(dataset.path), config, 64 << 20 if limit is None else None),
            rounds=config["rounds"],
            limit_bytes=limit,
            isolated=limit is not None,
        )
    return results


def turns_of(data: str, config: dict, budget: int | None) -> list[Turn]:
    # A batch of 512 numbers a row is a tenth of the smallest budget: one ahead is enough.
    options = {"prefetch": 1}
    job = Job(data, config["batch_size"], config["batches"], config["fanouts"], budget=budget, options=options)
    return [
        Turn(name, job, config["mapped_batches"], warm_batches=config["mapped_warm"])
        if "memmap" in name
        else Turn(name, job, config["batches"])
        for name in LOADERS
    ]


def here(results: dict) -> str:
    first, last = next(iter(results)), list(results)[-1]
    grow = [
        f"{name} {faster({name: results[last][name], 'before': results[first][name]}, name, 'before', 'seconds_per_batch')}"
        for name in LOADERS
    ]
    at = "128" if "128" in results else first
    return (
        f"From dimension {first} to {last} the time of a batch grows: {listed(grow)}. At {at}, GNNDrive's policy is "
        f"{faster(results[at], 'GNNDrive', 'PyG memmap')} as fast as PyG over a mapped file and {faster(results[at], 'GNNDrive', 'Ginex')} as Ginex's; "
        f"a batch of gids takes {per_batch(results[at], 'gids')}."
    )


def draw(results: dict, figure: Figure) -> None:
    sweep_lines(figure.subplots(), results, LOADERS, "feature dimension (float32)")
