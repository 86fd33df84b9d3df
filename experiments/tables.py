"""Recorded runs as tables: for the terminal, for the page, and for README.md."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from typing import Any

HEADS = ("contender", "rate", "MAD", "seconds a batch", "from disk", "rows a read", "peak memory", "remark")
UNITS = {"rows_per_s": "rows/s", "edges_per_s": "edges/s", "requests_per_s": "requests/s"}


def measured(results: dict[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], dict[str, Any]]]:
    """Find every contender in an experiment's results, with the names that lead to it."""
    for name, value in results.items():
        if not isinstance(value, dict):
            continue
        if any(unit in value for unit in UNITS) or "skipped" in value or "failed" in value:
            yield (*path, name), value
        else:
            yield from measured(value, (*path, name))


def all_of(record: dict[str, Any]) -> list[tuple[Sequence[str], list[tuple[str, ...]]]]:
    """Return every table of a record, heads and lines: its contenders, and what the experiment itself tabulates."""
    experiment = importlib.import_module(f"experiments.figures.{record['experiment']}")
    own = [experiment.table(record["results"])] if hasattr(experiment, "table") else []
    return [(HEADS, rows(record)), *own] if rows(record) else own


def rows(record: dict[str, Any]) -> list[tuple[str, ...]]:
    """Return one line of :data:`HEADS` per contender; none where an experiment compares none."""
    return [
        (" / ".join(path[-2:] if len(path) > 1 and path[-2] != "contenders" else path[-1:]), *_line(result))
        for path, result in measured(record["results"])
    ]


def _line(result: dict[str, Any]) -> tuple[str, ...]:
    unit = next((unit for unit in UNITS if unit in result), None)
    if unit is None:
        reason = f"not run: {result['skipped']}" if "skipped" in result else result["failed"]
        return ("-", "-", "-", "-", "-", "-", reason)
    peak = result.get("cgroup_peak_bytes") or result.get("peak_rss_bytes")
    remarks = []
    if "readahead_kib" in result:
        remarks.append(f"readahead {result['readahead_kib']} KiB")
    if "no_memory_limit" in result:
        remarks.append("NO memory limit could be set")
    elif "memory_limit_bytes" in result and result["memory_limit_bytes"] is None:
        remarks.append("no memory limit")
    return (
        f"{result[unit]:,.0f} {UNITS[unit]}",
        f"{result['mad']:,.0f}" if "mad" in result else "-",
        f"{result['seconds_per_batch']:.3f}"
        if "seconds_per_batch" in result and "readahead_kib" not in result
        else "-",
        f"{result['disk']:.0%}" if "disk" in result else "-",
        f"{result['merge_factor']:.1f}" if "merge_factor" in result else "-",
        f"{peak / 2**20:,.0f} MiB" if peak else "-",
        "; ".join(remarks),
    )


def markdown(record: dict[str, Any]) -> str:
    """The table as Markdown."""
    lines = ["| " + " | ".join(HEADS) + " |", "| --- | " + "---: | " * (len(HEADS) - 2) + "--- |"]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows(record))])


def text(record: dict[str, Any]) -> str:
    """The table for a terminal."""
    lines = [HEADS, *rows(record)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(HEADS) - 1)]
    return "\n".join(
        "  "
        + "  ".join(
            cell.ljust(w) if i == 0 else cell.rjust(w)
            for i, (cell, w) in enumerate(zip(line[:-1], widths, strict=True))
        )
        + f"  {line[-1][:60]}"
        for line in lines
    )
