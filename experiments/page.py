"""Every recorded run on one page without outside references."""

from __future__ import annotations

import html
import json
from pathlib import Path
from typing import Any

from experiments import tables

STYLE = (
    "body{font:15px/1.5 sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}svg{max-width:100%;height:auto}"
    "table{border-collapse:collapse;font-size:13px}td,th{padding:2px 8px;border-bottom:1px solid #ddd;text-align:left}"
)


def write(out: Path) -> Path:
    """Gather every record in ``out`` into ``figures.html``."""
    records = [(path, json.loads(path.read_text())) for path in sorted(out.glob("*.json"))]
    contents = "".join(f'<li><a href="#{path.stem}">{html.escape(r["title"])}</a></li>' for path, r in records)
    sections = "".join(_section(record, path) for path, record in records)
    target = out / "figures.html"
    target.write_text(
        f"<!doctype html><meta charset=utf-8><title>gids: the papers' figures, here</title><style>{STYLE}</style>"
        f"<h1>The papers' figures, on this machine</h1><ul>{contents}</ul>{sections}"
    )
    return target


def _section(record: dict[str, Any], path: Path) -> str:
    origin = record["provenance"]
    drawing = path.with_suffix(".svg").read_text()
    return (
        f'<section id="{path.stem}"><h2>{html.escape(record["title"])}</h2>'
        f"<p><b>The paper:</b> {html.escape(record['claim'])}</p>"
        f"<p><b>Here it differs:</b> {html.escape(record['differs'])}</p>"
        f"{drawing[drawing.index('<svg') :]}{_table(record)}"
        f"<details><summary>{record['scale']} scale, {record['seconds']:.0f} s, commit {origin['commit']}, "
        f"{origin['cpu']}, {origin['cores']} cores</summary>"
        f"<pre>{html.escape(json.dumps({k: record[k] for k in ('config', 'provenance')}, indent=1))}</pre>"
        f"<pre>{html.escape(json.dumps(record['results'], indent=1)[:20000])}</pre></details></section>"
    )


def _table(record: dict[str, Any]) -> str:
    lines = tables.rows(record)
    if not lines:
        return ""
    head = "".join(f"<th>{name}</th>" for name in tables.HEADS)
    body = "".join("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in line) + "</tr>" for line in lines)
    return f"<table><tr>{head}</tr>{body}</table>"
