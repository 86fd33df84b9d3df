"""``gids bench sample``: sampled edges per second against DGL, from memory and from disk, and latency of one node."""

from __future__ import annotations

import argparse
import importlib.util
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from gids import _native
from gids.bench.harness import Bar, Contender, Measurement, Report, alternate
from gids.bench.power_law import power_law_graph
from gids.bench.sample_disk import disk_section
from gids.sampling import NeighborSampler, SampleKey, Topology

BATCH = 1024
FANOUTS = ([10, 10, 10], [20, 15, 10])

# Floors of the issue. DGL: both build blocks with the same number of threads. Scaling: the part that must run in order
# (numbering) is about a third of the work, so two threads could reach 2.
FLOOR_DGL = 3.0
FLOOR_SCALING = 1.7


@dataclass(frozen=True)
class Sizes:
    """How much a run does."""

    nodes: int
    edges: int
    disk_nodes: int
    disk_edges: int
    batches: int
    rounds: int
    requests: int


FULL = Sizes(4_000_000, 60_000_000, 4_000_000, 240_000_000, batches=4, rounds=5, requests=2000)
QUICK = Sizes(20_000, 300_000, 20_000, 600_000, batches=1, rounds=2, requests=50)


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("--rounds", type=int, help="repeats of every contender (default 5)")
    parser.add_argument("--directory", type=Path, help="where the graph of the disk part is written (default: $TMPDIR)")
    parser.add_argument("--only", choices=("memory", "latency", "disk"), help="run one part")


def run(args: argparse.Namespace) -> Report:
    """Measure, and compare with the floors."""
    sizes = QUICK if args.quick else FULL
    rounds = args.rounds or sizes.rounds
    report = Report("sample", settings={"batch": BATCH, "fanouts": FANOUTS, **vars(sizes), "rounds": rounds})
    if args.only in (None, "memory", "latency"):
        indptr, indices = power_law_graph(sizes.nodes, sizes.edges)
        topology = Topology.from_arrays(on_huge_pages(indptr), on_huge_pages(indices), validate=False)
        if args.only != "latency":
            memory_section(report, topology, indptr, indices, sizes, rounds)
        if args.only != "memory":
            report.extra["latency_us"] = latency_section(topology, sizes.requests)
    if args.only in (None, "disk"):
        with tempfile.TemporaryDirectory(prefix="gids-sample-", dir=args.directory) as directory:
            disk_section(report, Path(directory), sizes.disk_nodes, sizes.disk_edges, sizes.batches, rounds)
    return report


def on_huge_pages(array: np.ndarray) -> np.ndarray:
    """Copy an array to where :meth:`Topology.from_dataset` would put it."""
    copy = _native.huge_bytes(array.nbytes).view(array.dtype)
    copy[:] = array
    return copy


