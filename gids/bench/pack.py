"""``gids bench pack``: packed epochs beside reading online, in dense and in sparse batches, and what packing takes."""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

import gids
from gids.bench.epoch import PROCESS_BYTES, Worker
from gids.bench.harness import Bar, Measurement, Report
from gids.bench.page_cache import forget_pages
from gids.dataset.packed import Packed
from gids.pack import pack
from gids.pack.forecast import Forecast, forecast
from gids.storage import DeviceCurve, RowReader, StorageOptions
from gids.storage.curve import save_curve
from gids.storage.probe import probe, warm
from gids.storage.write_probe import probe_writes
from gids.units import parse_bytes

# Floors of the issue. Online, the dense regime reads more than three times the bytes of its rows, and the sparse one is
# held by random reads at a twentieth of the disk's bandwidth; packed, both read their bytes once and in order.
FLOOR_DENSE, FLOOR_SPARSE = 2.5, 5.0
FLOOR_MAPPED = 50.0
#: Rolling, everything counted and no epoch used twice: a pass and two sequential moves instead of random reads where these
#: are the limit; where they are not, the loader may choose not to spill.
FLOOR_ROLLING_DENSE, FLOOR_ROLLING_SPARSE = 1.0, 2.0
FLOOR_BYTES, FLOOR_BYTES_LIMITED = 1.05, 1.5
#: Packing, layout included, may take half again what its bytes take in order, and must beat reading row by row for each
#: batch. Sampling is left out: a loader does it online too. It stands beside.
FLOOR_PACKING, FLOOR_BATCHED = 1.5, 5.0
#: What --plan says must be within a quarter of what is then measured.
FLOOR_FORECAST = 0.25

FANOUTS = [10, 10]
#: Batches that are packed one by one, for comparison.
INDIVIDUAL_BATCHES = 8
CHECKED_BATCHES = 3


@dataclass(frozen=True)
class Scale:
    """One regime."""

    name: str
    nodes: str
    degree: int
    dim: int
    batch_size: int
    batches: int  # of an epoch
    limited_epochs: int  # that are packed under --disk 3x; 0: none
    mapped_batches: int  # of DGL over a mapped file; 0: not measured here
    limit: str  # of memory
    floor: float
    rolling_floor: float
    online_batches: int = 0  # of an epoch that are read online, which takes longest; 0: all


FULL = (
    Scale("dense", "4M", 15, 256, 1024, 128, 4, 4, "2GiB", FLOOR_DENSE, FLOOR_ROLLING_DENSE),
    Scale("sparse", "16M", 8, 256, 128, 1500, 0, 0, "2GiB", FLOOR_SPARSE, FLOOR_ROLLING_SPARSE, 600),
)
MEDIUM = (
    Scale("dense", "1M", 15, 256, 1024, 48, 4, 2, "1GiB", FLOOR_DENSE, FLOOR_ROLLING_DENSE),
    Scale("sparse", "4M", 8, 256, 128, 800, 0, 0, "1GiB", FLOOR_SPARSE, FLOOR_ROLLING_SPARSE, 300),
)
QUICK = (
    Scale("dense", "30k", 15, 64, 128, 8, 2, 1, "1GiB", FLOOR_DENSE, FLOOR_ROLLING_DENSE),
    Scale("sparse", "60k", 8, 64, 32, 12, 0, 0, "1GiB", FLOOR_SPARSE, FLOOR_ROLLING_SPARSE, 6),
)


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument("--data", type=Path, help="directory for datasets: used again where they are there, and kept")
    parser.add_argument("--only", choices=["dense", "sparse"], help="one regime")
    parser.add_argument("--medium", action="store_true", help="a quarter of the size: minutes, and 6 GB of disk")
    parser.add_argument("--rounds", type=int, help="repeats (default 5; 1 with --quick)")
    parser.add_argument("--no-limit", action="store_true", help="run without a memory cgroup")
    parser.add_argument("--no-plan", action="store_true", help="do not compare with what gids pack --plan says")
    parser.add_argument(
        "--option", action="append", default=[], metavar="NAME=VALUE", help="option of gids.Loader, e.g. prefetch=1"
    )


def run(args: argparse.Namespace) -> Report:
    """Measure every regime and report."""
    scales = QUICK if args.quick else MEDIUM if args.medium else FULL
    rounds = args.rounds or (1 if args.quick else 5)
    report = Report("pack", {"quick": args.quick, "medium": args.medium, "rounds": rounds, "fanouts": FANOUTS})
    with ExitStack() as stack:
        root = args.data
        if root is None:
            root = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gids-bench-")))
        root.mkdir(parents=True, exist_ok=True)
        for scale in scales:
            if args.only in (None, scale.name):
                Regime(scale, root, args, rounds, report).measure()
    return report


