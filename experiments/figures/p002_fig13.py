"""Paper 002, figures 13 and 14, counted: disk space by the memory for rows, by fan-outs and by batch size."""

from __future__ import annotations

from matplotlib.figure import Figure

from experiments.packing import GRAPHS, batches_of, disk_rows, hot_rows
from experiments.words import sentence

TITLE = "Paper 002, figures 13 and 14: disk space of packed rows, counted here"
CLAIM = (
    "Disk space falls quickly as memory holds more rows: below 2x of the features when it holds more than 20 % of them. Going from fan-outs 10,15 to 10,15,20 takes far more; "
    "the batch size hardly matters."
)
DIFFERS = (
    "Generated graphs, one epoch, no limit: every row that memory does not hold is packed for its batch. Three hops cover most of a graph of 1 M nodes, so its third fan-out is 5 and not 20; "
    "seeds are 10 % of the nodes and batches smaller than the paper's 1024."
)
CONFIG = {
    "full": {
        "nodes": 1_000_000,
        "fanouts": [10, 15],
        "batch_size": 256,
        "seeds": 100_000,
        "memory": [0, 0.05, 0.1, 0.2, 0.3, 0.5],
        "hot": 0.1,
        "fanout_choices": [[10, 10], [10, 15], [5, 10, 15]],
        "batch_sizes": [128, 256, 512, 1024],
    },
    "tiny": {
        "nodes": 5000,
        "fanouts": [4, 4],
        "batch_size": 64,
        "seeds": 500,
        "memory": [0, 0.2],
        "hot": 0.1,
        "fanout_choices": [[3, 3], [4, 4]],
        "batch_sizes": [32, 64],
    },
}
SECONDS = 25


def run(config: dict) -> dict:
    nodes = config["nodes"]

    def space(every: tuple, share: float) -> float:
        return disk_rows(every, hot_rows(every, nodes, share), nodes) / nodes

    results = {}
    for graph in GRAPHS:
        plain = batches_of(config, graph)
        results[graph] = {
            "memory": {f"{share:.0%}": space(plain, share) for share in config["memory"]},
            "fan-outs": {
                ",".join(map(str, fanouts)): space(batches_of(config, graph, fanouts=fanouts), config["hot"])
                for fanouts in config["fanout_choices"]
            },
            "batch size": {
                str(size): space(batches_of(config, graph, batch_size=size), config["hot"])
                for size in config["batch_sizes"]
            },
        }
    return results


def here(results: dict) -> str:
    parts = []
    for graph, found in results.items():
        memory, fanouts, sizes = found.values()
        half, none = list(memory)[-1], next(iter(memory))
        small, large = next(iter(sizes)), list(sizes)[-1]
        few, many = next(iter(fanouts)), list(fanouts)[-1]
        parts.append(
            f"on {graph} packed rows take {memory[none]:.2f}x of the features with no memory for rows and {memory[half]:.2f}x with memory for {half} of them; {fanouts[few]:.2f}x with fan-outs {few} and "
            f"{fanouts[many]:.2f}x with {many}; {sizes[small]:.2f}x in batches of {small} and {sizes[large]:.2f}x in batches of {large}"
        )
    return sentence(*parts)


def table(results: dict) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """One line for every setting."""
    heads = ("setting", *(f"{graph}: disk space over features" for graph in results))
    first = next(iter(results.values()))
    lines = [
        (f"{what} {setting}", *(f"{found[what][setting]:.2f}" for found in results.values()))
        for what, settings in first.items()
        for setting in settings
    ]
    return heads, lines


def draw(results: dict, figure: Figure) -> None:
    axes = figure.subplots(1, 3)
    for axis, what in zip(axes, ("memory", "fan-outs", "batch size"), strict=True):
        for graph, found in results.items():
            axis.plot(list(found[what]), list(found[what].values()), "o-", label=graph)
        axis.set_xlabel("rows in memory" if what == "memory" else what)
        axis.tick_params(axis="x", labelsize=7)
        axis.set_ylim(bottom=0)
    axes[0].set_ylabel("disk space over features")
    axes[0].legend(fontsize=8)
