"""``gids bench doors``: DGL's and PyG's doors beside gids.Loader on the same data and budget, and how soon they start."""

from __future__ import annotations

import argparse
import importlib.util
import json
import statistics
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import gids
from gids.bench.epoch import FULL, QUICK, Worker, make_dataset
from gids.bench.harness import Bar, Measurement, Report
from gids.bench.page_cache import forget_pages
from gids.storage.curve import save_curve
from gids.storage.probe import probe, warm
from gids.units import format_bytes, parse_bytes

#: Every door is the same runtime: what it adds is the building of its batches.
SPEED_FLOOR = 0.95
MEMORY_CEILING = 1.05
#: Seconds that a loader may take to its first batch beyond opening the graph, sampling and reading one batch alone.
START_CEILING_S = 1.0
#: The first epoch divides the budget beside training; a second one does not.
FIRST_EPOCH_CEILING = 1.15
PLAIN = "gids"


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument("--data", type=Path, help="dataset to use or to make (default: a temporary one)")
    parser.add_argument("--rounds", type=int, help="repeats (default 5)")
    parser.add_argument("--batches", type=int, help="batches in a round (default 192)")
    parser.add_argument("--budget", default="1500MiB", help="memory of every loader (default 1500MiB)")


def doors() -> tuple[list[str], dict[str, str]]:
    """Return the doors that can be opened here, and why others cannot."""
    found, missing = [PLAIN], {}
    if importlib.util.find_spec("dgl") is None:
        missing["dgl"] = "DGL is not installed (Python 3.10, 3.11: pip install 'gids[dgl]')"
    else:
        found += ["dgl, our sampler", "dgl, its sampler"]
    if importlib.util.find_spec("torch_geometric") is None:
        missing["pyg"] = "PyG is not installed (pip install 'gids[pyg]')"
    else:
        found.append("pyg")
    return found, missing


def run(args: argparse.Namespace) -> Report:
    """Alternate the doors and report."""
    scale = QUICK if args.quick else FULL
    batches = args.batches or (6 if args.quick else 192)
    rounds = args.rounds or (1 if args.quick else 5)
    found, missing = doors()
    with ExitStack() as stack:
        data = args.data
        if data is None:
            data = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gids-bench-"))) / "doors"
        make_dataset(data, scale)
        table = gids.open(data).feature_table()
        if not args.quick:
            warm(table.stripes[0].path, table.total_bytes, seconds=60.0)
        for stripe in table.stripes:
            forget_pages(stripe.path)
        curve = probe(data, seconds=1.0 if args.quick else 4.0, scratch_bytes=32 << 20)
        cache_home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gids-curve-")))
        save_curve(data, curve, cache_home / "gids" / "curves")
        common = {
            "data": str(data),
            "fanouts": [10, 10],
            "batch_size": scale.batch_size,
            "budget": "64MiB" if args.quick else args.budget,
            "torch_threads": 1,
        }

        def start(contender: str) -> Worker:
            spec = common | {"name": contender.replace(" ", "-").replace(",", ""), "contender": contender}
            command = [sys.executable, "-m", "gids.bench.doors_worker", json.dumps(spec)]
            worker = Worker(spec, None, command, cache_home)
            stack.callback(worker.close)
            return worker

        starts, epochs = _measure_start(gids.open(data), start, rounds, batches)
        workers = {name: start(name) for name in found}
        for worker in workers.values():
            worker.ask("prepare", 0, 70 if not args.quick else batches)
        answers: dict[str, list[dict[str, Any]]] = {name: [] for name in found}
        for number in range(rounds):
            for name in found if number % 2 == 0 else reversed(found):
                answers[name].append(workers[name].ask("round", number + 1, batches))
    measurements = [
        Measurement(name, "rows", tuple(a["rows"] / a["seconds"] for a in rounds_of))
        for name, rounds_of in answers.items()
    ]
    rate = {m.name: m.median for m in measurements}
    resident = {name: max(a["peak_rss_bytes"] for a in rs) for name, rs in answers.items()}
    before = {name: rs[0]["before_bytes"] for name, rs in answers.items()}
    added = {name: resident[name] - before[name] for name in found}
    bars = [bar for name in found[1:] for bar in bars_of(name, rate, resident, before)]
    later_s = statistics.median(starts["loader_s"]) - statistics.median(starts["alone_s"])
    bars.append(
        Bar("seconds to the first batch beyond reading one alone", later_s, START_CEILING_S, lower_is_better=True)
    )
    first = statistics.median(epochs["first_s"]) / statistics.median(epochs["second_s"])
    bars.append(Bar("first epoch over the second", first, FIRST_EPOCH_CEILING, lower_is_better=True))
    extra: dict[str, object] = {
        "resident": {name: format_bytes(size) for name, size in resident.items()},
        "before_the_loader": {name: format_bytes(size) for name, size in before.items()},
        "added_by_the_loader": {name: format_bytes(size) for name, size in added.items()},
        "larger_before": {name: why for name in found[1:] if (why := larger_before(name, resident, before))},
        "budget_bytes": parse_bytes(str(common["budget"])),
        "start": starts,
        "epochs": epochs,
        "memory": {name: rs[-1]["memory"] for name, rs in answers.items()},
        "chosen": {name: rs[-1]["reasons"] for name, rs in answers.items()},
        "not_run": missing,
        "probed_bandwidth": curve.bandwidth,
        "probed_iops": curve.peak_iops,
    }
    settings = common | {"batches": batches, "rounds": rounds, "quick": args.quick}
    # A quick run has batches that a door takes no time for: its ratios are of Python, not of doors.
    return Report("doors", settings, measurements, extra, [] if args.quick else bars)