class Regime:
    """The measurements of one regime."""

    def __init__(self, scale: Scale, root: Path, args: argparse.Namespace, rounds: int, report: Report):
        self.scale, self.args, self.rounds, self.report = scale, args, rounds, report
        self.data, self.out = root / f"{scale.name}-{scale.nodes}", root / f"packed-{scale.name}-{os.getpid()}"
        self.limit = parse_bytes(scale.limit)
        self.budget = self.limit - PROCESS_BYTES
        self.seeds = scale.batches * scale.batch_size
        self.extra: dict[str, Any] = {}
        options: dict[str, int | str] = {"prefetch": 1} if scale.name == "dense" else {}
        self.options = options | {n: _value(v) for n, v in (pair.split("=", 1) for pair in args.option)}
        report.extra[scale.name] = self.extra

    def measure(self) -> None:
        """Run everything, and keep nothing but the dataset."""
        self._make_dataset()
        dataset = gids.open(self.data)
        self.table = dataset.feature_table()
        if not self.args.quick:  # the host of a virtual disk keeps what was read lately: nobody should warm it alone
            warm(self.table.stripes[0].path, self.table.total_bytes, seconds=60.0)
        for stripe in self.table.stripes:
            forget_pages(stripe.path)
        curve = probe(self.data, seconds=1.0 if self.args.quick else 4.0, scratch_bytes=32 << 20)
        with self._curve_home(curve) as home:
            predicted = None
            if not self.args.no_plan:
                predicted = forecast(dataset, self.out, **self._pack_arguments(dataset))
            try:
                packed = self._pack(dataset, curve, predicted)
                self._individual(dataset, packed)
                self._alternate(home, predicted)
            finally:
                shutil.rmtree(self.out, ignore_errors=True)
            if self.scale.limited_epochs:
                try:
                    self._limited(dataset, home)
                finally:
                    shutil.rmtree(self.out, ignore_errors=True)

    def _make_dataset(self) -> None:
        if (self.data / "manifest.json").exists():
            return
        size = ["--nodes", self.scale.nodes, "--degree", str(self.scale.degree), "--dim", str(self.scale.dim)]
        command = [sys.executable, "-m", "gids", "generate", "communities", str(self.data), *size, "--quiet"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)

    @contextmanager
    def _curve_home(self, curve: DeviceCurve) -> Iterator[Path]:
        """As ``gids probe`` would, but for this run alone: loaders find the curve where they look for it."""
        before = os.environ.get("XDG_CACHE_HOME")
        with tempfile.TemporaryDirectory(prefix="gids-curve-") as home:
            save_curve(self.data, curve, Path(home) / "gids" / "curves")
            os.environ["XDG_CACHE_HOME"] = home
            try:
                yield Path(home)
            finally:
                os.environ.pop("XDG_CACHE_HOME")
                if before is not None:
                    os.environ["XDG_CACHE_HOME"] = before

    def _pack_arguments(self, dataset: gids.Dataset, **changed: Any) -> dict[str, Any]:
        order = {"seeds": dataset.split("train")[: self.seeds], "batch_size": self.scale.batch_size}
        sizes = {"budget": self.budget, "memory": self.limit // 2, "reuse": True}
        return order | {"fanouts": FANOUTS} | sizes | changed

    def _pack(self, dataset: gids.Dataset, curve: DeviceCurve, predicted: Forecast | None) -> Packed:
        begin = time.perf_counter()
        packed = pack(dataset, self.out, **self._pack_arguments(dataset))
        seconds = time.perf_counter() - begin
        facts = packed.facts
        steps: dict[str, float] = facts["seconds"]
        write_rate = probe_writes(self.out.parent).write
        moved = facts["bytes_read"] / curve.bandwidth + facts["bytes_written"] / write_rate
        self.extra |= {
            "packing_s": seconds,
            "packing_steps_s": steps,
            "packing_bytes_read": facts["bytes_read"],
            "packing_bytes_written": facts["bytes_written"],
            "packing_moved_s": moved,
            "packing_over_moved": {
                "rows": steps["rows"] / moved,
                "layout and rows": (steps["layout"] + steps["rows"]) / moved,
                "sampling, layout and rows": sum(steps.values()) / moved,
                "the whole call": seconds / moved,
            },
            "packed_bytes": packed.size_bytes,
            "hot_rows": sum(entry.hot_rows for entry in packed.tables.values()),
            "episodes": facts["episodes"],
            "probed_bandwidth": curve.bandwidth,
            "probed_iops": curve.peak_iops,
            "write_bytes_per_s": write_rate,
        }
        packing = (steps["layout"] + steps["rows"]) / moved
        self._bar("packing time / time of its bytes in order", packing, FLOOR_PACKING, True)
        if predicted is not None:
            self.extra["predicted"] = predicted.as_dict()
            self._forecast_bar("seconds to pack", predicted.packing_s, seconds)
        return packed

    def _individual(self, dataset: gids.Dataset, packed: Packed) -> None:
        """Pack a few batches one by one, a read for each row, as one would without a pass over the table."""
        count = min(INDIVIDUAL_BATCHES, self.scale.batches)
        order = gids.Loader(dataset, packed=packed, budget=self.budget, output=gids.OutputOptions(labels=False))
        with order:
            nodes = [batch.input_nodes.clone() for batch, _ in zip(order, range(count), strict=False)]
        target = self.out.with_name(self.out.name + "-individual")
        begin = time.perf_counter()
        try:
            with (
                RowReader(self.table, StorageOptions(merge_gap_bytes=0)) as reader,
                target.open("wb", buffering=0) as file,
            ):
                for ids in nodes:
                    rows = reader.read(ids.sort().values)
                    file.write(rows.reshape(-1).view(torch.uint8).numpy().data)
                os.fsync(file.fileno())
            each = (time.perf_counter() - begin) / count
        finally:
            target.unlink(missing_ok=True)
        batched = packed.facts["seconds"]["rows"] / self.scale.batches
        self.extra["individual_s_per_batch"], self.extra["batched_s_per_batch"] = each, batched
        self._bar("batched over individual packing", each / batched, FLOOR_BATCHED)

    def _worker(
        self, name: str, home: Path, contender: str = "gids", packed: bool = False, spill: str | None = None
    ) -> Worker:
        spec = {
            "name": f"{self.scale.name}-{name}",
            "contender": contender,
            "data": str(self.data),
            "packed": str(self.out) if packed else None,
            "spill": spill,
            "seeds": self.seeds,
            "fanouts": FANOUTS,
            "batch_size": self.scale.batch_size,
            "budget": self.budget,
            "options": self.options,
            "advice": "random",
        }
        command = [sys.executable, "-m", "gids.bench.pack_worker", json.dumps(spec)]
        return Worker(spec, None if self.args.no_limit else self.limit, command, home)

    def _alternate(self, home: Path, predicted: Forecast | None) -> None:
        """Alternate online and packed epochs, and DGL over a mapped file where it is measured."""
        with ExitStack() as stack:

            def start(*arguments: Any, **options: Any) -> Worker:
                worker = self._worker(*arguments, **options)
                stack.callback(worker.close)
                return worker

            online, packed = start("online", home), start("packed", home, packed=True)
            rolling = start("rolling", home, spill="64GiB")
            checked = (online, packed, rolling)
            same = [worker.ask("digest", 0, CHECKED_BATCHES)["digest"] for worker in checked]
            packed.ask("round", 0)  # the first reading of what was just written is slow on some drives
            turns: list[tuple[str, Worker, int]] = [("online", online, self.scale.online_batches)]
            turns += [("packed", packed, 0), ("rolling", rolling, 0)]
            if self.scale.mapped_batches and importlib.util.find_spec("dgl") is not None:
                turns.append(("mapped", start("mapped", home, contender="dgl"), self.scale.mapped_batches))
            answers: dict[str, list[dict[str, Any]]] = {name: [] for name, _, _ in turns}
            for number in range(self.rounds):
                for name, worker, batches in turns if number % 2 == 0 else reversed(turns):
                    answers[name].append(worker.ask("round", number if name == "rolling" else 0, batches))
        measured = {
            name: Measurement(f"{self.scale.name} {name}", "rows", tuple(a["rows"] / a["seconds"] for a in found))
            for name, found in answers.items()
        }
        self.report.measurements += measured.values()
        rate = {name: m.median for name, m in measured.items()}
        seconds = {
            name: statistics.median(a["seconds"] for a in found) * self.scale.batches / (batches or self.scale.batches)
            for (name, _, batches), found in zip(turns, answers.values(), strict=True)
        }
        ratio = _read_ratio(answers["packed"], self.table.row_bytes)
        self.extra |= {
            "epoch_s": seconds,
            "rows_in_a_batch": answers["packed"][0]["rows"] / self.scale.batches,
            "memory": {name: found[-1].get("memory") for name, found in answers.items()},
            "tables": {name: found[-1].get("table") for name, found in answers.items()},
            "start_s": {name: found[-1].get("start_s") for name, found in answers.items()},
            "reasons": {name: found[-1].get("reasons") for name, found in answers.items()},
            "peak_rss_bytes": {name: max(a["peak_rss_bytes"] for a in found) for name, found in answers.items()},
        }
        self._bar("batches equal to the bit", float(len(set(same)) == 1), 1.0, always=True)
        self._bar("packed over online, rows/s", rate["packed"] / rate["online"], self.scale.floor)
        self._bar("rolling over online, rows/s", rate["rolling"] / rate["online"], self.scale.rolling_floor)
        self._bar("bytes read / bytes of rows from disk", ratio, FLOOR_BYTES, True)
        if "mapped" in rate:
            self._bar("packed over DGL with mmap and MADV_RANDOM", rate["packed"] / rate["mapped"], FLOOR_MAPPED)
        if predicted is not None:
            self._forecast_bar("seconds of a packed epoch", predicted.packed_epoch_s, seconds["packed"])
            self._forecast_bar("seconds of an online epoch", predicted.online_epoch_s, seconds["online"])

    def _limited(self, dataset: gids.Dataset, home: Path) -> None:
        """Pack several epochs under a limit of three times the table, and count what an epoch reads."""
        arguments = self._pack_arguments(dataset, epochs=self.scale.limited_epochs, disk="3x")
        predicted = None if self.args.no_plan else forecast(dataset, self.out, **arguments)
        begin = time.perf_counter()
        packed = pack(dataset, self.out, **arguments)
        seconds = time.perf_counter() - begin
        worker = self._worker("limited", home, packed=True)
        epochs = range(self.scale.limited_epochs)
        try:
            # Blocks that were just written are slow on some drives when they are read for the first time.
            first = [worker.ask("round", epoch) for epoch in epochs]
            answers = [worker.ask("round", number % len(epochs)) for number in range(self.rounds)]
        finally:
            worker.close()
        rates = tuple(a["rows"] / a["seconds"] for a in answers)
        self.report.measurements.append(Measurement(f"{self.scale.name} packed, disk 3x", "rows", rates))
        epoch_s = statistics.median(a["seconds"] for a in answers)
        self.extra["limited"] = {
            "epochs": self.scale.limited_epochs,
            "segment_batches": packed.segment_batches,
            "packed_bytes": packed.size_bytes,
            "page_amplification": float(np.mean(packed.facts["read_amplification"])),
            "packing_s": seconds,
            "packing_steps_s": packed.facts["seconds"],
            "episodes": packed.facts["episodes"],
            "epoch_s": {"first reading": statistics.median(a["seconds"] for a in first), "again": epoch_s},
            "table": answers[-1]["table"],
        }
        ratio = _read_ratio(answers, self.table.row_bytes)
        self._bar("bytes read / bytes of rows from disk, disk 3x", ratio, FLOOR_BYTES_LIMITED, True)
        if predicted is not None:
            self.extra["predicted, disk 3x"] = predicted.as_dict()
            self._forecast_bar("seconds to pack, disk 3x", predicted.packing_s, seconds)
            self._forecast_bar("seconds of a packed epoch, disk 3x", predicted.packed_epoch_s, epoch_s)
            self._forecast_bar("bytes on disk, disk 3x", predicted.disk_bytes, packed.size_bytes)

    def _forecast_bar(self, name: str, predicted: float, measured: float) -> None:
        self.extra.setdefault("plan", {})[name] = {"predicted": predicted, "measured": measured}
        self._bar(f"--plan: {name}, off by", abs(predicted / measured - 1), FLOOR_FORECAST, True)

    def _bar(self, name: str, value: float, floor: float, lower: bool = False, always: bool = False) -> None:
        if always or not self.args.quick:  # a small run promises nothing of speeds
            self.report.bars.append(Bar(f"{self.scale.name}: {name}", value, floor, lower_is_better=lower))
        else:
            self.extra[name] = value


def _read_ratio(answers: list[dict[str, Any]], row_bytes: int) -> float:
    """Return bytes read, samples and positions included, over the bytes of rows that came from disk."""
    ratios = [(a["table"]["bytes_read"] + a["stored_bytes"]) / max(1, a["table"]["disk"] * row_bytes) for a in answers]
    return float(statistics.median(ratios))


def _value(text: str) -> int | str:
    return int(text) if text.isdigit() else text
