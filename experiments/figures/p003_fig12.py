"""Paper 003, figure 12, measured: Ginex with its superbatch and Belady's cache, and with a static cache by degree (PaGraph's)."""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

from matplotlib.figure import Figure

import gids
from experiments.baselines.systems import ROW_BY_ROW, Ginex
from experiments.graphs import power_law
from experiments.words import sentence
from gids.bench.options import loader_arguments
from gids.storage import StorageOptions

TITLE = "Paper 003, figure 12: Ginex with a static cache and with its own, measured here"
CLAIM = (
    "Ginex's cache misses less often than PaGraph's static one (Ginex-PG) and shortens data preparation; looking ahead adds less than 20 % to the time of "
    "inspection."
)
DIFFERS = (
    "Both are policies on this library's reads, one request for each row. Ginex-PG keeps the rows of the nodes of highest degree for the whole run; Ginex knows the batches of a superbatch, whose samples "
    "wait on disk. Sampling goes on beside gathering here (the window slides), so stages are busy times of their threads and not parts of one sum; no training step."
)
CONFIG = {
    "full": {
        "nodes": 1_000_000,
        "dim": 128,
        "fanouts": [10, 10],
        "batch_size": 250,
        "batches": 1000,
        "budgets": ["160MiB", "256MiB"],
        "rounds": 3,
    },
    "tiny": {
        "nodes": 4000,
        "dim": 16,
        "fanouts": [4, 4],
        "batch_size": 40,
        "batches": 10,
        "budgets": ["32MiB"],
        "rounds": 1,
    },
}
SECONDS = 240
#: What threads do, by the spans of a loader's trace.
STAGES = {"inspect": ("sample", "spill", "plan"), "data preparation": ("step", "load", "fetch")}
#: Of the budget, what the static cache gets; the rest is for samples and batches, as in the other loader.
STATIC_SHARE = 0.6


def options_of(name: str, budget: str, table_bytes: int) -> dict:
    """Options of a loader by the name that the paper gives it."""
    if name == "Ginex":
        options = dict(Ginex.OPTIONS)
    else:
        static = min(int(gids.units.parse_bytes(budget) * STATIC_SHARE), table_bytes)
        options = {"cache": 0, "host_buffer": static, "host_rank": "degree", "window": 0, "sweep_batches": 1}
    return loader_arguments(options | {"storage": StorageOptions(**ROW_BY_ROW)})


def run(config: dict) -> dict:
    dataset = power_law(config["nodes"], dim=config["dim"])
    seeds = dataset.split("train")[: config["batches"] * config["batch_size"]]
    common = {"fanouts": config["fanouts"], "batch_size": config["batch_size"], "seeds": seeds}
    results = {}
    for budget in config["budgets"]:
        found: dict[str, list[dict]] = {"Ginex-PG": [], "Ginex": []}
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            loaders = {}
            for name in found:
                options = options_of(name, budget, dataset.feature_table().total_bytes)
                loader = gids.Loader(dataset, budget=budget, **common, **options).prepare()
                loaders[name] = stack.enter_context(loader)
                for _ in loader:  # fills the caches
                    pass
            for number in range(config["rounds"]):
                for name in loaders if number % 2 == 0 else reversed(loaders):
                    found[name].append(one_round(loaders[name], number + 1, folder / "trace.json"))
        results[budget] = {name: median_of(rounds) for name, rounds in found.items()}
    return results


def one_round(loader: gids.Loader, epoch: int, trace: Path) -> dict:
    """An epoch: its seconds, busy seconds by stage, and where its rows came from."""
    loader.set_epoch(epoch)
    loader.reset_stats()
    begin = time.perf_counter()
    with loader.tracing(trace):
        for _ in loader:
            pass
    seconds = time.perf_counter() - begin
    (table,) = loader.stats().tables.values()
    busy = dict.fromkeys(STAGES, 0.0)
    for event in json.loads(trace.read_text())["traceEvents"]:
        for stage, spans in STAGES.items():
            if event["name"] in spans:
                busy[stage] += event.get("dur", 0) / 1e6
    return {
        "seconds": seconds,
        "miss_ratio": table.disk / table.requests,
        "rows_per_s": table.requests / seconds,
    } | busy


def median_of(rounds: list[dict]) -> dict:
    """Medians of every figure."""
    found = {key: statistics.median(one[key] for one in rounds) for key in rounds[0]}
    return found | {"mad": statistics.median(abs(one["rows_per_s"] - found["rows_per_s"]) for one in rounds)}


def pairs(results: dict) -> Iterator[tuple[str, dict, dict]]:
    """Budget, static, Ginex."""
    for budget, found in results.items():
        yield budget, found["Ginex-PG"], found["Ginex"]


def here(results: dict) -> str:
    return sentence(
        *(
            f"within {budget} Ginex's cache misses {own['miss_ratio']:.1%} of the rows and the static one {static['miss_ratio']:.1%}; an epoch of data preparation "
            f"takes {own['seconds'] / static['seconds']:.2f} times as long, data preparation is busy {own['data preparation'] / static['data preparation']:.2f} times and inspection "
            f"{own['inspect'] / static['inspect']:.2f} times as long"
            for budget, static, own in pairs(results)
        )
    )


def table(results: dict) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """One line for every budget and cache."""
    heads = ("budget / cache", "epoch (s)", "misses", *(f"{stage}, busy (s)" for stage in STAGES))
    lines = [
        (f"{budget} / {name}", f"{one['seconds']:.2f}", f"{one['miss_ratio']:.1%}", *(f"{one[s]:.2f}" for s in STAGES))
        for budget, found in results.items()
        for name, one in found.items()
    ]
    return heads, lines


def draw(results: dict, figure: Figure) -> None:
    left, right = figure.subplots(1, 2)
    labels = [f"{budget}\n{name}" for budget, found in results.items() for name in found]
    ones = [one for found in results.values() for one in found.values()]
    bottom = [0.0] * len(ones)
    for stage in STAGES:
        left.bar(range(len(ones)), [one[stage] for one in ones], bottom=bottom, label=stage)
        bottom = [b + one[stage] for b, one in zip(bottom, ones, strict=True)]
    left.set_xticks(range(len(ones)), labels, fontsize=7)
    left.set_ylabel("busy seconds of an epoch")
    left.legend(fontsize=8)
    bars = right.bar(range(len(ones)), [100 * one["miss_ratio"] for one in ones], color="C3")
    right.bar_label(bars, fmt="%.1f %%", fontsize=8)
    right.set_xticks(range(len(ones)), labels, fontsize=7)
    right.set_ylabel("rows that the cache misses")
