"""Paper 004, figure 10, measured: a constant host buffer of 10 and 20 %, random against reverse PageRank."""

from __future__ import annotations

import torch
from matplotlib.figure import Figure

from experiments.configurations import Configuration, compare
from experiments.graphs import power_law

TITLE = "Figure 10: host buffer, random against reverse PageRank, measured here"
CLAIM = "20 % by reverse PageRank raises effective bandwidth 3.53x over none; 20 % at random about 1.6x (one Optane)."
DIFFERS = (
    "An R-MAT graph instead of IGB-Full; rows/s on a CPU. Without a cache, so that only the buffer is seen; groups of up to 4 "
    "batches, so that both read with the disk's full depth."
)
CONFIG = {
    "full": {"nodes": 1_000_000, "batch_size": 1024, "fanouts": [10, 5], "batches": 12, "rounds": 5, "budget": "640MiB"},
    "tiny": {"nodes": 20_000, "batch_size": 64, "fanouts": [5, 5], "batches": 4, "rounds": 1, "budget": "64MiB"},
}


def run(config: dict) -> dict:
    dataset = power_law(config["nodes"])
    table = dataset.feature_table()
    shuffled = torch.randperm(table.num_rows, generator=torch.Generator().manual_seed(0)).double()
    configurations = []
    for share in (0.0, 0.1, 0.2):
        for rank in ("random", "pagerank") if share else ("none",):
            options = {
                "fanouts": config["fanouts"],
                "batch_size": config["batch_size"],
                "budget": config["budget"],
                "cache": 0,
                "host_buffer": int(share * table.total_bytes),
                "max_group": 4,
            }
            if rank == "random":
                options["host_rank"] = shuffled
            elif rank == "pagerank":
                options["host_rank"] = "pagerank"
            configurations.append(Configuration(f"{share:.0%} {rank}", dataset, config["batches"], options))
    return compare(configurations, config["rounds"])


def draw(results: dict, figure: Figure) -> None:
    left, right = figure.subplots(1, 2)
    names = list(results)
    left.bar(names, [r["rows_per_s"] / 1e3 for r in results.values()], yerr=[r["mad"] / 1e3 for r in results.values()], capsize=3)
    left.set_ylabel("thousand rows/s")
    right.bar(names, [r["host"] for r in results.values()], color="tab:green")
    right.set_ylabel("share of rows served by the buffer")
    for axis in (left, right):
        axis.tick_params(axis="x", rotation=45, labelsize=8)
