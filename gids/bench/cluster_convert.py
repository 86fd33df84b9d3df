"""Conversion for ``gids bench cluster``: tasks on Ray beside one process, the same source to the same bytes."""

from __future__ import annotations

import filecmp
import shutil
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gids.bench.harness import Bar, Contender, Report, alternate
from gids.convert import ConvertOptions, RayWorkers, convert
from gids.errors import ConfigError, GidsError

#: Of the issue, on two processors: tasks wait for no other, but both share one drive, and Ray's own processes work too.
FLOOR_RAY = 1.3
WORKERS, TASK_MEMORY = 2, "256MiB"


@dataclass(frozen=True)
class Source:
    """Parquet parts of a graph with random edges, as a cluster would have written them.

    Attributes
    ----------
    nodes, edges, dim : int
        Of the graph.
    parts : int
        Files of each table.
    """

    nodes: int
    edges: int
    dim: int
    parts: int


FULL, QUICK = Source(1_000_000, 30_000_000, 64, 8), Source(2000, 20_000, 8, 2)


def measure(report: Report, quick: bool, rounds: int) -> str | None:
    """Convert in turns; adds rates and the bar. Returns why nothing was run, if so."""
    source = QUICK if quick else FULL
    report.settings["conversion"] = asdict(source) | {"workers": WORKERS, "task_memory": TASK_MEMORY}
    with ExitStack() as stack:
        try:
            import pyarrow.parquet
        except ImportError:
            return "needs pyarrow: pip install 'gids[parquet]'"
        try:
            workers = stack.enter_context(RayWorkers("local", WORKERS, TASK_MEMORY))
        except ConfigError as error:
            return str(error)
        root = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gids-bench-")))
        _write(root / "source", source, pyarrow)
        options = {"one process": ConvertOptions(), "Ray": ConvertOptions(workers=workers)}
        convert(root / "source", root / "first", options=options["Ray"])  # Ray's workers import what they need
        shutil.rmtree(root / "first")

        def contender(name: str) -> Contender:
            def run() -> float:
                convert(root / "source", root / name, options=options[name])
                return float(source.edges)

            return Contender(name, run, _remove(root / name))

        found = alternate([contender(name) for name in options], unit="edges", rounds=rounds)
        _same(root / "one process", root / "Ray")
    report.measurements += found.values()
    ratio = found["Ray"].median / found["one process"].median
    report.bars.append(Bar("conversion, Ray with two workers over one process, the same bytes", ratio, FLOOR_RAY))
    return None


def _remove(path: Path) -> Callable[[], None]:
    return lambda: shutil.rmtree(path, ignore_errors=True)


def _write(root: Path, source: Source, pyarrow: Any) -> None:
    generator = np.random.default_rng(0)
    for folder in ("nodes", "edges"):
        (root / folder).mkdir(parents=True)
    for part in range(source.parts):
        nodes, edges = (
            total * (part + 1) // source.parts - total * part // source.parts for total in (source.nodes, source.edges)
        )
        values = pyarrow.array(generator.standard_normal(nodes * source.dim, np.float32))
        columns: dict[str, dict[str, Any]] = {
            "nodes": {"feat": pyarrow.FixedSizeListArray.from_arrays(values, source.dim)},
            "edges": {name: pyarrow.array(generator.integers(0, source.nodes, edges)) for name in ("src", "dst")},
        }
        for folder, found in columns.items():
            pyarrow.parquet.write_table(pyarrow.table(found), root / folder / f"part-{part:05}.parquet")


def _same(left: Path, right: Path) -> None:
    names = sorted(str(path.relative_to(left)) for path in left.rglob("*") if path.is_file())
    others = sorted(str(path.relative_to(right)) for path in right.rglob("*") if path.is_file())
    if names != others or filecmp.cmpfiles(left, right, names, shallow=False) != (names, [], []):
        raise GidsError(f"{right} must have the bytes of {left}")
