"""The two files of ``gids selftest --report``: what a person with a GPU attaches to a report. Nothing is sent anywhere."""

from __future__ import annotations

import html
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

_STYLE = (
    "body{font:15px/1.4 sans-serif;max-width:60em;margin:2em auto}table{border-collapse:collapse;width:100%}"
    "td,th{border:1px solid #ccc;padding:.3em .6em;text-align:left;vertical-align:top}.no{color:#b00;font-weight:bold}"
)
_WORDS = {True: "passed", False: "FAILED", None: "not run"}


def write_report(directory: Path, record: Mapping[str, Any]) -> tuple[Path, Path]:
    """Write ``selftest.json`` and ``selftest.html``; returns their paths.

    Parameters
    ----------
    directory : Path
        Made if it is missing.
    record : mapping
        ``device``, ``passed``, ``note``, ``machine`` (findings of ``gids doctor``), ``results`` and ``speeds``.
    """
    directory.mkdir(parents=True, exist_ok=True)
    as_json, as_html = directory / "selftest.json", directory / "selftest.html"
    as_json.write_text(json.dumps(record, indent=1))
    as_html.write_text(_page(record))
    return as_json, as_html


def _page(record: Mapping[str, Any]) -> str:
    title = f"gids selftest on {record['device']}: {'passed' if record['passed'] else 'FAILED'}"
    machine = [(f["name"], "yes" if f["ok"] else "no", f["seen"]) for f in record["machine"]]
    checks = [(r["name"], _WORDS[r["passed"]], f"{r['seconds']:.1f}", r["detail"]) for r in record["results"]]
    speeds = [
        (s["engine"], "not run" if s["rows_per_second"] is None else f"{s['rows_per_second']:,.0f}", s["detail"])
        for s in record["speeds"]
    ]
    parts = [
        f"<p>{html.escape(record['note'])}</p>",
        _table("Checks", ("check", "result", "seconds", "what"), checks),
        _table("Engines", ("engine", "rows a second", "how"), speeds),
        _table("Machine", ("part", "there", "seen"), machine),
    ]
    head = f"<meta charset='utf-8'><title>{html.escape(title)}</title><style>{_STYLE}</style>"
    return f"<!doctype html><html><head>{head}</head><body><h1>{html.escape(title)}</h1>{''.join(parts)}</body></html>"


def _table(title: str, heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    def cell(value: str) -> str:
        mark = " class='no'" if value == "FAILED" else ""
        return f"<td{mark}>{html.escape(value)}</td>"

    body = "".join(f"<tr>{''.join(cell(value) for value in row)}</tr>" for row in rows)
    return f"<h2>{title}</h2><table><tr>{''.join(f'<th>{head}</th>' for head in heads)}</tr>{body}</table>"
