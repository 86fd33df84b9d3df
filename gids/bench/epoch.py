"""``gids bench epoch``: batches with features from disk under a memory limit, dense and sparse, ours beside tuned peers."""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gids.bench.cgroup import MemoryCgroup
from gids.bench.harness import Report
from gids.errors import ConfigError, GidsError

#: Outside the loader's budget: Python and torch (275 MiB, of which 122 are pages of libraries), a batch that outlives its
#: epoch in the consumer's hands (85 MiB), what malloc keeps, and the kernel's part of the cgroup.
PROCESS_BYTES = 520 << 20
#: For every contender: arrays of a batch go back to the system when they are freed, not into malloc's reserves.
MALLOC = {"MALLOC_ARENA_MAX": "2", "MALLOC_MMAP_THRESHOLD_": str(256 << 10), "MALLOC_TRIM_THRESHOLD_": str(8 << 20)}
#: Without it DGL prints a line of its own, among the answers, where it has never been imported before.
DGL = {"DGLBACKEND": "pytorch"}
#: A model in training beside the loader: activations, gradients, and two batches kept to measure compute alone.
TRAINING_BYTES = 400 << 20


@dataclass(frozen=True)
class Scale:
    """One size of one regime.

    Attributes
    ----------
    nodes, degree, dim : str, int, int
        Of the graph that is generated.
    batches : int
        Of ours in a round.
    trained_batches : int
        Of a round in which a model is trained too; 0 trains none.
    plain_rows : int
        Of the map without advice, once: at a large readahead a row costs milliseconds.
    lead_s, least_s : float
        Seconds of every round before the clock runs, and that it runs at least.
    tuned : bool
        Whether all settings of each kind of peer are tried, or one.
    options : dict
        Of gids.Loader.
    """

    nodes: str
    dim: int
    batch_size: int
    batches: int
    trained_batches: int
    plain_rows: int
    rounds: int
    limit: str
    hidden: int
    degree: int = 15
    lead_s: float = 3.0
    least_s: float = 4.0
    tuned: bool = True
    options: dict[str, Any] = field(default_factory=dict)


# Dense: batches of this size are a twentieth of the budget each, so one ahead is enough. A round of ours is long beside
# the batches that share reads (32).
FULL = Scale("4M", 256, 1024, 128, 48, 1500, 5, "2GiB", 128, options={"prefetch": 1})
# Sparse: a batch asks for less than a thousandth of the rows, and the limit is less than an eighth of the table.
SPARSE = Scale("17M", 256, 128, 768, 0, 1500, 5, "2GiB", 128, degree=8)
QUICK = Scale(
    *("30k", 64, 128, 6, 4, 100, 1, "1GiB", 16), lead_s=0.0, least_s=0.0, tuned=False, options={"prefetch": 1}
)
QUICK_SPARSE = Scale("60k", 64, 32, 12, 0, 100, 1, "1GiB", 16, degree=8, lead_s=0.0, least_s=0.0, tuned=False)
REGIMES = {"dense": (FULL, QUICK), "sparse": (SPARSE, QUICK_SPARSE)}


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument("--data", type=Path, help="directory for datasets: used again where they are there, and kept")
    parser.add_argument("--only", choices=REGIMES, nargs="+", default=tuple(REGIMES), help="run these regimes")
    parser.add_argument("--rounds", type=int, help="repeats (default 5)")
    parser.add_argument("--batches", type=int, help="batches of ours in a round (default 128, sparse 768)")
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
            env=os.environ | MALLOC | DGL | ({} if cache_home is None else {"XDG_CACHE_HOME": str(cache_home)}),
            preexec_fn=None if self.cgroup is None else self.cgroup.enter,
        )
        self.name = spec["name"]
        try:
            self._answer()
        except GidsError:
            self.close()
            raise

    def _answer(self, within_s: float | None = None) -> dict[str, Any]:
        assert self.process.stdout is not None
        if within_s is not None and not select.select([self.process.stdout], [], [], within_s)[0]:
            raise GidsError(f"contender {self.name} took more than {within_s:.0f} s")
        line = self.process.stdout.readline()
        if not line:
            raise GidsError(f"contender {self.name} ended early (exit code {self.process.wait()})")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise GidsError(f"contender {self.name}: {answer['error']}")
        return answer

    def ask(
        self,
        what: str,
        number: int,
        batches: int = 0,
        rows: int | None = None,
        within_s: float | None = None,
        **more: Any,
    ) -> dict[str, Any]:
        """Have a round run and return what was measured; raise GidsError where it takes more than ``within_s`` seconds."""
        assert self.process.stdin is not None
        order = {"what": what, "number": number, "batches": batches, "rows": rows, **more}
        with contextlib.suppress(BrokenPipeError):  # of a process that ended: the answer says so
            print(json.dumps(order), file=self.process.stdin, flush=True)
        answer = self._answer(within_s)
        if self.cgroup is not None:
            answer["cgroup_peak_bytes"] = self.cgroup.peak_bytes
        return answer

    def kill(self) -> None:
        """End the process whatever it does, and remove its cgroup."""
        self.process.kill()
        if self.cgroup is not None:
            self.cgroup.kill()
        self.close()

    def close(self) -> None:
        """End the process and remove its cgroup."""
        assert self.process.stdin is not None
        if self.process.stdin.closed:
            return
        with contextlib.suppress(BrokenPipeError):
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
        size = ["--nodes", scale.nodes, "--degree", str(scale.degree), "--dim", str(scale.dim), "--quiet"]
        command = [sys.executable, "-m", "gids", "generate", "communities", str(path), *size]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def run(args: argparse.Namespace) -> Report:
    """Measure every regime and report."""
    if importlib.util.find_spec("dgl") is None:
        raise ConfigError(
            "bench epoch compares with DGL, which is missing (Python 3.10, 3.11: pip install 'gids[dgl]')"
        )
    from gids.bench.epoch_regime import Regime  # which needs what is defined here

    report = Report("epoch", {"quick": args.quick, "regimes": list(args.only)})
    with ExitStack() as stack:
        root = args.data
        if root is None:
            root = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gids-bench-")))
        root.mkdir(parents=True, exist_ok=True)
        for name in args.only:
            scale = REGIMES[name][args.quick]
            data = root / f"{name}-{scale.nodes}"
            make_dataset(data, scale)
            with Regime(name, scale, data, args, report) as regime:
                regime.measure()
            if args.data is None:  # the next one needs the room
                shutil.rmtree(data)
    return report
