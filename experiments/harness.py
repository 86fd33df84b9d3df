"""One harness for every experiment: find them, run them at a scale, keep numbers, tables and pictures together.

An experiment is a module in ``experiments/figures`` with

    TITLE, CLAIM (what the paper says), DIFFERS (what is different here, and why)
    CONFIG = {"full": {...}, "tiny": {...}}, SECONDS (what the full scale takes on two cores)
    run(config) -> dict     the numbers, JSON-ready
    draw(results, figure)   the picture

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

import matplotlib as mpl
from matplotlib.figure import Figure

from experiments import graphs
from gids.bench.epoch import readahead_kib
from gids.bench.provenance import provenance
from gids.storage import load_curve

FIGURES = Path(__file__).parent / "figures"
SCALES = ("full", "tiny")
PAGE_CACHE = (
    "gids reads past the page cache (O_DIRECT); contenders that map or pread use it within their memory limit, each "
    "on a copy of the file of its own that is dropped from the cache before it starts"
)


def names() -> list[str]:
    """Every experiment, in order."""
    return sorted(path.stem for path in FIGURES.glob("[a-z]*.py"))


def load(name: str) -> ModuleType:
    """Import one experiment; a wrong name is an error that lists the right ones."""
    if name not in names():
        raise SystemExit(f"experiment must be one of {', '.join(names())} (got {name!r})")
    return importlib.import_module(f"experiments.figures.{name}")


def run(name: str, scale: str, out: Path) -> Path:
    """Run one experiment, write ``NAME.json`` and ``NAME.svg`` into ``out``, and return the JSON's path."""
    experiment = load(name)
    config = experiment.CONFIG[scale]
    start = time.perf_counter()
    results = experiment.run(config)
    record = {
        "experiment": name,
        "title": experiment.TITLE,
        "claim": experiment.CLAIM,
        "differs": experiment.DIFFERS,
        "scale": scale,
        "config": config,
        "seconds": time.perf_counter() - start,
        "provenance": provenance() | {"disk": disk(graphs.DATA), "page_cache": PAGE_CACHE},
        "results": results,
    }
    out.mkdir(parents=True, exist_ok=True)
    path = out / f"{name}.json"
    path.write_text(json.dumps(record, indent=1, default=str) + "\n")
    picture(record, out / f"{name}.svg")
    return path


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
    return {
        "device": block.resolve().name if block.exists() else name,
        "model": model.read_text().strip() if model.exists() else "unknown",
        "filesystem": filesystem,
        "readahead_kib": readahead_kib(place),
        "curve": load_curve(place).source,
    }


def picture(record: dict, path: Path) -> None:
    """Draw a recorded run; needs only the JSON, so a picture can be made again without measuring again."""
    with mpl.rc_context({"svg.hashsalt": "gids", "svg.fonttype": "none"}):
        figure = Figure(figsize=(8, 4.2), layout="constrained")
        load(record["experiment"]).draw(record["results"], figure)
        figure.suptitle(record["title"], fontsize=11)
        figure.savefig(path, metadata={"Date": None})
