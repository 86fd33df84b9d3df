"""``gids bench epoch``: batches with features from disk under a memory limit, ours beside DGL over a mapped file."""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gids
from gids.bench.cgroup import MemoryCgroup
from gids.bench.harness import Bar, Measurement, Report
from gids.bench.page_cache import forget_pages
from gids.errors import ConfigError, GidsError
from gids.report.growth import growth_allowed
from gids.storage.curve import save_curve
from gids.storage.probe import probe, warm
from gids.units import format_bytes, parse_bytes

#: Outside the loader's budget: Python and torch (275 MiB, of which 122 are pages of libraries), a batch that outlives its
#: epoch in the consumer's hands (85 MiB), what malloc keeps, and the kernel's part of the cgroup.
PROCESS_BYTES = 520 << 20
#: For every contender: arrays of a batch go back to the system when they are freed, not into malloc's reserves.
MALLOC = {"MALLOC_ARENA_MAX": "2", "MALLOC_MMAP_THRESHOLD_": str(256 << 10), "MALLOC_TRIM_THRESHOLD_": str(8 << 20)}
#: A model in training beside the loader: activations, gradients, and two batches kept to measure compute alone.
TRAINING_BYTES = 400 << 20
#: GIDS reports an order of magnitude over mapped files (paper 004 §4.5); grouping and merging must give more.
SPEED_FLOOR = 25.0
#: Reading must hide behind training, or training behind reading, but for a tenth and some noise.
OVERLAP_CEILING = 1.15


@dataclass(frozen=True)
class Scale:
    """One size of the benchmark."""

    nodes: str
    dim: int
    batch_size: int
    batches: int  # of ours in a round: the first of an epoch over all training nodes
    trained_batches: int  # of a round in which a model is trained too
    mapped_batches: int  # of the mapped contender in a round: it is that much slower
    plain_rows: int  # of plain mmap, once: at a large readahead a row costs milliseconds
    rounds: int
    limit: str
    hidden: int


# A round of ours is long beside the batches that share reads (32): the first of them has nothing to overlap with, and
# what is read ahead at the end is thrown away, as in no whole epoch.
FULL = Scale("4M", 256, 1024, 256, 64, 4, 1500, 5, "2GiB", 128)
QUICK = Scale("30k", 64, 128, 6, 6, 2, 100, 1, "1GiB", 16)


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument("--data", type=Path, help="dataset to use or to make (default: a temporary one)")
    parser.add_argument("--rounds", type=int, help="repeats (default 5)")
    parser.add_argument("--batches", type=int, help="batches of ours in a round (default 256)")
    parser.add_argument("--no-limit", action="store_true", help="run without a memory cgroup")
    parser.add_argument(
        "--option", action="append", default=[], metavar="NAME=VALUE", help="option of gids.Loader, e.g. window=8"
    )


class Worker:
    """A contender's process, in a memory cgroup of its own.

    Parameters
    ----------
    spec : dict
        Its ``name``, and what the process needs to know.
    limit_bytes : int or None
        Memory limit.
    command : list of str, optional
        Program that answers one JSON line with one, or with an ``error``; by default ``epoch_worker`` with ``spec``.
    cache_home : Path, optional
        Where the process looks for what ``gids probe`` found.
    """

    def __init__(
        self,
        spec: dict[str, Any],
        limit_bytes: int | None,
        command: list[str] | None = None,
        cache_home: Path | None = None,
    ):
        name = f"gids-bench-{os.getpid()}-{spec['name']}"
        self.cgroup = None if limit_bytes is None else MemoryCgroup(name, limit_bytes)
        self.process = subprocess.Popen(
            command or [sys.executable, "-m", "gids.bench.epoch_worker", json.dumps(spec)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | MALLOC | ({} if cache_home is None else {"XDG_CACHE_HOME": str(cache_home)}),
            preexec_fn=None if self.cgroup is None else self.cgroup.enter,
        )
        self.name = spec["name"]
        try:
            self._answer()
        except GidsError:
            self.close()
            raise

    def _answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise GidsError(f"contender {self.name} ended early (exit code {self.process.wait()})")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise GidsError(f"contender {self.name}: {answer['error']}")
        return answer

    def ask(self, what: str, number: int, batches: int = 0, rows: int | None = None) -> dict[str, Any]:
        """Have a round run and give what was measured."""
        assert self.process.stdin is not None
        print(json.dumps({"what": what, "number": number, "batches": batches, "rows": rows}), file=self.process.stdin)
        self.process.stdin.flush()
        answer = self._answer()
        if self.cgroup is not None:
            answer["cgroup_peak_bytes"] = self.cgroup.peak_bytes
        return answer

    def close(self) -> None:
        """End the process and remove its cgroup."""
        assert self.process.stdin is not None
        if self.process.stdin.closed:
            return
        self.process.stdin.close()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        if self.cgroup is not None:
            self.cgroup.remove()


def readahead_kib(path: Path) -> int | None:
    """Readahead of the device that holds ``path``, in KiB."""
    device = path.stat().st_dev
    block = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}")
    for queue in (block / "queue", block.resolve().parent / "queue"):
        if (queue / "read_ahead_kb").exists():
            return int((queue / "read_ahead_kb").read_text())
    return None


