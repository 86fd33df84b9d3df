"""``gids bench partition``: cut and speed of partitioning, and what batches from parts and rows by part save."""

from __future__ import annotations

import argparse
import contextlib
import functools
import importlib.util
import os
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

import gids
from gids import generate
from gids.bench.harness import Bar, Contender, Report, alternate
from gids.bench.partition_history import Training, history_section, order_section
from gids.bench.partition_superbatch import Superbatch, superbatch_section
from gids.dataset import Dataset
from gids.partition import (
    Partition,
    PartitionOrder,
    load,
    make,
    parts_per_batch,
    redundancy_ratio,
    reorder,
    seed_parts,
    stored_names,
)
from gids.sampling import NeighborSampler, Sample, SampleKey, Topology
from gids.storage.curve import save_curve
from gids.storage.probe import probe

# Floors of the issue, for the graph of blocks. OUTRE (table III) reports ratios of 0.68 and 0.73 between partition-based
# and random selection; one pass cannot see all that METIS sees in memory; the rows of a part, once they are neighbours on
# disk, come in one read.
FLOOR_RATIO = 0.75
FLOOR_BYTES = 0.5
FLOOR_ROWS = 1.25
FLOOR_EDGES_PER_S = 10e6
FLOOR_CUT, FLOOR_CUT_AGAIN = 1.5, 1.25

#: What a run can be limited to; those of OF_BLOCKS look at one graph.
OF_BLOCKS = ("partitioning", "ratios", "rows", "superbatch")
PARTS = (*OF_BLOCKS, "history", "orders")

THREADS = 2
FANOUTS = [10, 10]
RESTREAMED_PASSES = 3


@dataclass(frozen=True)
class Sizes:
    """How much a run does."""

    nodes: int
    blocks: int
    parts: int
    dim: int
    batch: int
    budget: str
    rounds: int
    task: Training  # with and without history
    order_task: Training  # in orders by parts
    task_nodes: int
    superbatch: Superbatch


FULL = Sizes(
    *(1_000_000, 5000, 2500, 128, 1024, "256MiB", 5),
    Training(),
    Training(batch=128, epochs=3, learning_rate=0.003),
    200_000,
    Superbatch(),
)
QUICK = Sizes(
    6000,
    60,
    30,
    16,
    64,
    "32MiB",
    2,
    Training(batch=64, epochs=1, seeds=1, budget="64MiB"),
    Training(batch=128, epochs=1, seeds=1, budget="64MiB"),
    4000,
    Superbatch(window=40, batch=10, budget="64MiB"),
)


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("--rounds", type=int, help="repeats of every contender (default 5)")
    parser.add_argument("--directory", type=Path, help="where graphs are written (default: $TMPDIR)")
    parser.add_argument("--only", choices=PARTS, nargs="+", default=PARTS, help="run these parts")
    parser.add_argument(
        "--dataset", action="append", default=[], metavar="DIR", help="print cut and ratios of this one too (repeat)"
    )


