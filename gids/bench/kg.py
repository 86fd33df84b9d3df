"""``gids bench kg``: complete subgraphs through slices, beside exact extraction from disk and whole copies of subgraphs."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gids.bench.cgroup import MemoryCgroup
from gids.bench.epoch import MALLOC
from gids.bench.harness import Bar, Measurement, Report
from gids.errors import GidsError
from gids.units import parse_bytes

#: TIGER is 1.9 to 7.9 times as fast as basic extraction in the paper (figure 13), epoch times included; extraction alone gains more.
BASIC_FLOOR = 4.0
#: Slices that batches share are read once, and hold an atom's entity once; whole copies do neither.
EQUAL_FLOOR = 1.3
#: The paper's own figure (§VI-B).
SLICING_CEILING = 0.65
#: Atoms need two words of a triple's three, and shared slices are stored once.
SPACE_CEILING = 0.5


@dataclass(frozen=True)
class Scale:
    """Sizes of a run."""

    entities: int
    communities: int
    degree: float
    skew: int
    locality: float
    hops: int
    batch: int
    batches: int
    region: int  # queries of one neighbourhood
    rounds: int
    slice_bytes: int
    cache: str
    budget: str
    limit: str


FULL = Scale(6_000_000, 12_000, 11.0, 3, 0.9, 3, 16, 32, 64, 5, 4096, "64MiB", "560MiB", "900MiB")
QUICK = Scale(3_000, 30, 6.0, 3, 0.8, 3, 8, 3, 8, 2, 1024, "256KiB", "64MiB", "2GiB")


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument("--data", type=Path, help="directory for the graph (default: a temporary one)")
    parser.add_argument("--no-limit", action="store_true", help="run without a memory cgroup")


def make_dataset(path: Path, scale: Scale) -> None:
    """Generate the graph, in a process of its own."""
    if not path.exists():
        sizes = ["--entities", str(scale.entities), "--communities", str(scale.communities)]
        sizes += ["--degree", str(scale.degree), "--skew", str(scale.skew), "--locality", str(scale.locality)]
        sizes += ["--train", "0.002"]
        command = [sys.executable, "-m", "gids", "generate", "kg", str(path), "--reverse", "--identity", "--quiet"]
        subprocess.run([*command, *sizes], check=True, stdout=subprocess.DEVNULL)


def run(args: argparse.Namespace) -> Report:
    """Generate, measure in a process under the limit, report."""
    scale = QUICK if args.quick else FULL
    limited = not (args.no_limit or args.quick)
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory())) if args.data is None else args.data
        home.mkdir(parents=True, exist_ok=True)
        data = home / f"kg-{scale.entities}-{scale.communities}-{scale.degree:g}-{scale.skew}-{scale.locality:g}"
        make_dataset(data, scale)
        cgroup = MemoryCgroup(f"gids-bench-kg-{os.getpid()}", parse_bytes(scale.limit)) if limited else None
        if cgroup is not None:
            stack.callback(cgroup.remove)
        spec = json.dumps(asdict(scale) | {"data": str(data), "work": str(home / "kg-work")})
        worker = subprocess.run(
            [sys.executable, "-m", "gids.bench.kg_worker", spec],
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | MALLOC,
            preexec_fn=None if cgroup is None else cgroup.enter,
            check=False,
        )
        if worker.returncode:
            raise GidsError(f"the measuring process ended early (exit code {worker.returncode})")
        found = json.loads(worker.stdout)
        found["cgroup_peak_bytes"] = None if cgroup is None else cgroup.peak_bytes
    return report_of(found, scale, limited)


def report_of(found: dict[str, object], scale: Scale, limited: bool) -> Report:
    """Turn what the worker measured into a report."""
    rates = {name: Measurement(name, "triples", tuple(values)) for name, values in _dict(found["extraction"]).items()}
    slicing = {name: Measurement(name, "triples", tuple(values)) for name, values in _dict(found["slicing"]).items()}
    slices, facts = rates["slices"].median, _dict(found["slices"])
    bars = [
        Bar("extraction: slices / basic", slices / rates["basic"].median, BASIC_FLOOR),
        Bar("extraction: slices / equal slices", slices / rates["equal slices"].median, EQUAL_FLOOR),
        Bar(
            "slicing time: slices / equal slices",
            slicing["make equal slices"].median / slicing["make slices"].median,
            SLICING_CEILING,
            lower_is_better=True,
        ),
        Bar(
            "disk space: slices / triples of every subgraph",
            facts["disk_bytes"] / facts["plain_bytes"],
            SPACE_CEILING,
            lower_is_better=True,
        ),
    ]
    extra = {key: value for key, value in found.items() if key not in ("extraction", "slicing")}
    settings: dict[str, object] = dict(asdict(scale)) | {"limit_bytes": parse_bytes(scale.limit) if limited else None}
    return Report("kg", settings, [*rates.values(), *slicing.values()], extra, bars)


def _dict(value: object) -> dict[str, Any]:
    assert isinstance(value, dict)
    return value