def make_dataset(path: Path, scale: Scale) -> None:
    """Generate the dataset unless it is there."""
    if not (path / "manifest.json").exists():
        size = ["--nodes", scale.nodes, "--degree", "15", "--dim", str(scale.dim), "--quiet"]
        command = [sys.executable, "-m", "gids", "generate", "communities", str(path), *size]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def run(args: argparse.Namespace) -> Report:
    """Alternate the contenders and report."""
    if importlib.util.find_spec("dgl") is None:
        raise ConfigError(
            "bench epoch compares with DGL, which is missing (Python 3.10, 3.11: pip install 'gids[dgl]')"
        )
    scale = QUICK if args.quick else FULL
    with ExitStack() as stack:
        data = args.data
        if data is None:
            data = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gids-bench-"))) / "epoch"
        make_dataset(data, scale)
        return measure(data, scale, args, stack)


def measure(data: Path, scale: Scale, args: argparse.Namespace, stack: ExitStack) -> Report:
    """Run every round."""
    batches, rounds = args.batches or scale.batches, args.rounds or scale.rounds
    limit = parse_bytes(scale.limit)
    # Batches of this size are a twentieth of the budget each: one ahead is enough. The rest is left to the loader.
    options: dict[str, Any] = {"prefetch": 1}
    options |= {name: _value(text) for name, text in (pair.split("=", 1) for pair in args.option)}
    common = {
        "data": str(data),
        "fanouts": [10, 10],
        "batch_size": scale.batch_size,
        "torch_threads": 1,
        "hidden": scale.hidden,
        "options": options,
    }
    table = gids.open(data).feature_table()
    if not args.quick:  # the host of a virtual disk keeps what was read lately: neither contender should warm it alone
        warm(table.stripes[0].path, table.total_bytes, seconds=60.0)
    for stripe in table.stripes:
        forget_pages(stripe.path)
    # As `gids probe` would, but for this run alone: loaders find the curve where they look for it.
    curve = probe(data, seconds=1.0 if args.quick else 4.0, scratch_bytes=32 << 20)
    cache_home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gids-curve-")))
    save_curve(data, curve, cache_home / "gids" / "curves")

    def start(name: str, contender: str, advice: str = "", beside: int = 0) -> Worker:
        spec = common | {
            "name": name,
            "contender": contender,
            "advice": advice,
            "budget": limit - PROCESS_BYTES - beside,
        }
        worker = Worker(spec, None if args.no_limit else limit, cache_home=cache_home)
        stack.callback(worker.close)
        return worker

    ours, mapped = start("gids", "gids"), start("dgl-mmap-random", "dgl", "random")
    answers: dict[str, list[dict[str, Any]]] = {ours.name: [], mapped.name: []}
    turns = [(ours, batches), (mapped, scale.mapped_batches)]
    for number in range(rounds):
        for worker, count in turns if number % 2 == 0 else reversed(turns):
            answers[worker.name].append(worker.ask("round", number, count))
    ours.close()
    mapped.close()
    training = start("gids-training", "gids", beside=0 if args.quick else TRAINING_BYTES)
    overlaps = [training.ask("overlap", number, scale.trained_batches) for number in range(rounds)]
    training.close()
    plain_worker = start("dgl-mmap-plain", "dgl", "normal")
    plain = plain_worker.ask("round", 0, 1, scale.plain_rows)

    measurements = [
        Measurement(name, "rows", tuple(a["rows"] / a["seconds"] for a in rounds_of))
        for name, rounds_of in answers.items()
    ]
    rate = {m.name: m.median for m in measurements}
    shares = [_ceiling(a, table.row_bytes, curve.bandwidth) for a in answers[ours.name]]
    data_s, compute_s, both_s = (
        statistics.median(o[name] for o in overlaps) for name in ("data_s", "compute_s", "both_s")
    )
    peak = max(a["peak_rss_bytes"] for a in [*answers[ours.name], *overlaps])
    extra: dict[str, object] = {
        "dgl-mmap-plain": f"{plain['rows'] / plain['seconds']:,.0f} rows/s at a readahead of {readahead_kib(data)} KiB",
        "plain_rows_per_s": plain["rows"] / plain["seconds"],
        "readahead_kib": readahead_kib(data),
        "rows_in_a_batch": answers[ours.name][0]["rows"] / batches,
        "probed_bandwidth": curve.bandwidth,
        "probed_iops": curve.peak_iops,
        "probed_merge_gap_bytes": curve.merge_gap_bytes,
        "ceiling_seconds": statistics.median(s["seconds"] for s in shares),
        "share_of_ceiling": statistics.median(s["share"] for s in shares),
        "share_of_ceiling_with_merged_gaps": statistics.median(s["share_read"] for s in shares),
        "peak_rss": {name: format_bytes(max(a["peak_rss_bytes"] for a in rs)) for name, rs in answers.items()},
        "cgroup_peak_bytes": answers[ours.name][-1].get("cgroup_peak_bytes"),
        "memory": answers[ours.name][-1]["memory"],
        "growth_bytes": [a["growth_bytes"] for a in answers[ours.name]],
        "chosen": answers[ours.name][-1]["reasons"],
        "tables": [a["table"] for a in answers[ours.name]],
        "overlap": [{name: o[name] for name in ("data_s", "compute_s", "both_s")} for o in overlaps],
        "bytes_verified": True,
    }
    growth = max(a["growth_bytes"] for a in answers[ours.name]) / growth_allowed(limit - PROCESS_BYTES)
    bars = [
        Bar("peak resident memory / limit", peak / limit, 1.0, lower_is_better=True),
        Bar("growth of the process / (1.05 x budget + 32 MiB)", growth, 1.0, lower_is_better=True),
    ]
    if not args.quick:
        bars.insert(
            0, Bar("rows/s over DGL with mmap and MADV_RANDOM", rate[ours.name] / rate[mapped.name], SPEED_FLOOR)
        )
        ratio = both_s / max(data_s, compute_s)
        bars.append(Bar("epoch / max(data only, compute only)", ratio, OVERLAP_CEILING, lower_is_better=True))
    settings = common | {
        "batches": batches,
        "trained_batches": scale.trained_batches,
        "limit_bytes": None if args.no_limit else limit,
        "rounds": rounds,
        "quick": args.quick,
    }
    return Report("epoch", settings, measurements, extra, bars)


def _ceiling(answer: dict[str, Any], row_bytes: int, bandwidth: float) -> dict[str, float]:
    """How long the bytes that had to come from disk would take at full bandwidth, and our share of that."""
    table = answer["table"]
    seconds = table["disk"] * row_bytes / bandwidth
    return {
        "seconds": seconds,
        "share": seconds / answer["seconds"],
        "share_read": table["bytes_read"] / bandwidth / answer["seconds"],
    }


def _value(text: str) -> int | str:
    return int(text) if text.isdigit() else text
