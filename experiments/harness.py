"""One harness for every experiment: find them, run them at a scale, keep numbers, tables and pictures together.

An experiment is a module in ``experiments/figures`` with

    TITLE, CLAIM (what the paper says), DIFFERS (what is different here, and why)
    CONFIG = {"full": {...}, "tiny": {...}}, SECONDS (what the full scale takes on two cores)
    run(config) -> dict     the numbers, JSON-ready
    draw(results, figure)   the picture
    here(results) -> str    the paper's claim in the numbers of this run, computed from them
    table(results) -> heads and lines, where the numbers are no rates of contenders (optional)

``run`` measures through :func:`experiments.baselines.race.race` where contenders are compared: they take turns, their
bytes are verified, spreads are kept.
"""

from __future__ import annotations

import importlib
import json
import os
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

from experiments import graphs
from gids.bench.epoch import readahead_kib
from gids.report.provenance import provenance
from gids.storage import load_curve
from gids.storage.curve import curve_path, save_curve
from gids.storage.probe import probe

FIGURES = Path(__file__).parent / "figures"
SCALES = ("full", "tiny")
PAGE_CACHE = (
    "gids reads past the page cache (O_DIRECT); contenders that map or pread use it within their memory limit, each "
    "on a copy of the file of its own that is dropped from the cache before it starts, then read from end to beginning within its limit"
)


def names() -> list[str]:
    """Every experiment, in order."""
    return sorted(path.stem for path in FIGURES.glob("[a-z]*.py"))


def load(name: str) -> ModuleType:
    """Import one experiment; a wrong name is an error that lists the right ones."""
    if name not in names():
        raise SystemExit(f"experiment must be one of {', '.join(names())} (got {name!r})")
    return importlib.import_module(f"experiments.figures.{name}")


def done(name: str, scale: str, out: Path) -> dict[str, Any] | None:
    """Return the record of an experiment that ``out`` has for this scale and config, or None."""
    path = out / f"{name}.json"
    if not path.exists():
        return None
    record: dict[str, Any] = json.loads(path.read_text())
    config = json.loads(json.dumps(load(name).CONFIG[scale]))
    return record if (record["scale"], record["config"]) == (scale, config) else None


def run(name: str, scale: str, out: Path) -> Path:
    """Run one experiment, write ``NAME.json`` and ``NAME.svg`` into ``out``, and return the JSON's path.

    An experiment that fails leaves ``NAME.failed.json`` with the reason, for the page, and raises what it raised.
    """
    experiment = load(name)
    config = experiment.CONFIG[scale]
    out.mkdir(parents=True, exist_ok=True)
    failed = out / f"{name}.failed.json"
    start = time.perf_counter()
    record = {
        "experiment": name,
        "title": experiment.TITLE,
        "claim": experiment.CLAIM,
        "differs": experiment.DIFFERS,
        "scale": scale,
        "config": config,
    }
    try:
        results = json.loads(json.dumps(experiment.run(config), default=str))
        origin = provenance() | {"disk": disk(graphs.DATA), "page_cache": PAGE_CACHE}
        record |= {"seconds": time.perf_counter() - start, "provenance": origin, "results": results}
        picture(record, out / f"{name}.svg")
    except Exception as error:
        why = f"{type(error).__name__}: {error}"
        failed.write_text(json.dumps(record | {"failed": why, "provenance": provenance()}, indent=1) + "\n")
        raise
    path = out / f"{name}.json"
    path.write_text(json.dumps(record, indent=1) + "\n")
    failed.unlink(missing_ok=True)
    return path


def probe_once(out: Path, seconds: float = 4.0) -> None:
    """Measure the disk, unless ``out`` has its curve, and let every loader of this run find it there.

    As a user's ``gids probe`` would, but for this run alone; a curve from another day is not taken.
    """
    os.environ["XDG_CACHE_HOME"] = str(out.absolute() / "cache")
    graphs.DATA.mkdir(parents=True, exist_ok=True)
    if not curve_path(graphs.DATA).exists():
        save_curve(graphs.DATA, probe(graphs.DATA, seconds=seconds))


def disk(path: Path) -> dict[str, object]:
    """Tell which device and filesystem hold ``path``, or its nearest parent that exists."""
    place = path.absolute()
    while not place.exists():
        place = place.parent
    device = place.stat().st_dev
    name = f"{os.major(device)}:{os.minor(device)}"
    mounts = (line.split() for line in Path("/proc/self/mountinfo").read_text().splitlines())
    filesystem = next((fields[fields.index("-") + 1] for fields in mounts if fields[2] == name), "unknown")
    block = Path(f"/sys/dev/block/{name}")
    model = block / "device" / "model"
    curve = load_curve(place)
    return {
        "device": block.resolve().name if block.exists() else name,
        "model": model.read_text().strip() if model.exists() else "unknown",
        "filesystem": filesystem,
        "readahead_kib": readahead_kib(place),
        "curve": f"{curve.source}: {curve.peak_iops:,.0f} IOPS, {curve.bandwidth / 1e9:.2f} GB/s, "
        f"{curve.latency_us:.0f} us, rows merged over gaps of {curve.merge_gap_bytes:,} bytes",
    }


def picture(record: dict, path: Path) -> None:
    """Draw a recorded run; needs only the JSON, so a picture can be made again without measuring again."""
    with mpl.rc_context({"svg.hashsalt": "gids", "svg.fonttype": "none"}):
        figure = Figure(figsize=(8, 4.2), layout="constrained")
        load(record["experiment"]).draw(record["results"], figure)
        figure.suptitle(record["title"], fontsize=11)
        figure.savefig(path, metadata={"Date": None})
