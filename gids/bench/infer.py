"""``gids bench infer``: a model over every node under a memory limit, beside DGL's layer-wise inference over a mapped file."""

from __future__ import annotations

import argparse
import importlib.util
import json
import statistics
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import gids
from gids.bench.epoch import PROCESS_BYTES, Worker
from gids.bench.harness import Bar, Measurement, Report
from gids.bench.page_cache import forget_pages
from gids.dataset import Dataset
from gids.errors import ConfigError
from gids.generate import communities
from gids.partition import make, reorder
from gids.report.growth import growth_allowed
from gids.storage.curve import save_curve
from gids.storage.probe import probe
from gids.storage.write_probe import probe_writes
from gids.units import parse_bytes

#: Bytes read over each needed byte once per layer, on a graph whose neighbours lie near each other.
BYTES_CEILING = 1.5
#: Over the longer of reading at the probed speed and computing alone: everything else must hide behind it.
OVERLAP_CEILING = 1.25
#: Over the first layer of DGL's layer-wise inference with a mapped file and MADV_RANDOM, in nodes per second.
SPEED_FLOOR = 10.0
#: What --plan says must be within a quarter of what is then measured.
FORECAST_CEILING = 0.25
#: The model's weights and torch's libraries of matrix products, beside what a loader's process takes.
MODEL_BYTES = 40 << 20


@dataclass(frozen=True)
class Scale:
    """One size of the benchmark."""

    nodes: int
    dim: int
    blocks: int
    parts: int
    hidden: int
    limit: str
    rounds: int
    mapped_batches: int
    batch_size: int
    computed_tiles: int


# A round of ours is every node of the graph; DGL's, a part of it that takes about as long.
FULL = Scale(4_000_000, 256, 10_000, 5_000, 128, "2GiB", 5, 8, 4096, 24)
QUICK = Scale(20_000, 32, 100, 50, 16, "1GiB", 1, 2, 512, 2)
INSIDE = 0.95


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument("--directory", type=Path, help="where graphs are, or are made (default: a temporary directory)")
    parser.add_argument("--rounds", type=int, help="repeats (default 5)")
    parser.add_argument("--no-limit", action="store_true", help="run without a memory cgroup")


def graphs(directory: Path, scale: Scale) -> tuple[Dataset, Dataset]:
    """Open a graph of blocks, its nodes in no order, and the same relabelled by a partition; made where they are missing."""
    scattered, local = directory / "blocks", directory / "local"
    if not (scattered / "manifest.json").exists():
        communities(scattered, num_nodes=scale.nodes, degree=15, dim=scale.dim, blocks=scale.blocks, inside=INSIDE)
    if not (local / "manifest.json").exists():
        dataset = gids.open(scattered)
        reorder(dataset, local, by="partition", partition=make(dataset, scale.parts, overwrite=True))
    found = gids.open(scattered), gids.open(local)
    for dataset in found:
        table = dataset.feature_table()
        if (table.num_rows, table.dim) != (scale.nodes, scale.dim):
            raise ConfigError(
                f"--directory must hold graphs of {scale.nodes} nodes and {scale.dim} values each, or none "
                f"(got {table.num_rows} and {table.dim} in {dataset.path})"
            )
    return found


def run(args: argparse.Namespace) -> Report:
    """Alternate the contenders and report."""
    if importlib.util.find_spec("dgl") is None:
        raise ConfigError(
            "bench infer compares with DGL, which is missing (Python 3.10, 3.11: pip install 'gids[dgl]')"
        )
    scale = QUICK if args.quick else FULL
    with ExitStack() as stack:
        directory = args.directory
        if directory is None:
            directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gids-bench-")))
        directory.mkdir(parents=True, exist_ok=True)
        return measure(*graphs(directory, scale), directory, scale, args, stack)


