"""Paper 002, figures 5 and 16, counted: read amplification of the disk cache by the order of its rows, and its disk space."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from experiments.packing import GRAPHS, ROW_BYTES, Ids, batches_of, disk_rows, hot_rows, without
from experiments.words import sentence
from gids.pack import layout

TITLE = "Paper 002, figures 5 and 16: read amplification by the order of the disk cache, counted here"
CLAIM = (
    "Ordering one disk cache for all batches hardly helps: a tenth of the batches read less than half as much as without an order. Caches of segments of 50 "
    "batches, each in its own order, read far less; smaller segments read less and take more disk space."
)
DIFFERS = (
    "Generated graphs and one epoch; rows of 512 bytes, pages of 4 KiB, memory for 10 % of the rows. Amplification is the pages' bytes over those of the rows, "
    "of all rows that come from disk: those of a batch alone lie in its chunk. The order is that of gids pack: lexicographic over eight MinHash values rather than by one."
)
CONFIG = {
    "full": {"nodes": 1_000_000, "fanouts": [10, 15], "batch_size": 256, "seeds": 100_000, "hot": 0.1, "segments": [50, 100, 150]},
    "tiny": {"nodes": 5000, "fanouts": [4, 4], "batch_size": 64, "seeds": 500, "hot": 0.1, "segments": [2, 4]},
}  # fmt: skip
SECONDS = 20


def run(config: dict) -> dict:
    results = {}
    for graph in GRAPHS:
        nodes, every = config["nodes"], batches_of(config, graph)
        hot = hot_rows(every, nodes, config["hot"])
        cold = without(every, hot, nodes)
        orders = {
            "no order": one_cache(cold, nodes, len(cold), False),
            "global": one_cache(cold, nodes, len(cold), True),
        }
        space = {"global": disk_rows(every, hot, nodes, len(cold)) / nodes}
        for segment in config["segments"]:
            orders[f"segments of {segment}"] = one_cache(cold, nodes, segment, True)
            orders[f"segments of {segment}, no order"] = one_cache(cold, nodes, segment, False)
            space[f"segments of {segment}"] = disk_rows(every, hot, nodes, segment) / nodes
        read = {name: np.array(pages) for name, (pages, _) in orders.items()}
        results[graph] = {
            "amplification": {name: float(sum(pages) / sum(rows)) for name, (pages, rows) in orders.items()},
            "space": space,
            # Figure 5b: what a batch reads over what it reads without an order.
            "by_batch": {name: np.sort(read[name] / read["no order"]).tolist() for name in ("global", f"segments of {config['segments'][0]}")},
        }  # fmt: skip
    return results


def one_cache(cold: list[Ids], nodes: int, segment: int, ordered: bool) -> tuple[list[int], list[int]]:
    """Return the bytes of pages that each batch reads of its segment's cache and its chunk, and those of its rows."""
    pages, rows = [], []
    for begin in range(0, len(cold), segment):
        part = cold[begin : begin + segment]
        shared = layout.shared_rows(part, nodes)
        place = np.arange(len(shared))
        if ordered:
            order, _ = layout.minhash_order(shared, part, seed=begin)
            place[order] = np.arange(len(shared))
        for ids in part:
            _, found = layout.members(ids, shared)
            chunk = np.arange(len(ids) - len(found))
            pages.append(layout.pages_bytes(place[found], ROW_BYTES) + layout.pages_bytes(chunk, ROW_BYTES))
            rows.append(len(ids) * ROW_BYTES)
    return pages, rows


def here(results: dict) -> str:
    parts = []
    for graph, found in results.items():
        of = found["amplification"]
        first = next(name for name in of if name.startswith("segments"))
        halved = float(np.mean(np.array(found["by_batch"]["global"]) < 0.5))
        parts.append(
            f"on {graph} an epoch is read with an amplification of {of['no order']:.2f} in no order, {of['global']:.2f} in one order for all batches and {of[first]:.2f} "
            f"in {first} batches; with one order {halved:.0%} of the batches read less than half"
        )
    return sentence(*parts)


def table(results: dict) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """One line for every graph and order."""
    heads = ("graph / order", "read amplification of an epoch", "disk space over features")
    lines = [
        (
            f"{graph} / {name}",
            f"{value:.2f}",
            f"{found['space'].get(name.removesuffix(', no order'), found['space']['global']):.2f}",
        )
        for graph, found in results.items()
        for name, value in found["amplification"].items()
    ]
    return heads, lines


def draw(results: dict, figure: Figure) -> None:
    left, right = figure.subplots(1, 2)
    for number, (graph, found) in enumerate(results.items()):
        values = found["amplification"]
        left.bar(np.arange(len(values)) + 0.4 * number, list(values.values()), 0.38, label=graph)
        for name, ratios in found["by_batch"].items():
            right.plot(np.linspace(0, 100, len(ratios)), ratios, "--" if name == "global" else "-", color=f"C{number}", label=f"{graph}, {name}")  # fmt: skip
    names = list(next(iter(results.values()))["amplification"])
    left.set_xticks(np.arange(len(names)) + 0.2, names, rotation=50, ha="right", fontsize=7)
    left.set_ylabel("pages' bytes over rows' bytes")
    left.legend(fontsize=8)
    right.set(xlabel="% of the batches, by ratio", ylabel="read over read without an order")
    right.legend(fontsize=7)
