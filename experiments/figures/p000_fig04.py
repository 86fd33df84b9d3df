"""Paper 000, figure 4, measured: sampling by several systems on graphs of several sizes."""

from __future__ import annotations

from matplotlib.figure import Figure

from experiments.graphs import edges_only
from experiments.sampling_runs import ABOUT, DGL, DISK, MEMORY, RING, Contenders, in_turn

TITLE = "Paper 000, figure 4: sampling by several systems on several graphs, measured here"
CLAIM = (
    "On four graphs of 1.6 to 8.2 billion edges RingSampler is 30 to 60x faster than a SmartSSD, faster than every DGL that keeps the graph in "
    "memory, and beside DGL on a GPU; only it and the SmartSSD finish on the two largest graphs."
)
DIFFERS = (
    "R-MAT graphs that fit this machine, two cores instead of 64, no GPU and no SmartSSD. RingSampler is a stand-in written after the paper, and "
    "its edge file is in the page cache. Seconds per 100 batches of 1024 at fan-out 20,15,10, two batches at once for all but DGL."
)
CONFIG = {
    "full": {
        "graphs": [[1_000_000, 30.0], [2_000_000, 30.0], [2_000_000, 60.0]],
        "fanouts": [20, 15, 10],
        "batch_size": 1024,
        "batches": {DISK: 4, MEMORY: 8, RING: 2, DGL: 2},
        "rounds": 3,
    },
    "tiny": {
        "graphs": [[20_000, 10.0]],
        "fanouts": [5, 5],
        "batch_size": 64,
        "batches": {DISK: 1, MEMORY: 1, RING: 1, DGL: 1},
        "rounds": 1,
    },
}
SECONDS = 120


def run(config: dict) -> dict:
    results: dict = {"about": ABOUT, "graphs": {}}
    for nodes, degree in config["graphs"]:
        contenders = Contenders(edges_only(nodes, degree), config["batch_size"])
        try:
            runs = {kind: contenders.gids(kind, config["fanouts"], 2) for kind in (DISK, MEMORY)}
            runs[RING] = contenders.ring(config["fanouts"], 2)
            runs[DGL] = contenders.dgl(config["fanouts"])
            edges = contenders.dataset.num_edges()
            results["graphs"][f"{edges / 1e6:.0f} M edges"] = in_turn(runs, config["batches"], config["rounds"])
        finally:
            contenders.close()
    return results


def here(results: dict) -> str:
    parts = [
        f"{graph}: " + ", ".join(f"{kind} {r['seconds_per_100_batches']:.1f} s" for kind, r in kinds.items())
        for graph, kinds in results["graphs"].items()
    ]
    return f"Seconds per 100 batches; {'; '.join(parts)}."


def draw(results: dict, figure: Figure) -> None:
    axis = figure.subplots()
    graphs = list(results["graphs"])
    for offset, kind in enumerate(results["about"]):
        times = [results["graphs"][graph].get(kind, {}).get("seconds_per_100_batches") for graph in graphs]
        places = [place + 0.2 * (offset - 1.5) for place, value in enumerate(times) if value is not None]
        axis.bar(places, [value for value in times if value is not None], 0.18, color=f"C{offset}", label=kind)
    axis.set_yscale("log")
    axis.set_xticks(range(len(graphs)), graphs)
    axis.set(ylabel="seconds per 100 batches")
    axis.legend(fontsize=7)
