"""Paper 000, figure 7, measured: sampling as the number of layers grows."""

from __future__ import annotations

from matplotlib.figure import Figure

from experiments.graphs import edges_only
from experiments.sampling_runs import ABOUT, DGL, DISK, MEMORY, RING, Contenders, in_turn

TITLE = "Paper 000, figure 7: sampling as the number of layers grows, measured here"
CLAIM = (
    "With fan-outs of one to four layers of 20, 15, 10, 5 RingSampler is over 55x faster than a SmartSSD at every depth, and 4.8x to 31.3x faster than "
    "Marius, whose time grows faster with the layers."
)
DIFFERS = (
    "An R-MAT graph and two cores instead of 64; neither Marius nor SmartSSD is here. RingSampler is a stand-in written after the paper, and its edge "
    "file is in the page cache. Seconds per 100 batches of 1024, two batches at once for all but DGL."
)
CONFIG = {
    "full": {
        "nodes": 2_000_000,
        "degree": 60.0,
        "layers": [[20], [20, 15], [20, 15, 10], [20, 15, 10, 5]],
        "batch_size": 1024,
        "batches": [{DISK: 16, MEMORY: 64, RING: 16, DGL: 16}, {DISK: 8, MEMORY: 32, RING: 8, DGL: 8}]
        + [{DISK: 4, MEMORY: 8, RING: 2, DGL: 2}] * 2,
        "rounds": 3,
    },
    "tiny": {
        "nodes": 20_000,
        "degree": 10.0,
        "layers": [[5], [5, 3]],
        "batch_size": 64,
        "batches": [{DISK: 1, MEMORY: 1, RING: 1, DGL: 1}] * 2,
        "rounds": 1,
    },
}
SECONDS = 120


def run(config: dict) -> dict:
    results: dict = {"about": ABOUT, "layers": {}}
    dataset = edges_only(config["nodes"], config["degree"])
    for layers, batches in zip(config["layers"], config["batches"], strict=True):
        contenders = Contenders(dataset, config["batch_size"])
        fanouts = layers[::-1]  # the paper's first is that of the seeds, ours the last
        try:
            runs = {kind: contenders.gids(kind, fanouts, 2) for kind in (DISK, MEMORY)}
            runs |= {RING: contenders.ring(fanouts, 2), DGL: contenders.dgl(fanouts)}
            results["layers"][",".join(map(str, layers))] = in_turn(runs, batches, config["rounds"])
        finally:
            contenders.close()
    return results


def here(results: dict) -> str:
    parts = [
        f"{layers}: " + ", ".join(f"{kind} {r['seconds_per_100_batches']:.2f} s" for kind, r in kinds.items())
        for layers, kinds in results["layers"].items()
    ]
    return f"Seconds per 100 batches; {'; '.join(parts)}."


def draw(results: dict, figure: Figure) -> None:
    axis = figure.subplots()
    layers = list(results["layers"])
    for kind in results["about"]:
        known = [
            (place, results["layers"][name][kind])
            for place, name in enumerate(layers)
            if kind in results["layers"][name]
        ]
        if known:
            times = [result["seconds_per_100_batches"] for _, result in known]
            axis.plot([place for place, _ in known], times, marker="o", label=kind)
    axis.set_yscale("log")
    axis.set_xticks(range(len(layers)), layers)
    axis.set(xlabel="fan-outs, nearest the seeds first", ylabel="seconds per 100 batches")
    axis.legend(fontsize=7)
