"""Paper 002, figure 18: what each level of the feature store saves, by counted bytes and this disk's probed speeds."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from experiments import graphs
from experiments.packing import GRAPHS, ROW_BYTES, batches_of, hot_rows, without
from experiments.words import listed
from gids.pack.layout import pages_bytes
from gids.storage import load_curve

TITLE = "Paper 002, figure 18: the effect of each level, predicted for this disk"
CLAIM = "From raw reads the GPU cache, then the CPU cache, shorten an epoch, and feature packing shortens it most, on Friendster and IGB."
DIFFERS = (
    "The disk's part of an epoch, by counted reads and the speeds probed of this disk; `gids bench pack` measures online and packed epochs. Raw: a read of a page for every row, as the paper's. "
    "The GPU's level is a cache of 2 % of the rows, the CPU's one of 10 %; both hold the most wanted rows. Rows of 512 bytes."
)
CONFIG = {
    "full": {"nodes": 1_000_000, "fanouts": [10, 15], "batch_size": 256, "seeds": 100_000, "gpu": 0.02, "cpu": 0.1},
    "tiny": {"nodes": 5000, "fanouts": [4, 4], "batch_size": 64, "seeds": 500, "gpu": 0.02, "cpu": 0.1},
}
SECONDS = 15
#: Bytes of a read of packed rows, which follow each other.
READ_BYTES = 512 << 10
LEVELS = ("Raw", "G", "G + C", "G + C + P")


def run(config: dict) -> dict:
    cost = load_curve(graphs.DATA).cost
    results: dict = {}
    for graph in GRAPHS:
        nodes, every = config["nodes"], batches_of(config, graph)
        results[graph] = {}
        for level, share in zip(LEVELS, (0, config["gpu"], config["gpu"] + config["cpu"], config["gpu"] + config["cpu"]), strict=True):  # fmt: skip
            cold = without(every, hot_rows(every, nodes, share), nodes)
            if level.endswith("P"):
                chunks = np.array([len(ids) for ids in cold], np.int64)
                ends = np.cumsum(chunks)
                read = sum(pages_bytes(np.arange(end - n, end), ROW_BYTES) for n, end in zip(chunks, ends, strict=True))
                reads = int(np.ceil(chunks * ROW_BYTES / READ_BYTES).sum())
            else:
                reads = sum(map(len, cold))
                read = reads * 4096
            results[graph][level] = {"reads": reads, "read_bytes": read, "seconds": cost.seconds(reads, read)}
    return results


def here(results: dict) -> str:
    parts = []
    for graph, found in results.items():
        raw = found["Raw"]["seconds"]
        parts.append(listed([f"{name} {one['seconds'] / raw:.3f}" for name, one in found.items()]) + f" on {graph}")
    return f"Seconds of an epoch's reads over those of raw reads, by this disk's speeds: {'; '.join(parts)}."


def table(results: dict) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """One line for every graph and level."""
    heads = ("graph / levels", "reads", "MiB read", "seconds (predicted)")
    lines = [
        (f"{graph} / {name}", f"{one['reads']:,}", f"{one['read_bytes'] / 2**20:,.0f}", f"{one['seconds']:.2f}")
        for graph, found in results.items()
        for name, one in found.items()
    ]
    return heads, lines


def draw(results: dict, figure: Figure) -> None:
    axis = figure.subplots()
    for number, (graph, found) in enumerate(results.items()):
        raw = found["Raw"]["seconds"]
        axis.bar(np.arange(len(found)) + 0.4 * number, [one["seconds"] / raw for one in found.values()], 0.38, label=graph)  # fmt: skip
    axis.set_xticks(np.arange(len(LEVELS)) + 0.2, LEVELS)
    axis.set_ylabel("seconds over raw reads, by the probed speeds")
    axis.legend(fontsize=8)
