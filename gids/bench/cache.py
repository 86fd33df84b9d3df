"""``gids bench cache``: what memory turns into hits, how near that is to the best, and what planning costs."""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gids._native import ThreadPool
from gids.bench.cache_disk import depth_curve
from gids.bench.cache_speed import gather_rates, rank_rates
from gids.bench.harness import Bar, Report
from gids.bench.traces import Trace, make_graph, sample_trace
from gids.sampling import Topology
from gids.tiers import Planner, count_accesses, rank_nodes, top_rows

SHARES = (0.01, 0.04, 0.16)
WINDOWS = (0, 1, 2, 4, 8, 16, 32)
POLICIES = ("random", "lru", "sieve", "gids(16)", *(f"window({w})" for w in WINDOWS), "belady")
HOST_SHARE = 0.2

#: window(16) keeps what the next 16 batches need; where that fits, little is left that only belady knows.
WINDOW_OF_BELADY = 0.95
#: The gain over BaM's random eviction that the paper reports for a window of 16 (figure 12: 1.12 to 1.20).
WINDOW_OVER_RANDOM = 1.2
#: A fifth of the rows chosen by rank against a fifth chosen at random.
RANKED_OVER_RANDOM = 2.0
#: Planning and gathering against torch.index_select alone.
GATHER_TIME = 1.5
#: The accumulator's model against measured IOPS, largest relative error.
MODEL_ERROR = 0.15


@dataclass(frozen=True)
class Size:
    """How much a run does."""

    nodes: int
    traces: tuple[tuple[int, list[int], int], ...]  # (batch size, fanouts, batches)
    gather_rows: int
    gather_batch: int
    disk_bytes: int
    disk_seconds: float
    rounds: int


#: Batches of 2 % and 4 % of the rows, as 1024 seeds with fanout 10, 10 ask of a graph of 4 M nodes.
FULL = Size(1_000_000, ((1024, [10, 10], 100), (2048, [15, 10], 60)), 400_000, 100_000, 2 << 30, 0.5, 7)
QUICK = Size(40_000, ((64, [10, 10], 60), (128, [15, 10], 40)), 50_000, 10_000, 64 << 20, 0.03, 5)


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument("--directory", type=Path, help="where files are made for the run (default: a temporary one)")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="write the figures to a PNG or SVG file")
    parser.add_argument("--seed", type=int, default=0, help="of the graph and the policies that draw (default 0)")


def run(args: argparse.Namespace) -> Report:
    """Measure everything and collect the bars."""
    size = QUICK if args.quick else FULL
    pool = ThreadPool(torch.get_num_threads(), "gids-bench")
    report = Report("cache", settings={"nodes": size.nodes, "seed": args.seed, "quick": args.quick})
    with tempfile.TemporaryDirectory(prefix="gids-bench-", dir=args.directory) as directory:
        dataset = make_graph(Path(directory) / "graph", size.nodes, args.seed)
        topology = Topology.from_dataset(dataset)
        traces = [sample_trace(dataset, topology, *shape, pool) for shape in size.traces]
        hits = {trace.name: _hit_ratios(trace, args.seed, pool, report) for trace in traces}
        _hit_bars(traces, hits, report)
        _host_buffer(dataset, traces, report)
        gather_rates(size.gather_rows, size.gather_batch, size.rounds, GATHER_TIME, report)
        rank_rates(dataset, topology, size.rounds, report)
        depth_curve(Path(directory), size.disk_bytes, size.disk_seconds, MODEL_ERROR, report)
    if args.plot is not None:
        from gids.bench.cache_plot import plot

        plot(report, args.plot)
    return report


def _hit_ratios(trace: Trace, seed: int, pool: ThreadPool, report: Report) -> dict[str, dict[str, float]]:
    """Give the hit ratio by policy and cache share; every batch is a group of its own, so nothing is a duplicate."""
    ratios: dict[str, dict[str, float]] = {}
    for policy in POLICIES:
        ratios[policy] = {}
        for share in SHARES:
            planner = Planner(trace.num_rows, int(trace.num_rows * share), policy, seed=seed, pool=pool)
            hits = requests = 0
            for number, batch in enumerate(trace.batches):
                counters = planner.plan_group([batch], trace.batches[number + 1 :]).counters
                hits, requests = hits + counters.cache, requests + counters.requests
            ratios[policy][f"{share:.0%}"] = hits / requests
    results: dict[str, Any] = {
        "rows_per_batch": trace.rows_per_batch,
        "rows_in_window_16": trace.window_share(16),
        "hit_ratio": ratios,
    }
    report.extra[f"trace {trace.name}"] = results
    return ratios


def _hit_bars(traces: list[Trace], hits: dict[str, dict[str, dict[str, float]]], report: Report) -> None:
    for trace in traces:
        ratios = hits[trace.name]
        for share in (f"{share:.0%}" for share in SHARES):
            window, best, random = (ratios[name][share] for name in ("window(16)", "belady", "random"))
            case = f"cache {share}, {trace.name}"
            report.bars.append(Bar(f"window(16) / belady, {case}", window / best, WINDOW_OF_BELADY))
            # Where belady itself is not that far above random, no policy can be: that case is shown, not promised.
            if best >= WINDOW_OVER_RANDOM * random:
                report.bars.append(Bar(f"window(16) / random, {case}", window / random, WINDOW_OVER_RANDOM))
            growth = np.diff([ratios[f"window({w})"][share] for w in WINDOWS])
            report.bars.append(Bar(f"least gain of a larger window, {case}", float(growth.min()), 0.0))


def _host_buffer(dataset: Any, traces: list[Trace], report: Report) -> None:
    num_rows = dataset.num_nodes()
    count = int(num_rows * HOST_SHARE)
    train = {dataset.node_types[0]: dataset.split("train")}
    generator = torch.Generator().manual_seed(1)
    for trace in traces:
        half = len(trace.batches) // 2
        chosen = {
            "random": torch.randperm(num_rows, generator=generator)[:count],
            "degree": top_rows(rank_nodes(dataset, by="degree")[dataset.node_types[0]], count),
            "pagerank": top_rows(rank_nodes(dataset, train)[dataset.node_types[0]], count),
            "counted": top_rows(count_accesses(trace.batches[:half], num_rows), count),
        }
        shares = {}
        for name, rows in chosen.items():
            held = torch.zeros(num_rows, dtype=torch.bool)
            held[rows] = True
            served = sum(int(held[batch].sum()) for batch in trace.batches[half:])
            shares[name] = served / sum(map(len, trace.batches[half:]))
        report.extra[f"host buffer of {HOST_SHARE:.0%}, {trace.name}"] = shares
        report.bars.append(
            Bar(
                f"host buffer pagerank / random, {trace.name}",
                shares["pagerank"] / shares["random"],
                RANKED_OVER_RANDOM,
            )
        )