def measure(
    scattered: Dataset, local: Dataset, directory: Path, scale: Scale, args: argparse.Namespace, stack: ExitStack
) -> Report:
    """Run every round."""
    limit, rounds = parse_bytes(scale.limit), args.rounds or scale.rounds
    table = local.feature_table()
    for dataset in (scattered, local):
        forget_pages(dataset.feature_table().stripes[0].path)
    curve = probe(local.path, seconds=0.2 if args.quick else 4.0, scratch_bytes=(16 if args.quick else 32) << 20)
    if not args.quick:  # as gids probe does: what --plan says of writing is to be held against the run
        rates = probe_writes(local.path)
        curve = replace(curve, write_bandwidth=rates.write, read_back_bandwidth=rates.read_back)
    cache_home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gids-curve-")))
    save_curve(local.path, curve, cache_home / "gids" / "curves")
    budget = limit - PROCESS_BYTES - MODEL_BYTES
    common = {"hidden": scale.hidden, "classes": 16, "batch_size": scale.batch_size, "budget": budget}

    # New in every run: of what an interrupted one has left, a round would compute the rest only.
    made = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gids-results-", dir=directory)))

    def start(name: str, contender: str, dataset: Dataset) -> Worker:
        spec = common | {"name": name, "contender": contender, "data": str(dataset.path), "advice": "random"}
        spec |= {"out": str(made / name), "scattered": str(scattered.path)}
        command = [sys.executable, "-m", "gids.bench.infer_worker", json.dumps(spec)]
        worker = Worker(spec, None if args.no_limit else limit, command, cache_home)
        stack.callback(worker.close)
        return worker

    ours, mapped = start("gids", "gids", local), start("dgl-mmap-random", "dgl", local)
    planned = ours.ask("plan", 0)
    answers: dict[str, list[dict[str, Any]]] = {"gids": [], "dgl-mmap-random": [], "compute": []}
    for number in range(rounds):
        answers["gids"].append(ours.ask("round", number))
        answers["compute"].append(ours.ask("compute", number, scale.computed_tiles))
        forget_pages(table.stripes[0].path)  # a round visits the same places: the second would read the page cache
        answers["dgl-mmap-random"].append(mapped.ask("round", number, scale.mapped_batches))
    without = ours.ask("without locality", 0)
    ours.close()
    mapped.close()

    hidden_bytes = table.num_rows * scale.hidden * 4
    least = table.total_bytes + hidden_bytes
    edges, edges_read = 2 * local.indices_table().total_bytes, answers["gids"][-1]["edge_bytes_read"]
    read = statistics.median(a["bytes_read"] for a in answers["gids"])
    seconds = statistics.median(a["seconds"] for a in answers["gids"])
    computing = [a["seconds"] for a in answers["compute"]]
    reading = read / curve.bandwidth
    costs = [curve.cost.seconds(sum(layer["reads"] for layer in a["layers"]), a["bytes_read"]) for a in answers["gids"]]
    written = answers["gids"][-1]["bytes_written"]
    first = [table.num_rows / a["layers"][0]["seconds"] for a in answers["gids"]]
    theirs = [a["nodes"] / a["seconds"] for a in answers["dgl-mmap-random"]]
    scan, scan_planned = without["scan"], without["planned"]["scan"]
    peak = max(a["peak_rss_bytes"] for a in [*answers["gids"], without])
    growth = max(a["growth_bytes"] for a in [*answers["gids"], without]) / growth_allowed(budget)
    bars = [
        Bar("bytes of rows read / least, relabelled by partition", read / least, BYTES_CEILING, lower_is_better=True),
        Bar("peak resident memory / limit", peak / limit, 1.0, lower_is_better=True),
        Bar("growth of the process / (1.05 x budget + 32 MiB)", growth, 1.0, lower_is_better=True),
    ]
    if not args.quick:  # seconds of a small graph are those of opening files
        ratio = statistics.median(
            a["seconds"] / max(a["bytes_read"] / curve.bandwidth, alone)
            for a, alone in zip(answers["gids"], computing, strict=True)
        )
        speed = statistics.median(mine / its for mine, its in zip(first, theirs, strict=True))
        bars += [
            Bar("seconds / max(reading at probed speed, compute alone)", ratio, OVERLAP_CEILING, lower_is_better=True),
            Bar("first layer: nodes/s over DGL's, with mmap and MADV_RANDOM", speed, SPEED_FLOOR),
            Bar("bytes that --plan said, off by", abs(planned["bytes_read"] / read - 1), FORECAST_CEILING, True),
            Bar("seconds that --plan said, off by", abs(planned["seconds"] / seconds - 1), FORECAST_CEILING, True),
            Bar(
                "scan: bytes that --plan said, off by",
                abs(scan_planned["bytes_read"] / scan["bytes_read"] - 1),
                FORECAST_CEILING,
                True,
            ),
            Bar(
                "scan: seconds that --plan said, off by",
                abs(scan_planned["seconds"] / scan["seconds"] - 1),
                FORECAST_CEILING,
                True,
            ),
        ]
    extra: dict[str, object] = {
        "bytes_read": read,
        "least_bytes": least,
        # Beside the bar, which is of rows: with the in-edges, which every layer reads to see what it needs and once more.
        "edge_bytes_read": edges_read,
        "bytes_over_least_with_edges": (read + edges_read) / (least + edges),
        "seconds": seconds,
        "compute_alone_s": statistics.median(computing),
        "reading_at_probed_speed_s": reading,
        # Beside the bar, which takes every byte at the speed of large reads: what the reads as they were cost the disk.
        "these_reads_at_probed_costs_s": statistics.median(costs),
        "writing_at_probed_speed_s": None if curve.write_bandwidth is None else written / curve.write_bandwidth,
        "probed_bandwidth": curve.bandwidth,
        "layers": answers["gids"][-1]["layers"],
        "planned": planned,
        "without_locality": {
            "bytes_over_least_by_need_planned": without["planned"]["needed"]["bytes_read"] / least,
            "seconds_by_need_planned": without["planned"]["needed"]["seconds"],
            "bytes_over_least_by_scan": scan["bytes_read"] / least,
            "seconds_by_scan": scan["seconds"],
            "scan": scan,
            "scan_planned": scan_planned,
        },
        "peak_rss_bytes": peak,
        "cgroup_peak_bytes": answers["gids"][-1].get("cgroup_peak_bytes"),
    }
    slice_of = {"mapped_nodes": scale.mapped_batches * scale.batch_size, "nodes": table.num_rows, "dim": table.dim}
    settings = (
        common | slice_of | {"limit_bytes": None if args.no_limit else limit, "rounds": rounds, "quick": args.quick}
    )
    measurements = [Measurement("gids, first layer", "nodes", tuple(first))]
    measurements.append(Measurement("dgl-mmap-random, first layer", "nodes", tuple(theirs)))
    return Report("infer", settings, measurements, extra, bars)
