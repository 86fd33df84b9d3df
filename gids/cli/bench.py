"""``gids bench NAME``: measure, print a table or JSON, and say which promises hold."""

from __future__ import annotations

import argparse
import importlib

#: Benchmark -> one line for ``gids bench --help``. Module ``gids.bench.<name>`` has ``configure`` and ``run``.
BENCHMARKS: dict[str, str] = {
    "epoch": "batches with features from disk under a memory limit, beside DGL over a mapped file",
    "train": "whole iterations through every door, beside the best peer on disk and beside memory",
    "doors": "DGL's and PyG's doors beside gids.Loader on the same data and budget, and how soon a loader starts",
    "sample": "sampled edges per second against DGL, from memory and from disk, and latency of one node",
    "disk": "rows from disk against tuned fio, merged groups, the null device",
    "cache": "hit ratios of every policy beside the best possible, host buffer, gather and the accumulator's model",
    "partition": "cut and speed of partitioning, and what batches from parts and rows by part save",
    "pack": "packed epochs beside reading online, in dense and in sparse batches, and what packing takes",
    "infer": "a model over every node under a memory limit, beside DGL layer by layer over a mapped file",
    "cluster": "split tables beside whole ones, looking ahead beside asking and waiting, conversion on Ray beside one process",
    "kg": "complete subgraphs through slices, beside exact extraction from disk and whole copies",
    "nvme": "what the NVMe queue code costs, against a drive made of memory",
    "cuda": "what a batch asks of a GPU, counted on the stand-in, and how long it would take: estimated, not measured",
}


def configure(parser: argparse.ArgumentParser) -> None:
    """Add one subcommand per benchmark."""
    names = parser.add_subparsers(dest="benchmark", metavar="NAME", required=True)
    for name, summary in BENCHMARKS.items():
        benchmark = names.add_parser(name, help=summary, description=summary)
        benchmark.add_argument("--json", action="store_true", help="print one JSON object")
        benchmark.add_argument("--quick", action="store_true", help="a small run, as in the tests")
        benchmark.add_argument("--no-fail", action="store_true", help="exit with 0 even where a promise is missed")
        importlib.import_module(f"gids.bench.{name}").configure(benchmark)


def run(args: argparse.Namespace) -> int:
    """Run the benchmark and print its report; 1 where a promise is missed that could be kept.

    A quick run promises nothing: it shows that the benchmark works.
    """
    report = importlib.import_module(f"gids.bench.{args.benchmark}").run(args)
    report.print(as_json=args.json)
    missed = any(not bar.holds and bar.reachable for bar in report.bars)
    return int(missed and not args.quick and not args.no_fail)