def run(args: argparse.Namespace) -> Report:
    """Measure, and compare with the floors."""
    sizes = QUICK if args.quick else FULL
    rounds = args.rounds or sizes.rounds
    settings: dict[str, object] = {**asdict(sizes), "rounds": rounds, "fanouts": FANOUTS, "threads": THREADS}
    report, parts = Report("partition", settings=settings), set(args.only)
    with tempfile.TemporaryDirectory(prefix="gids-partition-", dir=args.directory) as temporary:
        root = Path(temporary)
        given = {Path(path).name: gids.open(path) for path in args.dataset}
        if parts & set(OF_BLOCKS):
            shape: dict[str, Any] = {"num_nodes": sizes.nodes, "dim": sizes.dim, "degree": 15.0}
            blocks = generate.communities(root / "blocks", blocks=sizes.blocks, **shape)
            with probed(report, blocks.path, root / "cache", seconds=0.2 if args.quick else 4.0):
                blocks_sections(report, blocks, root, parts, sizes, rounds)
        if "ratios" in parts:
            rmat = generate.rmat(root / "rmat", num_nodes=sizes.nodes, dim=1, degree=15.0)
            ratio_section(report, "rmat", rmat, make(rmat, sizes.parts, store=False), sizes.batch)
            for name, dataset in given.items():
                count = max(1, dataset.num_nodes() // 400)  # as many nodes to a part as above
                stored = str(count) in stored_names(dataset)
                found = load(dataset, count) if stored else make(dataset, count, store=False)
                ratio_section(report, name, dataset, found, sizes.batch)
        # The demo's task, on fewer nodes.
        task: dict[str, Any] = {"degree": 8.0, "dim": 128, "homophily": 0.6, "signal": 1.5}
        task |= {"num_nodes": sizes.task_nodes, "num_classes": 16, "train": 0.1}
        if "history" in parts:
            history_section(report, "demo", generate.communities(root / "demo", **task), sizes.task)
            for name, dataset in given.items():
                one_relation = len(dataset.node_types) == len(dataset.edge_types) == 1
                if one_relation and {"train", "test"} <= set(dataset.split_names()):
                    history_section(report, name, dataset, sizes.task)
        if "orders" in parts:
            small = generate.communities(root / "small", blocks=sizes.task_nodes // 100, **task)
            order_section(report, "small blocks", small, sizes.order_task, sizes.task_nodes // 200)
    return report


def blocks_sections(report: Report, blocks: Dataset, root: Path, parts: set[str], sizes: Sizes, rounds: int) -> None:
    """Run the parts that look at the graph of blocks."""
    if "partitioning" in parts:
        partition_section(report, blocks, sizes, rounds)
    if parts & {"ratios", "rows"}:
        partition = make(blocks, sizes.parts, passes=RESTREAMED_PASSES, threads=THREADS, store=False)
        if "ratios" in parts:
            ratio_section(report, "blocks", blocks, partition, sizes.batch, bar=True)
        if "rows" in parts:
            loader_section(report, blocks, partition, root / "by_part", sizes, rounds)
    if "superbatch" in parts:
        superbatch_section(report, blocks.path, sizes.superbatch, rounds)


@contextlib.contextmanager
def probed(report: Report, data: Path, cache: Path, seconds: float) -> Iterator[None]:
    """Measure the disk as `gids probe` would, but for this run alone: loaders, and those of other processes, find the curve."""
    curve = probe(data, seconds=seconds, scratch_bytes=32 << 20)
    save_curve(data, curve, cache / "gids" / "curves")
    report.extra["probed"] = {
        "IOPS": round(curve.peak_iops),
        "bytes/s": round(curve.bandwidth),
        "merge gap in bytes": curve.merge_gap_bytes,
    }
    before = os.environ.get("XDG_CACHE_HOME")
    os.environ["XDG_CACHE_HOME"] = str(cache)
    try:
        yield
    finally:
        del os.environ["XDG_CACHE_HOME"]
        if before is not None:
            os.environ["XDG_CACHE_HOME"] = before


def partition_section(report: Report, dataset: Dataset, sizes: Sizes, rounds: int) -> None:
    """Time one pass, and compare cuts with METIS's."""
    found: dict[str, Partition] = {}

    def once() -> float:
        found["stream"] = make(dataset, sizes.parts, threads=THREADS, store=False)
        return float(dataset.num_edges())

    # make() also counts the cut, in a pass of its own: the provenance has the time of partitioning alone.
    rates = []
    for _ in range(rounds):
        edges = once()
        rates.append(edges / found["stream"].provenance["seconds"])
    speed = float(np.median(rates))
    report.extra["partitioning_edges_per_s"] = [round(rate) for rate in rates]
    report.bars.append(Bar("partitioning: edges/s, 2 threads, one pass", speed, FLOOR_EDGES_PER_S))
    again = make(dataset, sizes.parts, passes=RESTREAMED_PASSES, threads=THREADS, store=False)
    cuts = {"one pass": found["stream"].cut, f"{RESTREAMED_PASSES} passes": again.cut}
    balance = {"one pass": found["stream"].balance(), f"{RESTREAMED_PASSES} passes": again.balance()}
    if importlib.util.find_spec("pymetis") is None:
        report.extra["metis"] = "not installed: no comparison"
    else:
        start = time.perf_counter()
        metis = make(dataset, sizes.parts, method="metis", store=False)
        report.extra["metis_edges_per_s"] = round(dataset.num_edges() / (time.perf_counter() - start))
        cuts["metis"], balance["metis"] = metis.cut, metis.balance()
        report.bars.append(Bar("cut over METIS's, one pass", cuts["one pass"] / metis.cut, FLOOR_CUT, True))
        name = f"cut over METIS's, {RESTREAMED_PASSES} passes"
        report.bars.append(Bar(name, again.cut / metis.cut, FLOOR_CUT_AGAIN, True))
    report.extra["cuts"] = {name: round(value, 4) for name, value in cuts.items()}
    report.extra["balance"] = {name: round(value, 4) for name, value in balance.items()}


def seeds_of(dataset: Dataset) -> dict[str, torch.Tensor]:
    """Return the training nodes, by node type."""
    types = [ntype for ntype in dataset.node_types if "train" in dataset.manifest.nodes[ntype].splits]
    return {ntype: dataset.split("train", ntype) for ntype in types}


def ratio_section(
    report: Report, name: str, dataset: Dataset, partition: Partition, batch: int, bar: bool = False
) -> None:
    """Sample an epoch in the order of parts and one by chance, and compare their redundancy ratios."""
    topology, sampler, seeds = Topology.from_dataset(dataset), NeighborSampler(FANOUTS), seeds_of(dataset)
    parts = seed_parts(partition, seeds)
    few = parts_per_batch(parts, batch)

    def samples(parts_per_group: int) -> Iterator[Sample]:
        order = PartitionOrder(parts, parts_per_group=parts_per_group).arrange(0, 0)
        ends = np.cumsum([len(ids) for ids in seeds.values()])
        for number, begin in enumerate(range(0, len(order), batch)):
            chosen = order[begin : begin + batch]
            kind = np.searchsorted(ends, chosen, side="right")
            taken = {
                ntype: ids[torch.from_numpy(chosen[kind == i] - (int(ends[i]) - len(ids)))]
                for i, (ntype, ids) in enumerate(seeds.items())
            }
            yield sampler.sample(topology, taken, SampleKey(0, 0, number))

    ratios = {f"groups of {size}": redundancy_ratio(samples(size)) for size in (1, 1 + few, 1 + 4 * few)}
    ratios["by chance"] = redundancy_ratio(samples(max(1, len(parts))))
    over = ratios["groups of 1"] / ratios["by chance"]
    report.extra[f"{name}: redundancy ratio"] = {key: round(value, 2) for key, value in ratios.items()}
    report.extra[f"{name}: cut, by parts over by chance"] = (round(partition.cut, 4), round(over, 3))
    if bar:
        report.bars.append(Bar("redundancy ratio, by parts over by chance", over, FLOOR_RATIO, True))


def loader_section(
    report: Report, dataset: Dataset, partition: Partition, path: Path, sizes: Sizes, rounds: int
) -> None:
    """Alternate epochs of a loader over rows by part, in the order of parts, with epochs of neither."""
    by_part = reorder(dataset, path, by="partition", partition=partition)
    order = gids.OrderOptions(parts=stored_names(by_part)[0])
    asked: dict[str, Any] = {"fanouts": FANOUTS, "batch_size": sizes.batch, "budget": sizes.budget}
    asked["output"] = gids.OutputOptions(labels=False)
    with (
        gids.Loader(dataset, "train", **asked) as neither,
        gids.Loader(by_part, "train", order=order, **asked) as both,
    ):
        loaders = {"neither": neither, "by part": both}

        def epoch(name: str) -> float:
            before = loaders[name].stats().input_nodes
            for _ in loaders[name]:
                pass
            return float(loaders[name].stats().input_nodes - before)

        for name in loaders:
            loaders[name].prepare()
            epoch(name)  # fills the cache
            loaders[name].reset_stats()
        contenders = [Contender(name, functools.partial(epoch, name)) for name in loaders]
        rates = alternate(contenders, unit="rows", rounds=rounds)
        stats = {name: loader.stats() for name, loader in loaders.items()}
    report.measurements += rates.values()
    bytes_a_batch = {
        name: sum(table.bytes_read for table in entry.tables.values()) / entry.batches for name, entry in stats.items()
    }
    report.extra["bytes read per batch"] = {name: round(value) for name, value in bytes_a_batch.items()}
    ratios = {name: entry.redundancy_ratio for name, entry in stats.items()}
    report.extra["rows per seed"] = {name: round(ratio, 2) for name, ratio in ratios.items()}
    times = float(np.median([a / b for a, b in zip(rates["by part"].rates, rates["neither"].rates, strict=True)]))
    less = bytes_a_batch["by part"] / max(bytes_a_batch["neither"], 1)
    report.bars.append(Bar("bytes read per batch, by part over neither", less, FLOOR_BYTES, True))
    report.bars.append(Bar("rows/s of the loader, by part over neither", times, FLOOR_ROWS))
    seeds_per_s = times * ratios["neither"] / max(ratios["by part"], 1e-9)
    report.extra["seeds/s of the loader, by part over neither"] = round(seeds_per_s, 3)
