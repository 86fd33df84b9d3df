"""``gids bench train``: whole iterations through every door, beside the best peer on disk and beside memory."""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gids
from gids.bench.doors import doors
from gids.bench.epoch import FULL, PROCESS_BYTES, QUICK, Worker, make_dataset
from gids.bench.epoch_peers import PEERS
from gids.bench.harness import Bar, Measurement, Report
from gids.bench.page_cache import forget_pages
from gids.bench.train_models import MODELS, TYPED_MODELS
from gids.bench.train_peers import TYPED_PEERS
from gids.bench.tuning import in_words, tune
from gids.bench.typed_graph import TARGET, make_typed_graph
from gids.errors import GidsError
from gids.storage.curve import save_curve
from gids.storage.probe import probe, warm
from gids.table import RowTable
from gids.units import parse_bytes

DOORS = ("plain", "dgl", "pyg")
#: Kinds of peers on a graph with one node type, by the framework that a person would use them with.
KINDS: Mapping[str, tuple[str, ...]] = {
    "plain": ("index_select", "pread", "io_uring"),
    "dgl": ("DGL's DataLoader",),
    "pyg": ("PyG's NodeLoader",),
}
#: What stands for everything in memory: the peer of the door, its map replaced by an array.
IN_MEMORY: Mapping[str, str] = {"plain": "index_select", "dgl": "DGL's DataLoader", "pyg": "PyG's NodeLoader"}
#: Its setting: threads that copy rows where nobody waits for a disk; no worker processes, which would have to pass rows on.
FEW: Mapping[str, int] = {"plain": 2, "dgl": 0, "pyg": 0}
#: Whatever a careful person would use on this machine, under this limit, must not be faster.
PEER_FLOOR = 1.0
#: What the report names as close.
CLOSE = 1.5
#: Activations and gradients of the largest model beside the loader, attention over all edges of a batch; and frameworks.
TRAINING_BYTES = 800 << 20
#: A setting of a peer that takes longer than this for one measurement is left out; with a larger model it may take longer.
PATIENCE_S, CELL_PATIENCE_S = 120.0, 600.0
GIDS, PEER, MEMORY = "gids", "best peer", "in memory"


class PeerFailedError(GidsError):
    """The best peer could not train a model, as where its processes and that model take more than the limit."""


@dataclass(frozen=True)
class Tuned:
    """A peer of a door with a setting: its kind, the setting, and both in words."""

    kind: str
    setting: int
    in_words: str


@dataclass(frozen=True)
class Size:
    """How large everything is.

    Attributes
    ----------
    papers, dim, batch_size : int
        Of the graph with several node types.
    hidden : tuple of int
        Sizes of every model.
    lead_s, least_s : float
        Seconds of a round before the clock runs, and that it runs at least.
    accuracy : float
        Share of unseen seeds that a model must tell, for the time to get there.
    """

    papers: int
    dim: int
    batch_size: int
    hidden: tuple[int, ...]
    rounds: int
    lead_s: float
    least_s: float
    accuracy: float
    limit: str = "2GiB"


WHOLE = Size(3_000_000, 256, 1024, (64, 256), 5, 2.0, 5.0, 0.8)
SMALL = Size(20_000, 32, 128, (16,), 1, 0.0, 0.0, 0.1, "1536MiB")


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument("--data", type=Path, help="directory for datasets: used again where they are there, and kept")
    parser.add_argument("--only", choices=DOORS, nargs="+", default=DOORS, help="run these doors")
    parser.add_argument("--rounds", type=int, help="repeats (default 5)")
    parser.add_argument("--no-limit", action="store_true", help="run without a memory cgroup")