def bars_of(
    name: str, rate: Mapping[str, float], resident: Mapping[str, int], before: Mapping[str, int]
) -> Iterator[Bar]:
    """Yield the promises of one door.

    Every process has imported what training takes (an optimizer). One that imports a framework too, or holds a DGL graph of
    the user's own, is larger before there is a loader: what the loader adds beside that graph, which its budget counts, is a
    promise of its own, and the report says where the rest of the ratio is from. No bound proves that a
    loader could not add less, so that a miss is one.
    """
    added = (resident[name] - before[name]) / (resident[PLAIN] - before[PLAIN])
    yield Bar(f"{name}: rows/s over gids.Loader", rate[name] / rate[PLAIN], SPEED_FLOOR)
    yield Bar(
        f"{name}: resident memory over gids.Loader",
        resident[name] / resident[PLAIN],
        MEMORY_CEILING,
        lower_is_better=True,
    )
    yield Bar(f"{name}: memory that the loader adds over gids.Loader", added, MEMORY_CEILING, lower_is_better=True)


def larger_before(name: str, resident: Mapping[str, int], before: Mapping[str, int]) -> str:
    """Return by how much a door's process is larger before its loader, where that is more than the ceiling leaves."""
    more, left = before[name] - before[PLAIN], (MEMORY_CEILING - 1) * resident[PLAIN]
    if more <= left:
        return ""
    return f"{format_bytes(more)} more before there is a loader, and the ceiling leaves {format_bytes(int(left))}"


def _measure_start(
    dataset: gids.Dataset, start: Any, rounds: int, batches: int
) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """Measure, in fresh processes: one batch alone; a loader's first batch; its first epoch and its second."""
    starts: dict[str, list[float]] = {"alone_s": [], "loader_s": []}
    epochs: dict[str, list[float]] = {"first_s": [], "second_s": []}
    for _ in range(rounds):
        for kept in dataset.scratch_dir.glob("prepared-*"):
            kept.unlink()  # as on the first run with these settings
        for name, contender, what in (("alone_s", "alone", "round"), ("loader_s", PLAIN, "first")):
            worker = start(contender)
            starts[name].append(worker.ask(what, 0, 1)["seconds"])
            worker.close()
        for kept in dataset.scratch_dir.glob("prepared-*"):
            kept.unlink()
        worker = start(PLAIN)
        epochs["first_s"].append(worker.ask("round", 0, 2 * batches)["seconds"])
        worker.ask("prepare", 0, 1)
        epochs["second_s"].append(worker.ask("round", 1, 2 * batches)["seconds"])
        worker.close()
    return starts, epochs
