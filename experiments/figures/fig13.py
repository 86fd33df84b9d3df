"""Paper 004, figures 13 and 14, measured: end-to-end time of an iteration with each loader."""

from __future__ import annotations

from matplotlib.figure import Figure

from experiments.baselines import Job
from experiments.baselines.race import PROCESS_BYTES, Turn, race
from experiments.graphs import power_law
from experiments.words import listed, sentence
from gids.units import parse_bytes

TITLE = "Figures 13 and 14: end to end, measured here"
CLAIM = (
    "GIDS is up to 582x, 10.62x and 3.09x faster than DGL over a mapped file, Ginex and BaM with a 980 Pro, and up to 17.28x, 37.21x and "
    "3.23x with an Optane (captions; the text swaps Ginex's two and says 8.3x for DGL with an Optane)."
)
DIFFERS = (
    "Two cores both load and train, so an iteration cannot be shorter than its training step, which the paper's A100 makes nearly free: "
    "no ratio end to end can be larger than the slow loader's iteration over that step. Ginex and BaM are their policies on our reads. The table is 1.4 times the memory limit, the paper's "
    "IGB-Full is 2.1 times. MADV_RANDOM instead of a plain mapping."
)
CONFIG = {
    "full": {
        "nodes": 1_000_000,
        "fanouts": [10, 10],
        "batch_size": 1024,
        "batches": 24,
        "mapped_batches": 2,
        "mapped_warm": 6,
        "rounds": 5,
        "limit": "768MiB",
        "beside": "128MiB",
    },
    "tiny": {
        "nodes": 20_000,
        "fanouts": [5, 5],
        "batch_size": 64,
        "batches": 2,
        "mapped_batches": 1,
        "mapped_warm": 1,
        "rounds": 1,
        "limit": None,
        "beside": "0",
    },
}
SECONDS = 60
LOADERS = ("DGL mmap, MADV_RANDOM", "Ginex", "BaM", "GIDS", "gids", "DGL in memory")
PAPER_SPEEDUP = {
    "980 Pro": {"DGL mmap, MADV_RANDOM": 582.0, "Ginex": 10.62, "BaM": 3.09},
    "Optane": {"DGL mmap, MADV_RANDOM": 17.28, "Ginex": 37.21, "BaM": 3.23},
}


def run(config: dict) -> dict:
    dataset = power_law(config["nodes"])
    limit = parse_bytes(config["limit"]) if config["limit"] else None
    budget = limit - PROCESS_BYTES - parse_bytes(config["beside"]) if limit else 64 << 20
    job = Job(str(dataset.path), config["batch_size"], config["batches"], config["fanouts"], budget=budget)
    turns = [
        Turn(name, job, config["mapped_batches"], warm_batches=config["mapped_warm"])
        if "mmap" in name
        else Turn(name, job, config["batches"])
        for name in LOADERS
    ]
    results = race(turns, rounds=config["rounds"], limit_bytes=limit, isolated=limit is not None, train=True)
    seconds = {name: result["seconds_per_batch"] for name, result in results.items() if "rows_per_s" in result}
    return {
        "loaders": results,
        "speedup_of_gids": {name: value / seconds["gids"] for name, value in seconds.items() if "gids" in seconds},
        "speedup_of_GIDS": {name: value / seconds["GIDS"] for name, value in seconds.items() if "GIDS" in seconds},
        "paper_speedup_of_GIDS": PAPER_SPEEDUP,
    }


def here(results: dict) -> str:
    systems = {"GIDS": "GIDS's policy on our reads ends an iteration", "gids": "gids"}
    return sentence(
        *(
            f"{words} {listed([f'{x:.3g}x as fast as {other}' for other, x in ratios.items() if other != name])}"
            for name, words in systems.items()
            if (ratios := results[f"speedup_of_{name}"])
        )
    )


def draw(results: dict, figure: Figure) -> None:
    left, right = figure.subplots(1, 2)
    loaders = {name: r for name, r in results["loaders"].items() if "rows_per_s" in r}
    for place, result in enumerate(loaders.values()):
        training = result["stages_per_batch"]["training"]
        total = sum(result["stages_per_batch"].values())
        left.bar(place, training, 0.6, color="C2", label="training" if place == 0 else None)
        left.bar(place, total - training, 0.6, training, color="C3", label="data" if place == 0 else None)
        left.text(place, total, f"{total:.2f}", ha="center", va="bottom", fontsize=8)
    left.set_ylabel("seconds an iteration")
    left.set_yscale("log")
    left.legend(fontsize=8)
    ours = results["speedup_of_GIDS"]
    right.bar(range(len(loaders)), [ours.get(name, 0) for name in loaders], 0.6, label="here, GIDS over ...")
    for mark, (drive, speedups) in zip("_x", results["paper_speedup_of_GIDS"].items(), strict=True):
        at = [place for place, name in enumerate(loaders) if name in speedups]
        right.plot(at, [speedups[list(loaders)[p]] for p in at], f"k{mark}", markersize=12, label=f"the paper, {drive}")
    right.set_yscale("log")
    right.set_ylabel("speed-up of GIDS")
    right.legend(fontsize=7)
    for axis in (left, right):
        axis.set_xticks(range(len(loaders)), list(loaders), rotation=35, ha="right", fontsize=8)
