"""``gids bench cluster``: split tables beside whole ones, looking ahead beside asking, conversion on Ray beside one process."""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from gids.bench import cluster_convert
from gids.bench.harness import Bar, Contender, Report, alternate
from gids.bench.hosts import Hosts, refusal
from gids.errors import GidsError

# Floors of the issue. Half of the rows a rank needs lie with the other, and both share the processors with the traffic:
# a split table may cost a third. A round trip of a millisecond, several times a batch, is what looking ahead hides.
FLOOR_SHARDED, FLOOR_AHEAD = 0.7, 1.5
DELAY_S = 0.001
#: A network of 100 Mbit/s, slower than everything else here, for the model of docs/cluster.md: rows come as fast as the
#: link carries those of others.
LINK_BYTES_PER_S = 12.5e6


@dataclass(frozen=True)
class Scale:
    """What is run.

    Attributes
    ----------
    nodes, degree, dim
        Of the graph that is generated.
    batch_size, fanouts
        Of a batch.
    batches : int
        That each rank takes in a round.
    budget, cache, host_buffer : str
        Of each loader; the same for all contenders.
    """

    nodes: str
    degree: int
    dim: int
    batch_size: int
    fanouts: tuple[int, ...]
    batches: int
    budget: str
    cache: str
    host_buffer: str
    shard_memory: str


#: Dense batches for the rate, as in ``bench epoch``; small ones for the delay, whose rows are soon moved.
RATE = Scale("2M", 15, 256, 1024, (10, 10), 24, "1GiB", "128MiB", "128MiB", "64MiB")
DELAY = Scale("2M", 15, 256, 64, (10, 5), 150, "512MiB", "64MiB", "64MiB", "64MiB")
#: What is measured: split tables over loopback, delay and a slow link between hosts, and conversion on Ray.
PARTS = ("rate", "hosts", "convert")
QUICK_RATE = Scale("20k", 8, 64, 64, (5, 5), 4, "128MiB", "1MiB", "1MiB", "8MiB")
QUICK_DELAY = Scale("20k", 8, 64, 16, (5, 5), 4, "128MiB", "1MiB", "1MiB", "8MiB")


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument("--data", type=Path, help="directory of the dataset: used again where it is there, and kept")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS, help="parts to run (default: all)")
    parser.add_argument("--rounds", type=int, help="repeats (default 5; 1 with --quick)")


def run(args: argparse.Namespace) -> Report:
    """Measure and report."""
    rate, delay = (QUICK_RATE, QUICK_DELAY) if args.quick else (RATE, DELAY)
    rounds = args.rounds or (1 if args.quick else 5)
    settings = {"quick": args.quick, "rounds": rounds, "rate": asdict(rate), "delay": asdict(delay)}
    report = Report("cluster", settings | {"delay_s": DELAY_S, "ranks": 2})
    not_run: dict[str, str] = {}
    report.extra["not_run"] = not_run
    with ExitStack() as stack:
        data = args.data or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gids-bench-"))) / "graph"
        if not data.exists() and {"rate", "hosts"} & set(args.only):
            _make(data, rate)
        if "rate" in args.only:
            with Ranks(data, rate, ("replicated", "sharded")) as ranks:
                ranks.measure(report, rounds)
            ratio = _median(report, "sharded") / _median(report, "replicated")
            report.bars.append(Bar("rows/s, sharded over replicated, two ranks on loopback", ratio, FLOOR_SHARDED))
        if "hosts" in args.only:
            if reason := refusal():
                not_run["hosts"] = reason
            else:
                _on_hosts(report, data, rate, delay, rounds)
    if "convert" in args.only and (missing := cluster_convert.measure(report, args.quick, rounds)):
        not_run["convert"] = missing
    return report


def _median(report: Report, name: str) -> float:
    return next(found.median for found in report.measurements if found.name == name)