def run(args: argparse.Namespace) -> Report:
    """Measure every door on both graphs and report."""
    size, scale = (SMALL, QUICK) if args.quick else (WHOLE, FULL)
    rounds = args.rounds or size.rounds
    _, missing = doors()
    report = Report(
        "train", {"quick": args.quick, "doors": list(args.only), "rounds": rounds, "accuracy": size.accuracy}
    )
    with ExitStack() as stack:
        root = args.data or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gids-bench-")))
        root.mkdir(parents=True, exist_ok=True)
        one, several = root / f"dense-{scale.nodes}", root / f"typed-{size.papers}"
        make_dataset(one, scale)
        make_typed_graph(several, size.papers, size.dim)
        dense = {"data": str(one), "typed": False, "fanouts": [10, 10], "batch_size": scale.batch_size}
        of_types = {"data": str(several), "typed": True, "fanouts": [5, 5], "batch_size": size.batch_size}
        for common in (dense, of_types):
            with Cells(common, size, rounds, args, report) as cells:
                for door in args.only:
                    if door not in missing:
                        cells.measure(door)
    report.extra["under_1.5"] = [bar.name for bar in report.bars if bar.value < CLOSE]
    report.extra["not_run"] = {door: why for door, why in missing.items() if door in args.only}
    if args.quick:  # batches that cost Python more than the disk promise nothing
        report.bars.clear()
    return report