def batches_of_seeds(nodes: int, count: int) -> list[torch.Tensor]:
    """Distinct seeds, in batches; the same ones for every contender."""
    size = min(BATCH, nodes // 4)
    order = torch.from_numpy(np.random.default_rng(1).permutation(nodes))
    return [order[i * size % (nodes - size) :][:size] for i in range(count)]


def memory_section(
    report: Report, topology: Topology, indptr: np.ndarray, indices: np.ndarray, sizes: Sizes, rounds: int
) -> None:
    """Alternate gids and DGL with one and two threads."""
    seeds = batches_of_seeds(topology.num_nodes["_N"], sizes.batches)
    pools = {threads: _native.ThreadPool(threads) for threads in (1, 2)}
    dgl_run = dgl_sampler(indptr, indices, seeds)
    if dgl_run is None:
        report.extra["dgl"] = "not installed: no comparison"
    for fanouts in FANOUTS:
        label = ",".join(map(str, fanouts))
        sampler = NeighborSampler(fanouts)
        contenders = []
        for threads, pool in pools.items():
            contenders.append(Contender(f"gids {label} threads={threads}", gids_run(sampler, topology, seeds, pool)))
            if dgl_run is not None:
                contenders.append(Contender(f"dgl {label} threads={threads}", dgl_run(fanouts, threads)))
        contenders.append(Contender(f"gids {label} 2 batches at once", batches_at_once(sampler, topology, seeds)))
        for contender in contenders:
            contender.run()
        rates = alternate(contenders, unit="edges", rounds=rounds)
        report.measurements += rates.values()
        for threads in pools:
            mine, theirs = f"gids {label} threads={threads}", f"dgl {label} threads={threads}"
            if theirs in rates:
                report.bars.append(
                    Bar(f"{label}: times DGL, {threads} thread(s)", ratio(rates, mine, theirs), FLOOR_DGL)
                )
        scaling = ratio(rates, f"gids {label} threads=2", f"gids {label} threads=1")
        report.bars.append(Bar(f"{label}: 2 threads over 1", scaling, FLOOR_SCALING))


def ratio(rates: dict[str, Measurement], over: str, under: str) -> float:
    """Median over rounds of the ratio within a round, so that drift of the machine cancels."""
    return float(np.median([a / b for a, b in zip(rates[over].rates, rates[under].rates, strict=True)]))


def gids_run(
    sampler: NeighborSampler, topology: Topology, seeds: Sequence[torch.Tensor], pool: _native.ThreadPool | None
) -> Callable[[], float]:
    """Give a round of batches, one after the other."""

    def work() -> float:
        return sum(sampler.sample(topology, s, SampleKey(batch=i), pool).num_edges for i, s in enumerate(seeds))

    return work


def batches_at_once(sampler: NeighborSampler, topology: Topology, seeds: Sequence[torch.Tensor]) -> Callable[[], float]:
    """Give a round in which two Python threads sample different batches."""

    def work() -> float:
        with ThreadPoolExecutor(2) as threads:
            jobs = threads.map(
                lambda i: sampler.sample(topology, seeds[i], SampleKey(batch=i)).num_edges, range(len(seeds))
            )
            return sum(jobs)

    return work


def dgl_sampler(
    indptr: np.ndarray, indices: np.ndarray, seeds: Sequence[torch.Tensor]
) -> Callable[[list[int], int], Callable[[], float]] | None:
    """Give what makes DGL's rounds, or None where DGL is not installed."""
    if importlib.util.find_spec("dgl") is None:
        return None
    import dgl

    no_ids = torch.tensor([], dtype=torch.int64)
    graph = dgl.graph(("csc", (torch.from_numpy(indptr), torch.from_numpy(indices.astype(np.int64)), no_ids)))

    def make(fanouts: list[int], threads: int) -> Callable[[], float]:
        sampler = dgl.dataloading.NeighborSampler(fanouts)

        def work() -> float:
            torch.set_num_threads(threads)
            dgl.utils.set_num_threads(threads)
            edges = 0
            for nodes in seeds:
                edges += sum(block.num_edges() for block in sampler.sample_blocks(graph, nodes)[2])
            return edges

        return work

    return make


def latency_section(topology: Topology, requests: int) -> dict[str, dict[str, float]]:
    """Time single-node samples as a server would take them, from one thread and from four."""
    sampler = NeighborSampler([10, 10])
    nodes = np.random.default_rng(2).integers(0, topology.num_nodes["_N"], requests)

    def one(i: int) -> float:
        start = time.perf_counter()
        sampler.sample(topology, nodes[i : i + 1], SampleKey(batch=i))
        return (time.perf_counter() - start) * 1e6

    results = {}
    for threads in (1, 4):
        with ThreadPoolExecutor(threads) as executor:
            list(executor.map(one, range(min(requests, 50))))
            times = np.array(list(executor.map(one, range(requests))))
        results[f"{threads} thread(s)"] = {"p50": float(np.median(times)), "p99": float(np.quantile(times, 0.99))}
    return results