def _on_hosts(report: Report, data: Path, rate: Scale, delay: Scale, rounds: int) -> None:
    with Hosts(2, delay_s=DELAY_S) as hosts, Ranks(data, delay, ("look-ahead", "ask and wait"), hosts) as ranks:
        ranks.measure(report, rounds)
    ratio = _median(report, "look-ahead") / _median(report, "ask and wait")
    report.bars.append(Bar(f"look-ahead over ask-and-wait, {DELAY_S * 1e3:g} ms of delay", ratio, FLOOR_AHEAD))
    with Hosts(2, bytes_per_s=LINK_BYTES_PER_S) as hosts, Ranks(data, rate, ("slow link",), hosts) as ranks:
        ranks.measure(report, max(1, rounds // 2))
        report.extra["model"] = _model(ranks.results["slow link"])


def _model(rounds: Sequence[Sequence[dict[str, Any]]]) -> dict[str, float]:
    """Compare a link's rate, which bounds the rows by the model, with what went over it; medians over the rounds."""
    predicted = []
    for answers in rounds:
        rows = sum(answer["rows"] for answer in answers)
        busiest = max(answer["exchange"]["bytes_sent"] for answer in answers)
        measured = rows / max(answer["seconds"] for answer in answers)
        predicted.append((rows / (busiest / LINK_BYTES_PER_S), measured))
    rates = [statistics.median(values) for values in zip(*predicted, strict=True)]
    return {"link_bytes_per_s": LINK_BYTES_PER_S, "predicted_rows_per_s": rates[0], "measured_rows_per_s": rates[1]}


class Ranks:
    """Two ranks as processes, on this machine or on hosts of their own.

    Parameters
    ----------
    data : Path
        The dataset.
    scale : Scale
        Settings.
    contenders : sequence of str
        What each rank opens a loader for.
    hosts : Hosts, optional
        Where; by default on this machine, over loopback.
    """

    WORLD = 2

    def __init__(self, data: Path, scale: Scale, contenders: Sequence[str], hosts: Hosts | None = None):
        self._scale, self._contenders, self._number = scale, contenders, 0
        self.results: dict[str, list[list[dict[str, Any]]]] = {name: [] for name in contenders}
        self._meeting = tempfile.TemporaryDirectory(prefix="gids-bench-")
        self._ranks: list[subprocess.Popen[str]] = []
        for rank in range(self.WORLD):
            spec = {
                "rank": rank,
                "world": self.WORLD,
                "meet": f"file://{self._meeting.name}/ranks",
                "data": str(data),
                "contenders": list(contenders),
                **asdict(scale),
            }
            command = [sys.executable, "-m", "gids.bench.cluster_worker", json.dumps(spec)]
            pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
            self._ranks.append(
                subprocess.Popen(command, text=True, **pipes) if hosts is None else hosts.popen(rank, command, **pipes)
            )
        self._answers()

    def _answers(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        for number, rank in enumerate(self._ranks):
            assert rank.stdout is not None
            line = rank.stdout.readline()
            if not line:
                raise GidsError(f"rank {number} ended early (exit code {rank.wait()})")
            found.append(json.loads(line))
        return found

    def _round(self, contender: str) -> Callable[[], float]:
        def run() -> float:
            self._number += 1
            order = {"contender": contender, "number": self._number, "batches": self._scale.batches}
            for rank in self._ranks:
                assert rank.stdin is not None
                rank.stdin.write(json.dumps(order) + "\n")
                rank.stdin.flush()
            answers = self._answers()
            self.results[contender].append(answers)
            return float(sum(answer["rows"] for answer in answers))

        return run

    def measure(self, report: Report, rounds: int) -> None:
        """Alternate the contenders; adds rates, and what went over the network."""
        contenders = [Contender(name, self._round(name)) for name in self._contenders]
        report.measurements += alternate(contenders, unit="rows", rounds=rounds).values()
        for name in self._contenders:
            report.extra[name] = self.results[name][-1]

    def __enter__(self) -> Ranks:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for rank in self._ranks:
            if error is not None:
                rank.kill()
            assert rank.stdin is not None
            rank.stdin.close()  # all of them before one is waited for: ranks part together
        for rank in self._ranks:
            rank.wait()
            assert rank.stdout is not None
            rank.stdout.close()
        self._meeting.cleanup()


def _make(path: Path, scale: Scale) -> None:
    size = ["--nodes", scale.nodes, "--degree", str(scale.degree), "--dim", str(scale.dim), "--quiet"]
    command = [sys.executable, "-m", "gids", "generate", "communities", str(path), *size]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
