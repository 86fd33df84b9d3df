"""Every recorded run on one page without outside references."""

from __future__ import annotations

import html
import importlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from experiments import tables

STYLE = (
    "body{font:15px/1.5 sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}svg{max-width:100%;height:auto}"
    "table{border-collapse:collapse;font-size:13px}td,th{padding:2px 8px;border-bottom:1px solid #ddd;text-align:left}"
)


def write(out: Path) -> Path:
    """Gather every record in ``out``, and the reason of every failure, into ``figures.html``."""
    out.mkdir(parents=True, exist_ok=True)
    records = {path: json.loads(path.read_text()) for path in sorted(out.glob("*.json"))}
    failures = [(r["experiment"], r["failed"]) for r in records.values() if "failed" in r]
    shown, sections = {}, ""
    for path, record in records.items():
        if "failed" in record:
            continue
        try:
            sections += _section(record, path)
            shown[path] = record
        except (LookupError, OSError) as error:
            why = (
                f"what was recorded at commit {record['provenance']['commit']} cannot be shown by this code: {error!r}"
            )
            failures.append((record["experiment"], why))
    lost = "".join(f"<li><b>{name}</b>: {html.escape(why)}</li>" for name, why in failures)
    warning = f"<h2>Failed when last run</h2><ul>{lost}</ul>" if lost else ""
    contents = "".join(f'<li><a href="#{path.stem}">{html.escape(r["title"])}</a></li>' for path, r in shown.items())
    target = out / "figures.html"
    target.write_text(
        f"<!doctype html><meta charset=utf-8><title>gids: the papers' figures, here</title><style>{STYLE}</style>"
        f"<h1>The papers' figures, on this machine</h1>{warning}<ul>{contents}</ul>{sections}"
    )
    return target


def _section(record: dict[str, Any], path: Path) -> str:
    origin = record["provenance"]
    drawing = path.with_suffix(".svg").read_text()
    experiment = importlib.import_module(f"experiments.figures.{record['experiment']}")
    return (
        f'<section id="{path.stem}"><h2>{html.escape(record["title"])}</h2>'
        f"<p><b>The paper:</b> {html.escape(record['claim'])}</p>"
        f"<p><b>Here:</b> {html.escape(experiment.here(record['results']))}</p>"
        f"<p><b>What differs, and why:</b> {html.escape(record['differs'])}</p>"
        f"{drawing[drawing.index('<svg') :]}{''.join(_table(*table) for table in tables.all_of(record))}"
        f"<details><summary>{record['scale']} scale, {record['seconds']:.0f} s, commit {origin['commit']}, "
        f"{origin['cpu']}, {origin['cores']} cores</summary>"
        f"<pre>{html.escape(json.dumps({k: record[k] for k in ('config', 'provenance')}, indent=1))}</pre>"
        f"<pre>{html.escape(json.dumps(record['results'], indent=1)[:20000])}</pre></details></section>"
    )


def _table(heads: Sequence[str], lines: list[tuple[str, ...]]) -> str:
    head = "".join(f"<th>{html.escape(name)}</th>" for name in heads)
    body = "".join("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in line) + "</tr>" for line in lines)
    return f"<table><tr>{head}</tr>{body}</table>"
