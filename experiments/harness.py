"""One harness for every experiment: find them, run them at a scale, keep numbers and pictures together.

An experiment is a module in ``experiments/figures`` with

    TITLE, CLAIM (what the paper says), DIFFERS (what is different here, and why)
    CONFIG = {"full": {...}, "tiny": {...}}
    run(config) -> dict     the numbers, JSON-ready
    draw(results, figure)   the picture

``run`` measures through :func:`gids.bench.alternate`, so contenders take turns and spreads are kept.
"""

from __future__ import annotations

import html
import importlib
import json
import time
from pathlib import Path
from types import ModuleType

import matplotlib as mpl
from matplotlib.figure import Figure

from gids.bench.provenance import provenance

FIGURES = Path(__file__).parent / "figures"
SCALES = ("full", "tiny")


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
        "provenance": provenance(),
        "results": results,
    }
    out.mkdir(parents=True, exist_ok=True)
    path = out / f"{name}.json"
    path.write_text(json.dumps(record, indent=2, default=str))
    picture(record, out / f"{name}.svg")
    return path


def picture(record: dict, path: Path) -> None:
    """Draw a recorded run; needs only the JSON, so a picture can be made again without measuring again."""
    mpl.rcParams["svg.hashsalt"] = "gids"
    figure = Figure(figsize=(8, 4.2), layout="constrained")
    load(record["experiment"]).draw(record["results"], figure)
    figure.suptitle(record["title"], fontsize=11)
    figure.savefig(path, metadata={"Date": None})


def page(out: Path) -> Path:
    """Gather every recorded run in ``out`` into one page without outside references."""
    parts = []
    for path in sorted(out.glob("*.json")):
        record = json.loads(path.read_text())
        origin = record["provenance"]
        parts.append(
            f"<section><h2>{html.escape(record['title'])}</h2>"
            f"<p><b>The paper:</b> {html.escape(record['claim'])}</p>"
            f"<p><b>Here it differs:</b> {html.escape(record['differs'])}</p>"
            f"{path.with_suffix('.svg').read_text().partition('?>')[2].partition('>')[2]}"
            f"<details><summary>{record['scale']} scale, {record['seconds']:.0f} s, commit {origin['commit']}, "
            f"{origin['cpu']}, {origin['cores']} cores</summary>"
            f"<pre>{html.escape(json.dumps(record['results'], indent=1, default=str)[:20000])}</pre></details></section>"
        )
    style = (
        "body{font:15px/1.5 sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}svg{max-width:100%;height:auto}"
    )
    target = out / "figures.html"
    target.write_text(
        f"<!doctype html><meta charset=utf-8><title>gids: the papers' figures, here</title><style>{style}</style>"
        f"<h1>The papers' figures, on this machine</h1>{''.join(parts)}"
    )
    return target
