"""Paper 000, figure 8, measured: sampling as the number of threads grows."""

from __future__ import annotations

from matplotlib.figure import Figure

from experiments.graphs import edges_only
from experiments.sampling_runs import ABOUT, DISK, MEMORY, RING, Contenders, in_turn

TITLE = "Paper 000, figure 8: sampling by several threads, measured here"
CLAIM = (
    "Without a limit RingSampler's time falls almost linearly with threads up to the cores (64); with 4 GB it is best at 32 threads, because workspaces "
    "of 64 leave little memory for the page cache."
)
DIFFERS = (
    "An R-MAT graph and two cores instead of 64. Threads of gids are batches under way: from disk most of them wait, so that more than there are cores "
    "pay. RingSampler is a stand-in written after the paper, and its edge file is in the page cache. Fan-out 20,15,10, batches of 1024."
)
CONFIG = {
    "full": {
        "nodes": 2_000_000,
        "degree": 60.0,
        "fanouts": [20, 15, 10],
        "batch_size": 1024,
        "threads": [1, 2, 4, 8],
        "batches": {DISK: 8, MEMORY: 8, RING: 2},
        "rounds": 3,
    },
    "tiny": {
        "nodes": 20_000,
        "degree": 10.0,
        "fanouts": [5, 3],
        "batch_size": 64,
        "threads": [1, 2],
        "batches": {DISK: 2, MEMORY: 2, RING: 2},
        "rounds": 1,
    },
}
SECONDS = 120


def run(config: dict) -> dict:
    results: dict = {"about": {kind: ABOUT[kind] for kind in (DISK, MEMORY, RING)}, "threads": {}}
    contenders = Contenders(edges_only(config["nodes"], config["degree"]), config["batch_size"])
    try:
        for threads in config["threads"]:
            runs = {kind: contenders.gids(kind, config["fanouts"], threads) for kind in (DISK, MEMORY)}
            runs[RING] = contenders.ring(config["fanouts"], threads)
            batches = config["batches"] | {RING: max(config["batches"][RING], threads)}
            results["threads"][str(threads)] = in_turn(runs, batches, config["rounds"])
    finally:
        contenders.close()
    return results


def here(results: dict) -> str:
    parts = [
        f"{threads} threads: " + ", ".join(f"{kind} {r['edges_per_s'] / 1e6:.1f} M" for kind, r in kinds.items())
        for threads, kinds in results["threads"].items()
    ]
    return f"Edges per second; {'; '.join(parts)}."


def draw(results: dict, figure: Figure) -> None:
    axis = figure.subplots()
    for kind in results["about"]:
        known = [(int(threads), kinds[kind]) for threads, kinds in results["threads"].items() if kind in kinds]
        if known:
            axis.errorbar(
                [threads for threads, _ in known],
                [result["edges_per_s"] / 1e6 for _, result in known],
                [result["mad"] / 1e6 for _, result in known],
                marker="o",
                label=kind,
            )
    axis.set_xscale("log", base=2)
    axis.set_yscale("log")
    axis.set(xlabel="threads", ylabel="million edges per second")
    axis.legend(fontsize=7)
