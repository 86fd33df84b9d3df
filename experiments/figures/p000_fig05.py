"""Paper 000, figure 5, measured: sampling a graph whose edges are on disk, under memory limits."""

from __future__ import annotations

import statistics
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

from matplotlib.figure import Figure

from experiments.graphs import copy_of_edges, edges_only
from experiments.sampling_worker import KINDS, Sampling, command
from experiments.words import missing
from gids.bench.epoch import Worker
from gids.errors import GidsError
from gids.units import parse_bytes

TITLE = "Paper 000, figure 5: sampling under memory limits, measured here"
CLAIM = (
    "RingSampler samples an epoch of ogbn-papers (6.8 GB of edges) in 20.2 s with 4 GB of memory, where no other system runs at all; up to 18.5x "
    "faster than Marius and 53x than a SmartSSD over all limits."
)
DIFFERS = (
    "An R-MAT graph and two cores instead of 64; fan-out 10,10 instead of 20,15,10, so that the mapped file ends in time. Marius and SmartSSD "
    "are not here: the page cache, memory and DGL are the comparison; the page cache of the map is filled within the limit first. Seconds per 100 batches of 1024. The process alone (Python, torch, DGL) "
    "takes about 340 MiB of every limit."
)
CONFIG = {
    "full": {
        "nodes": 2_000_000,
        "degree": 60.0,
        "fanouts": [10, 10],
        "batch_size": 1024,
        "batches": 16,
        "mapped_batches": 2,
        "mapped_warm": 4,
        "rounds": 3,
        "limits": ["448MiB", "640MiB", "1536MiB"],
    },
    "tiny": {
        "nodes": 20_000,
        "degree": 15.0,
        "fanouts": [5, 5],
        "batch_size": 64,
        "batches": 2,
        "mapped_batches": 1,
        "mapped_warm": 1,
        "rounds": 1,
        "limits": [None],
    },
}
SECONDS = 60


def run(config: dict) -> dict:
    dataset = edges_only(config["nodes"], config["degree"])
    edge_bytes = dataset.indices_table().total_bytes
    results: dict[str, Any] = {"edge_file_bytes": edge_bytes, "about": KINDS, "limits": {}}
    for limit in config["limits"]:
        # The others load the same edges through the page cache: the one that lives on it has a file of its own, cold.
        spec = {"data": str(dataset.path), "mapped": str(copy_of_edges(dataset, "the mapped"))}
        spec |= {"fanouts": config["fanouts"], "batch_size": config["batch_size"]}
        results["limits"][limit or "none"] = _under(limit, spec, config)
    return results


def _under(limit: str | None, spec: dict[str, Any], config: dict) -> dict[str, dict[str, Any]]:
    results: dict[str, dict[str, Any]] = {}
    with ExitStack() as stack:

        def begin(kind: str) -> Any:
            try:
                return _start(spec | {"kind": kind}, limit, config, stack)
            except GidsError as error:
                killed = "killed by the memory limit" if "exit code -9" in str(error) else str(error)
                results[kind] = {"failed": killed}
                return None

        # No clock runs yet: they start and warm up side by side.
        with ThreadPoolExecutor(1 if limit is None else len(KINDS)) as pool:
            asked = zip(KINDS, pool.map(begin, KINDS), strict=True)
            running = [(kind, ask, _batches(kind, config)) for kind, ask in asked if ask is not None]
        answers: dict[str, list[dict[str, Any]]] = {kind: [] for kind, _, _ in running}
        for number in range(1, config["rounds"] + 1):
            for kind, ask, batches in running if number % 2 else reversed(running):
                answers[kind].append(ask(number, batches))
    checks = {a[0]["check"] for kind, a in answers.items() if kind.startswith("gids") and "mapped" not in kind}
    assert len(checks) <= 1, f"the same sampler gave other samples from another place: {checks}"
    for kind, rounds in answers.items():
        batches = _batches(kind, config)
        rates = [a["edges"] / a["seconds"] for a in rounds]
        median = statistics.median(rates)
        results[kind] = {
            "edges_per_s": median,
            "mad": statistics.median(abs(rate - median) for rate in rates),
            "seconds_per_100_batches": 100 * statistics.median(a["seconds"] for a in rounds) / batches,
            "peak_rss_bytes": max((a["peak_rss_bytes"] for a in rounds if "peak_rss_bytes" in a), default=None),
        }
    return results


def _batches(kind: str, config: dict) -> int:
    return config["mapped_batches"] if "mapped" in kind else config["batches"]


def _start(spec: dict[str, Any], limit: str | None, config: dict, stack: ExitStack) -> Any:
    """Return a function that runs a round; without a limit the contender lives in this process."""
    if limit is None:
        return Sampling(spec).round
    kind = spec["kind"]
    name = "sampling-" + "".join(c if c.isalnum() else "-" for c in kind)
    worker = Worker({"name": name}, parse_bytes(limit), command(spec))
    stack.callback(worker.close)
    worker.ask("round", 0, config["mapped_warm"] if "mapped" in kind else config["batches"])
    return lambda number, batches: worker.ask("round", number, batches)


def here(results: dict) -> str:
    parts = []
    for limit, kinds in results["limits"].items():
        times = [
            f"{kind} {result['seconds_per_100_batches']:.1f} s"
            if "edges_per_s" in result
            else f"{kind}: {missing(result)}"
            for kind, result in kinds.items()
        ]
        parts.append(f"limit {limit}: {', '.join(times)}")
    size = results["edge_file_bytes"] / 2**20
    return f"Edges of {size:,.0f} MiB, seconds per 100 batches; {'; '.join(parts)}."


def draw(results: dict, figure: Figure) -> None:
    axis = figure.subplots()
    limits = list(results["limits"])
    for offset, kind in enumerate(results["about"]):
        for place, limit in enumerate(limits):
            result = results["limits"][limit][kind]
            at = place + 0.2 * (offset - 1.5)
            if "edges_per_s" in result:
                label = kind if place == 0 or "edges_per_s" not in results["limits"][limits[0]][kind] else None
                axis.bar(at, result["seconds_per_100_batches"], 0.18, color=f"C{offset}", label=label)
            else:
                axis.text(at, axis.get_ylim()[0], "killed", rotation=90, ha="center", va="bottom", fontsize=7)
    axis.set_yscale("log")
    axis.set_xticks(range(len(limits)), limits)
    axis.set(
        xlabel=f"memory limit (edges: {results['edge_file_bytes'] / 2**20:.0f} MiB)", ylabel="seconds per 100 batches"
    )
    handles = {label: h for h, label in zip(*axis.get_legend_handles_labels(), strict=True)}
    axis.legend(handles.values(), handles.keys(), fontsize=7)
