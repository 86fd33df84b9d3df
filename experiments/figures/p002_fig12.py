"""Paper 002, figure 12, counted: what an epoch reads under limits of the disk space."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from experiments.packing import GRAPHS, ROW_BYTES, batches_of, disk_rows, hot_rows, page_bytes_of, without
from experiments.words import sentence
from gids.pack import layout

TITLE = "Paper 002, figure 12: limits of the disk space, counted here"
CLAIM = (
    "With less disk space epochs take longer, because more rows lie in the disk cache, whose reads are amplified: from unlimited space (5.39x of the features on Friendster, "
    "10.19x on IGB) over 7x and 5x to 3x."
)
DIFFERS = (
    "Bytes that an epoch reads instead of its seconds, which follow them where the disk is the limit. Generated graphs; rows of 512 bytes; memory for 10 % of them. Space is that of rows; "
    "the segment is the smallest that fits, as in gids pack. R-MAT, like Papers100M and MAG240M in the paper, needs less than its features without a limit."
)
CONFIG = {
    "full": {"nodes": 1_000_000, "fanouts": [10, 15], "batch_size": 256, "seeds": 100_000, "hot": 0.1, "limits": [None, 4, 3, 2]},
    "tiny": {"nodes": 5000, "fanouts": [4, 4], "batch_size": 64, "seeds": 500, "hot": 0.1, "limits": [None, 2, 1.2]},
}  # fmt: skip
SECONDS = 15


def run(config: dict) -> dict:
    return {graph: limits_of(config, graph) for graph in GRAPHS}


def limits_of(config: dict, graph: str) -> dict:
    """What an epoch takes and reads under each limit."""
    nodes, every = config["nodes"], batches_of(config, graph)
    hot = hot_rows(every, nodes, config["hot"])
    cold = without(every, hot, nodes)
    asked = sum(map(len, cold)) * ROW_BYTES
    found = {}
    for limit in config["limits"]:
        allowed = None if limit is None else int(limit * nodes)
        segment = layout.smallest_segment(len(cold), lambda size: disk_rows(every, hot, nodes, size), allowed)
        read = sum(page_bytes_of(cold, nodes, segment))
        found["none" if limit is None else f"{limit:g}x"] = {
            "segment_batches": segment,
            "space": disk_rows(every, hot, nodes, segment) / nodes,
            "read_over_features": read / (nodes * ROW_BYTES),
            "amplification": read / asked,
        }
    return found


def here(results: dict) -> str:
    parts = []
    for graph, found in results.items():
        first, last = next(iter(found.values())), list(found)[-1]
        parts.append(
            f"on {graph} an epoch needs {first['space']:.2f}x of the features without a limit; under {last} it reads {found[last]['read_over_features'] / first['read_over_features']:.2f} times "
            f"as many bytes, in segments of {found[last]['segment_batches']} batches"
        )
    return sentence(*parts)


def table(results: dict) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """One line for every graph and limit."""
    heads = ("graph / limit", "batches of a segment", "space over features", "read over features", "read amplification")
    lines = [
        (
            f"{graph} / {limit}",
            str(one["segment_batches"]),
            f"{one['space']:.2f}",
            f"{one['read_over_features']:.2f}",
            f"{one['amplification']:.2f}",
        )
        for graph, found in results.items()
        for limit, one in found.items()
    ]
    return heads, lines


def draw(results: dict, figure: Figure) -> None:
    axis = figure.subplots()
    for number, (graph, found) in enumerate(results.items()):
        places = np.arange(len(found)) + 0.4 * number
        axis.bar(places, [one["read_over_features"] for one in found.values()], 0.38, label=graph)
        for place, one in zip(places, found.values(), strict=True):
            axis.text(place, one["read_over_features"], f"s={one['segment_batches']}", ha="center", va="bottom", fontsize=7)  # fmt: skip
    axis.set_xticks(np.arange(len(found)) + 0.2, list(found))
    axis.set(xlabel="limit of the disk space over the features", ylabel="bytes read in an epoch over the features")
    axis.legend(fontsize=8)
