"""Paper 002, figure 17: batched against individual packing, by counted bytes and this disk's probed speeds."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from experiments import graphs
from experiments.packing import GRAPHS, ROW_BYTES, batches_of, hot_rows, without
from experiments.words import sentence
from gids.pack.layout import pages_bytes
from gids.pack.materialise import plan_episodes
from gids.storage import load_curve
from gids.storage.write_probe import write_rates
from gids.units import parse_bytes

TITLE = "Paper 002, figure 17: batched and individual packing, predicted for this disk"
CLAIM = "Loading rows is 81 to 90 % of the time of packing batch by batch; one pass over the table for all batches is several times faster."
DIFFERS = (
    "Counted bytes and reads, and what they take by the speeds that were probed of this disk; `gids bench pack` measures both. Individual packing reads each page "
    "that a batch wants once, several at a time. Rows of 512 bytes, memory for 10 % of them; sampling and layout are the same for both and left out."
)
CONFIG = {
    "full": {"nodes": 1_000_000, "fanouts": [10, 15], "batch_size": 256, "seeds": 100_000, "hot": 0.1, "memory": "128MiB"},
    "tiny": {"nodes": 5000, "fanouts": [4, 4], "batch_size": 64, "seeds": 500, "hot": 0.1, "memory": "8MiB"},
}  # fmt: skip
SECONDS = 15


def run(config: dict) -> dict:
    cost, rates = load_curve(graphs.DATA).cost, write_rates(graphs.DATA)
    results = {}
    for graph in GRAPHS:
        nodes, every = config["nodes"], batches_of(config, graph)
        cold = without(every, hot_rows(every, nodes, config["hot"]), nodes)
        written = sum(map(len, cold)) * ROW_BYTES
        pages = sum(pages_bytes(ids.astype(np.int64), ROW_BYTES) for ids in cold)
        ends = np.cumsum([len(ids) for ids in cold])
        begins = np.concatenate([[0], ends[:-1]])
        # A batch's chunk is one region, as gids pack makes them where chunks are large.
        regions = [(int(first), int(last), False) for first, last in zip(begins, ends, strict=True)]
        episodes = len(plan_episodes(regions, ROW_BYTES, parse_bytes(config["memory"]), graph))
        table_bytes = nodes * ROW_BYTES
        reads, passes = pages // 4096, episodes * -(-table_bytes // (1 << 20))
        results[graph] = {
            "individual": {
                "reads": reads,
                "read_bytes": pages,
                "read_s": cost.seconds(reads, pages),
                "write_s": written / rates.write,
            },
            "batched": {
                "reads": passes,
                "read_bytes": episodes * table_bytes,
                "read_s": cost.seconds(passes, episodes * table_bytes),
                "write_s": written / rates.write,
            },
            "episodes": episodes,
        }
    return results


def here(results: dict) -> str:
    parts = []
    for graph, found in results.items():
        one, all_at_once = found["individual"], found["batched"]
        total = [side["read_s"] + side["write_s"] for side in (one, all_at_once)]
        parts.append(
            f"on {graph} batch-by-batch packing makes {one['reads']:,} reads where {found['episodes']} passes make {all_at_once['reads']:,}, {one['read_bytes'] / all_at_once['read_bytes']:.1f} times the bytes; "
            f"by this disk's speeds reading is {one['read_s'] / total[0]:.0%} of its time, and batched packing {total[0] / total[1]:.1f} times as fast"
        )
    return sentence(*parts)


def table(results: dict) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """One line for every graph and way."""
    heads = ("graph / way", "reads", "MiB read", "reading (s, predicted)", "writing (s, predicted)")
    lines = [
        (
            f"{graph} / {way}",
            f"{found[way]['reads']:,}",
            f"{found[way]['read_bytes'] / 2**20:,.0f}",
            f"{found[way]['read_s']:.2f}",
            f"{found[way]['write_s']:.2f}",
        )
        for graph, found in results.items()
        for way in ("individual", "batched")
    ]
    return heads, lines


def draw(results: dict, figure: Figure) -> None:
    axis = figure.subplots()
    labels, read, write = [], [], []
    for graph, found in results.items():
        for way in ("individual", "batched"):
            labels.append(f"{graph}\n{way}")
            read.append(found[way]["read_s"])
            write.append(found[way]["write_s"])
    axis.bar(labels, read, label="reading", hatch="//", edgecolor="white")
    axis.bar(labels, write, bottom=read, label="writing")
    axis.set_ylabel("seconds by the probed speeds")
    axis.legend(fontsize=8)