class Cells:
    """Measures one graph through one door after the other, and adds to a report.

    Parameters
    ----------
    common : dict
        ``data``, ``typed``, ``fanouts`` and ``batch_size``.
    size : Size
        How large everything is.
    rounds : int
        Repeats.
    args : Namespace
        The command line.
    report : Report
        What is added to.
    """

    def __init__(self, common: dict[str, Any], size: Size, rounds: int, args: argparse.Namespace, report: Report):
        self.size, self.rounds, self.args, self.report = size, rounds, args, report
        self.limit = parse_bytes(size.limit)
        self.typed: bool = common["typed"]
        self.models = TYPED_MODELS if self.typed else MODELS
        self.dataset = gids.open(common["data"])
        self.seeds = len(self.dataset.split("train", TARGET if self.typed else None))
        self.common = common | {
            "torch_threads": 1 if args.quick else 2,
            "pipeline": {"prefetch": 1},
            "budget": self.limit - PROCESS_BYTES - TRAINING_BYTES,
        }
        self.stack = ExitStack()
        graph = "typed" if self.typed else "dense"
        report.settings[graph] = self.common | {"limit_bytes": None if args.no_limit else self.limit}
        for name in ("seconds_per_epoch", "best_peer", "over_memory", "peers", "left_out", "to_accuracy"):
            report.extra.setdefault(name, {})

    def __enter__(self) -> Cells:
        data = Path(self.common["data"])
        if not self.args.quick:  # the host of a virtual disk keeps what was read lately
            for table in self._tables():
                warm(table.stripes[0].path, table.total_bytes, seconds=20.0)
        self._forget()
        curve = probe(data, seconds=1.0 if self.args.quick else 4.0, scratch_bytes=32 << 20)
        self.cache_home = Path(self.stack.enter_context(tempfile.TemporaryDirectory(prefix="gids-curve-")))
        save_curve(data, curve, self.cache_home / "gids" / "curves")
        return self

    def __exit__(self, *_: object) -> None:
        self.stack.close()

    def measure(self, door: str) -> None:
        """Tune the peers of a door, then let the best of them alternate with gids and with memory, model by model.

        A peer that cannot train a larger model, as too many processes of it may not, gives way to the next best.
        """
        settings = self._tune(door)
        with ExitStack() as stack:

            def best_peer() -> Worker:
                return self._start(stack, door, settings[0].kind, setting=settings[0].setting)

            workers = {
                GIDS: self._start(stack, door, GIDS),
                PEER: best_peer(),
                MEMORY: self._start(stack, door, IN_MEMORY[door], advice="memory", setting=FEW[door]),
            }
            for model, hidden in itertools.product(self.models, self.size.hidden):
                cell = f"{door}, {model} {hidden}"
                while True:
                    try:
                        self._cell(cell, model, hidden, workers)
                        break
                    except PeerFailedError as error:
                        workers[PEER].kill()
                        failed = settings.pop(0)
                        self._extra("left_out").setdefault(cell, {})[failed.in_words] = str(error)
                        if not settings:
                            raise
                        workers[PEER] = best_peer()
                self._extra("best_peer")[cell] = settings[0].in_words
            if not self.typed and door == "plain":
                self._accuracy(workers)

    def _cell(self, cell: str, model: str, hidden: int, workers: dict[str, Worker]) -> None:
        rates: dict[str, list[float]] = {name: [] for name in workers}
        for number in range(self.rounds + 1):
            for name in workers if number % 2 else reversed(workers):
                try:
                    answer = self._round(workers[name], number, model, hidden, CELL_PATIENCE_S)
                except GidsError as error:
                    if name != PEER:
                        raise
                    raise PeerFailedError(str(error)) from error
                if number:  # the first batches of a model, and of a loader, are like no others
                    rates[name].append(answer["seeds"] / answer["seconds"])
        measured = {name: Measurement(f"{cell}: {name}", "seeds", tuple(found)) for name, found in rates.items()}
        self.report.measurements += measured.values()
        seconds = {name: self.seeds / found.median for name, found in measured.items()}
        self._extra("seconds_per_epoch")[cell] = seconds
        self._extra("over_memory")[cell] = seconds[GIDS] / seconds[MEMORY]
        self.report.bars.append(
            Bar(f"{cell}: seconds an epoch, best peer over gids", seconds[PEER] / seconds[GIDS], PEER_FLOOR)
        )

    def _accuracy(self, workers: Mapping[str, Worker]) -> None:
        """Train to a given accuracy, once."""
        order: dict[str, Any] = {"model": self.models[0], "hidden": self.size.hidden[0], "accuracy": self.size.accuracy}
        found = self._extra("to_accuracy")
        for name, worker in workers.items():
            found[name] = worker.ask("accuracy", 0, patience_s=PATIENCE_S, **order)
            self._forget()

    def _tune(self, door: str) -> list[Tuned]:
        """Return the peers of a door with every setting that works, the fastest first, tried with the smallest model."""

        def rate_of(kind: str, setting: int) -> float:
            with ExitStack() as stack:
                worker = self._start(stack, door, kind, setting=setting)
                try:
                    answer = self._round(worker, 0, self.models[0], self.size.hidden[0], PATIENCE_S)
                finally:
                    worker.kill()
            return float(answer["seeds"] / answer["seconds"])

        kinds = {kind: PEERS[kind][1:] for kind in KINDS[door]}
        if self.typed:
            kinds = {IN_MEMORY[door]: TYPED_PEERS[door][1:]}
        tuned, left_out = tune(kinds, rate_of, every=not self.args.quick)
        rates = {(kind, s): r for kind, found in tuned.items() for s, r in found["rate_by_setting"].items()}
        fastest = sorted(rates, key=lambda one: -rates[one])
        settings = [Tuned(kind, s, f"{kind}, {in_words(kinds[kind][0], s)}") for kind, s in fastest]
        cell = f"{door}, {'typed' if self.typed else 'dense'}"
        self._extra("peers")[cell] = {"best": settings[0].in_words, "tried": tuned}
        if left_out:
            self._extra("left_out")[cell] = left_out
        return settings

    def _start(self, stack: ExitStack, door: str, kind: str, *, advice: str = "", setting: int = 0) -> Worker:
        name = f"{door}-{kind}-{advice}{setting}".replace(" ", "-").replace("'", "")
        spec = self.common | {
            "name": name,
            "door": door,
            "contender": GIDS if kind == GIDS else "peer",
            "kind": kind,
            "advice": advice,
            "setting": setting,
        }
        command = [sys.executable, "-m", "gids.bench.train_worker", json.dumps(spec)]
        unlimited = self.args.no_limit or advice == "memory"
        worker = Worker(spec, None if unlimited else self.limit, command, self.cache_home)
        stack.callback(worker.close)
        return worker

    def _round(self, worker: Worker, number: int, model: str, hidden: int, within_s: float) -> dict[str, Any]:
        """Measure one turn; what it leaves in the page cache would serve the next contender beyond its limit."""
        clock: dict[str, Any] = {"lead_s": self.size.lead_s, "least_s": self.size.least_s}
        answer = worker.ask("round", number, within_s=within_s, model=model, hidden=hidden, **clock)
        self._forget()
        return answer

    def _tables(self) -> list[RowTable]:
        return [self.dataset.feature_table(ntype) for ntype in self.dataset.node_types]

    def _forget(self) -> None:
        for table in self._tables():
            for stripe in table.stripes:
                forget_pages(stripe.path)

    def _extra(self, name: str) -> dict[str, Any]:
        found = self.report.extra[name]
        assert isinstance(found, dict)
        return found
