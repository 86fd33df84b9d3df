"""Paper 004, figure 15, measured: feature aggregation with LADIES beside neighbour sampling."""

from __future__ import annotations

from matplotlib.figure import Figure

from experiments.baselines import Job
from experiments.baselines.race import Turn, race
from experiments.graphs import power_law
from experiments.words import faster, sentence
from gids.units import parse_bytes

TITLE = "Figure 15: neighbour sampling and LADIES, measured here"
CLAIM = "With LADIES, GIDS is 412x faster than DGL over a mapped file and 1.92x faster than BaM in feature aggregation."
DIFFERS = (
    "Time of data preparation, which includes sampling where it is not hidden. DGL has no LADIES: over the mapped file our sampler stands "
    "in, on the same batches. BaM is its policy on our reads; GIDS pins what its window of 8 sees, gids is this loader as it comes. LADIES takes "
    "4096 and 2048 nodes a layer under a limit of 768 MiB, and every sample has half a million edges: sampling on two cores is most of its time, "
    "where the paper compares feature aggregation alone."
)
CONFIG = {
    "full": {
        "nodes": 1_000_000,
        "fanouts": [10, 10],
        "ladies": [4096, 2048],
        "batch_size": 1024,
        "batches": 24,
        "mapped_batches": 2,
        "mapped_warm": 6,
        "rounds": 3,
        "limit": "768MiB",
    },
    "tiny": {
        "nodes": 20_000,
        "fanouts": [5, 5],
        "ladies": [256, 128],
        "batch_size": 64,
        "batches": 2,
        "mapped_batches": 1,
        "mapped_warm": 1,
        "rounds": 1,
        "limit": None,
    },
}
SECONDS = 60
LOADERS = ("DGL mmap, MADV_RANDOM", "BaM", "GIDS", "gids")


def run(config: dict) -> dict:
    dataset = power_law(config["nodes"])
    limit = parse_bytes(config["limit"]) if config["limit"] else None
    results = {}
    for sampling in ("fanouts", "ladies"):
        job = Job(
            str(dataset.path),
            config["batch_size"],
            config["batches"],
            **{sampling: config[sampling]},
            budget=None if limit else 64 << 20,
        )
        turns = [
            Turn(name, job, config["mapped_batches"], warm_batches=config["mapped_warm"])
            if "mmap" in name
            else Turn(name, job, config["batches"])
            for name in LOADERS
        ]
        results[sampling] = race(turns, rounds=config["rounds"], limit_bytes=limit, isolated=limit is not None)
    return results


def here(results: dict) -> str:
    baseline = "DGL mmap, MADV_RANDOM"
    parts = [
        f"with {name} GIDS's policy on our reads is {faster(results[key], 'GIDS', baseline)} as fast as DGL over a mapped file and {faster(results[key], 'GIDS', 'BaM')} as BaM's, "
        f"gids {faster(results[key], 'gids', baseline)} and {faster(results[key], 'gids', 'BaM')}"
        for key, name in (("ladies", "LADIES"), ("fanouts", "neighbour sampling"))
    ]
    return sentence(*parts)


def draw(results: dict, figure: Figure) -> None:
    axes = figure.subplots(1, 2)
    for axis, (sampling, loaders) in zip(axes, results.items(), strict=True):
        ran = {name: r for name, r in loaders.items() if "rows_per_s" in r}
        seconds = [r["seconds_per_batch"] for r in ran.values()]
        axis.bar(range(len(ran)), seconds, 0.6)
        for place, value in enumerate(seconds):
            ratio = f"\n{value / ran['gids']['seconds_per_batch']:.1f}x" if "gids" in ran else ""
            axis.text(place, value, f"{1e3 * value:.0f} ms{ratio}", ha="center", va="bottom", fontsize=8)
        axis.set_yscale("log")
        axis.set_xticks(range(len(ran)), [name.replace(", ", "\n") for name in ran], fontsize=8)
        axis.set_title({"fanouts": "neighbour sampling", "ladies": "LADIES"}[sampling], fontsize=9)
        axis.margins(y=0.2)
    axes[0].set_ylabel("seconds a batch (x: gids is faster by)")
