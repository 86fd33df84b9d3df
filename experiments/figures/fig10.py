"""Paper 004, figure 10, measured: a constant host buffer of 10 and 20 %, filled at random and by reverse PageRank."""

from __future__ import annotations

from matplotlib.figure import Figure

from experiments.baselines import Job
from experiments.baselines.race import Turn, race
from experiments.baselines.systems import ROW_BY_ROW
from experiments.graphs import power_law
from experiments.words import faster, missing
from gids.units import parse_bytes

TITLE = "Figure 10: a host buffer of 10 and 20 % of the rows, measured here"
CLAIM = (
    "6.6 GB/s without a buffer; with 20 % chosen at random 10.4 GB/s, with 20 % by reverse PageRank 23.4 GB/s (3.53x)."
)
DIFFERS = (
    "An R-MAT graph instead of IGB-Full, whose skew decides what ranking can gain; rows of 1 KiB; a cache of 1 % of the rows with random "
    "eviction and no window, as in the paper. Two cores copy rows here, so memory is not as much faster than the disk as a GPU's link is: the share of "
    "rows that the buffer serves can be compared, the gain in bandwidth only in part."
)
CONFIG = {
    "full": {
        "nodes": 1_000_000,
        "fanouts": [10, 10],
        "batch_size": 1024,
        "batches": 32,
        "rounds": 3,
        "shares": [0.1, 0.2],
        "budget": "1GiB",
    },
    "tiny": {
        "nodes": 20_000,
        "fanouts": [5, 5],
        "batch_size": 64,
        "batches": 2,
        "rounds": 1,
        "shares": [0.2],
        "budget": "64MiB",
    },
}
SECONDS = 30
RANKINGS = {"random": "random", "pagerank": "reverse PageRank"}
PAPER_GB_S = {"none": 6.6, "20% random": 10.4, "20% reverse PageRank": 23.4}


def run(config: dict) -> dict:
    dataset = power_law(config["nodes"])
    table = dataset.feature_table()
    buffers = {"none": (0.0, "random")} | {
        f"{share:.0%} {name}": (share, rank) for share in config["shares"] for rank, name in RANKINGS.items()
    }
    turns = []
    for label, (share, rank) in buffers.items():
        options = {
            "policy": "random",
            "window": 0,
            "cache": int(0.01 * table.total_bytes),
            "host_buffer": int(share * table.total_bytes),
            "host_rank": rank,
            "storage": ROW_BY_ROW,
        }
        job = Job(
            str(dataset.path),
            config["batch_size"],
            config["batches"],
            config["fanouts"],
            budget=parse_bytes(config["budget"]),
            options=options,
        )
        turns.append(Turn("gids", job, config["batches"], name=label))
    results = race(turns, rounds=config["rounds"], isolated=False)
    return {"buffers": results, "row_bytes": table.row_bytes, "paper_gb_s": PAPER_GB_S}


def here(results: dict) -> str:
    buffers = results["buffers"]
    parts = [
        f"{result['rows_per_s'] * results['row_bytes'] / 1e9:.2f} GB/s with {name} ({faster(buffers, name, 'none')}, the buffer serves {result['host']:.0%} of the rows)"
        if "rows_per_s" in result
        else f"{missing(result)} with {name}"
        for name, result in buffers.items()
        if name != "none"
    ]
    bare = buffers["none"]
    base = f"{bare['rows_per_s'] * results['row_bytes'] / 1e9:.2f} GB/s" if "rows_per_s" in bare else missing(bare)
    return f"{base} without a buffer; {'; '.join(parts)}."


def draw(results: dict, figure: Figure) -> None:
    left, right = figure.subplots(1, 2)
    buffers, paper = results["buffers"], results["paper_gb_s"]
    base = buffers["none"]["rows_per_s"]
    for place, (name, result) in enumerate(buffers.items()):
        left.bar(place, result["rows_per_s"] / base, 0.6, yerr=result["mad"] / base, color="tab:blue", capsize=3)
        gigabytes = result["rows_per_s"] * results["row_bytes"] / 1e9
        left.text(place, result["rows_per_s"] / base, f"{gigabytes:.2f}\nGB/s", ha="center", va="bottom", fontsize=7)
        if name in paper:
            left.plot(place, paper[name] / paper["none"], "k_", markersize=20)
        right.bar(place, 100 * result["host"], 0.6, color="tab:orange")
    for axis in (left, right):
        axis.set_xticks(range(len(buffers)), list(buffers), rotation=30, ha="right", fontsize=8)
    left.set_ylabel("bandwidth over no buffer (black: the paper)")
    left.margins(y=0.2)
    right.set_ylabel("% of the rows from the buffer")
