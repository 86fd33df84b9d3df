"""Paper 002, table 3, counted: which share of all accesses the most wanted rows take."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from experiments.packing import GRAPHS, access_counts, batches_of
from experiments.words import sentence

TITLE = "Paper 002, table 3: how accesses are spread over rows, counted here"
CLAIM = (
    "The most wanted 1 % of the nodes take 14.1 % of the accesses on Friendster, 43.2 % on Papers100M, 56.4 % on MAG240M and 22.5 % on IGB; "
    "those behind the first 10 % take 42.1, 9.1, 4.0 and 26.7 %."
)
DIFFERS = (
    "Generated graphs of 1 M nodes and 15 edges a node, one epoch: R-MAT, whose degrees are skewed as in Papers100M, and communities, which are more even. "
    "Rows that no batch wants count as rows."
)
CONFIG = {
    "full": {"nodes": 1_000_000, "fanouts": [10, 15], "batch_size": 256, "seeds": 100_000},
    "tiny": {"nodes": 5000, "fanouts": [4, 4], "batch_size": 64, "seeds": 500},
}
SECONDS = 15
CLASSES = {"< 1 %": (0.0, 0.01), "1-5 %": (0.01, 0.05), "5-10 %": (0.05, 0.1), "> 10 %": (0.1, 1.0)}


def run(config: dict) -> dict:
    results = {}
    for graph in GRAPHS:
        counts = np.sort(access_counts(batches_of(config, graph), config["nodes"]))[::-1].astype(np.int64)
        total = int(counts.sum())
        results[graph] = {
            name: float(counts[int(low * len(counts)) : int(high * len(counts))].sum()) / total
            for name, (low, high) in CLASSES.items()
        }
    return results


def here(results: dict) -> str:
    return sentence(
        *(
            f"the first 1 % of the rows take {shares['< 1 %']:.1%} of the accesses on {graph} and those behind 10 % take {shares['> 10 %']:.1%}"
            for graph, shares in results.items()
        )
    )


def table(results: dict) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """One line for every class of rows."""
    heads = ("rank", *results)
    return heads, [(name, *(f"{shares[name]:.1%}" for shares in results.values())) for name in CLASSES]


def draw(results: dict, figure: Figure) -> None:
    axis = figure.subplots()
    for number, (graph, shares) in enumerate(results.items()):
        places = np.arange(len(CLASSES)) + 0.4 * number
        axis.bar(places, [100 * share for share in shares.values()], 0.38, label=graph)
    axis.set_xticks(np.arange(len(CLASSES)) + 0.2, list(CLASSES))
    axis.set(xlabel="rows by how often they are wanted", ylabel="% of accesses")
    axis.legend(fontsize=8)
