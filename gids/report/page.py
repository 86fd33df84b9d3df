"""One self-contained HTML page for a run: no script, no font, no style sheet, no picture from anywhere else."""

from __future__ import annotations

import html
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from gids.report import figures
from gids.report.run import SOURCES, Run
from gids.units import format_bytes

#: A result of so many values is shown in one line.
INLINE_VALUES = 4

_STYLE = """
:root { --ink: #1b263b; --muted: #5c677d; --line: #dee2e6; --paper: #ffffff; --ground: #f4f6f8; }
* { box-sizing: border-box; }
body { margin: 0; background: var(--ground); color: var(--ink); font: 15px/1.5 system-ui, sans-serif; }
main { max-width: 1180px; margin: 0 auto; padding: 24px 20px 60px; }
h1 { font-size: 26px; margin: 8px 0 2px; } h2 { font-size: 18px; margin: 0 0 10px; }
p.origin { color: var(--muted); margin: 0 0 20px; overflow-wrap: anywhere; }
.tiles, .plots { display: grid; gap: 14px; margin-bottom: 18px; }
.tiles { grid-template-columns: repeat(auto-fit, minmax(165px, 1fr)); }
.plots { grid-template-columns: repeat(auto-fit, minmax(min(100%, 500px), 1fr)); }
.tile, section { background: var(--paper); border: 1px solid var(--line); border-radius: 10px; }
.tile { padding: 12px 16px; } .tile b { display: block; font-size: 21px; } .tile span { color: var(--muted); }
svg { width: 100%; height: auto; display: block; }
section { padding: 16px 18px; min-width: 0; } section.wide { margin-bottom: 18px; overflow-x: auto; }
section.wide svg { min-width: 900px; }
table { border-collapse: collapse; width: 100%; font-size: 14px; }
td, th { text-align: left; padding: 4px 12px 4px 0; border-bottom: 1px solid var(--line); vertical-align: top; }
td { overflow-wrap: anywhere; } td:first-child { overflow-wrap: normal; } td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; }
td.yes, td.no { white-space: nowrap; overflow-wrap: normal; } .yes { color: #2b7a3d; font-weight: 600; } .no { color: #c1121f; font-weight: 600; }
.pairs td:first-child { width: 40%; }
@media (max-width: 520px) { td, th { padding-right: 7px; } td.yes, td.no { white-space: normal; } }
.swatch { display: inline-block; width: 11px; height: 11px; border-radius: 3px; margin-right: 7px; }
"""


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        return f"{value:,.0f}" if abs(value) >= 1000 or isinstance(value, int) else f"{value:.4g}"
    if isinstance(value, Mapping):
        return ", ".join(" ".join(_named(str(key), item)) for key, item in value.items())
    if isinstance(value, list | tuple):
        return " ".join(_text(item) for item in value)
    return "not set" if value is None else str(value)


def _named(key: str, value: object) -> tuple[str, str]:
    """Return what is shown as the name of a value, and its text: bytes in the unit that fits."""
    words = key.split("_")
    name = key.removesuffix("_bytes").replace("_", " ")
    if type(value) is int and "bytes" in words and "per" not in words:
        return name, format_bytes(value)
    return name, _text(value)


def _rows(values: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, str]]:
    """Yield a row of name and text for each value; one that has many values, or nested ones, is rows of its own."""
    for key, value in values.items():
        name, text = _named(str(key), value)
        inner = value
        if isinstance(value, list) and value and all(isinstance(item, Mapping) for item in value):
            inner = dict(enumerate(value))
        nested = isinstance(inner, Mapping) and any(isinstance(item, Mapping | list) for item in inner.values())
        if isinstance(inner, Mapping) and (nested or len(inner) > INLINE_VALUES):
            yield from _rows(inner, f"{above}{name}: ")
        else:
            yield f"{above}{name}", text


def _pairs(values: Mapping[str, Any]) -> str:
    rows = (f"<tr><td>{html.escape(name)}</td><td>{html.escape(text)}</td></tr>" for name, text in _rows(values))
    return f"<table class='pairs'>{''.join(rows)}</table>"


def _section(title: str, body: str, *, wide: bool = False) -> str:
    return f"<section{' class=wide' if wide else ''}><h2>{html.escape(title)}</h2>{body}</section>" if body else ""


def _tiles(headline: Mapping[str, str]) -> str:
    tiles = (
        f'<div class="tile"><b>{html.escape(value)}</b><span>{html.escape(key)}</span></div>'
        for key, value in headline.items()
    )
    return f'<div class="tiles">{"".join(tiles)}</div>' if headline else ""


def _tier_table(run: Run) -> str:
    totals = {source: sum(epoch.rows.get(source, 0) for epoch in run.epochs) for source in SOURCES}
    everything = sum(totals.values())
    if not everything:
        return ""
    rows = "".join(
        f'<tr><td><span class="swatch" style="background:{figures.SOURCE_COLOURS[source]}"></span>{source}</td>'
        f'<td class="n">{count:,}</td><td class="n">{100 * count / everything:.1f} %</td></tr>'
        for source, count in totals.items()
    )
    return f'<table><tr><th>rows from</th><th class="n">rows</th><th class="n">share</th></tr>{rows}</table>'


def _bars_table(bars: Sequence[Mapping[str, Any]]) -> str:
    rows = "".join(
        f'<tr><td>{html.escape(str(bar["name"]))}</td><td class="n">{_text(float(bar["value"]))}</td>'
        f'<td class="n">{_text(float(bar["floor"]))}</td>'
        f'<td class="{"yes" if bar["holds"] else "no"}">{"holds" if bar["holds"] else "does not hold"}</td></tr>'
        for bar in bars
    )
    head = '<tr><th>promise</th><th class="n">measured</th><th class="n">bound</th><th></th></tr>'
    return f"<table>{head}{rows}</table>" if bars else ""


def _memory_table(run: Run) -> str:
    if run.memory is None or not run.memory.parts:
        return ""
    return _pairs({name: format_bytes(size) for name, size in run.memory.parts.items() if size})


def _drawn(draw: Callable[[], str]) -> str:
    return draw() if figures.can_draw() else ""


def _memory_note(run: Run) -> str:
    """Say what it means that the process grew by more than the budget."""
    memory = run.memory
    if memory is None or memory.rss_growth_bytes is None or memory.rss_growth_bytes <= memory.budget_bytes:
        return ""
    return (
        f"<p>The process grew by {format_bytes(memory.rss_growth_bytes - memory.budget_bytes)} more than the budget: "
        "the budget holds what the loader allots itself; threads, allocator and libraries come on top.</p>"
    )


def render(run: Run) -> str:
    """Return the page of a run as HTML text."""
    epochs, memory = run.epochs, run.memory
    with_rows = any(epoch.total_rows for epoch in epochs)
    learned = any(epoch.loss is not None for epoch in epochs)
    timed = with_rows and any(epoch.seconds for epoch in epochs)
    of_memory = "" if memory is None else _drawn(lambda: figures.memory_bars(memory))
    plots = [
        _section("Loss", _drawn(lambda: figures.losses(epochs)) if learned else ""),
        _section("Accuracy", _drawn(lambda: figures.accuracies(epochs)) if learned else ""),
        _section(
            "Where rows came from",
            _drawn(lambda: figures.rows_by_source(epochs)) + _tier_table(run) if with_rows else "",
        ),
        _section("Memory", of_memory + _memory_note(run) + _memory_table(run)),
        _section("Throughput", _drawn(lambda: figures.throughput(epochs)) if timed else ""),
        _section("Rates", _drawn(lambda: figures.rates_bars(run.rates)) if run.rates else ""),
        _section("Promises", _bars_table(run.bars)),
    ]
    if not figures.can_draw():
        plots.append(_section("Plots", "<p>None: they need matplotlib (<code>pip install 'gids[report]'</code>).</p>"))
    tables = [
        _section("Settings", _pairs(run.settings) if run.settings else ""),
        _section("Results", _pairs(run.results) if run.results else ""),
        _section("Where these numbers come from", _pairs(run.provenance) if run.provenance else ""),
    ]
    origin = " · ".join(str(run.provenance[key]) for key in ("time_utc", "commit", "cpu") if key in run.provenance)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{html.escape(run.title)}</title><style>{_STYLE}</style></head><body><main>"
        f'<h1>{html.escape(run.title)}</h1><p class="origin">{html.escape(origin)}</p>'
        f'{_tiles(run.headline)}<div class="plots">{"".join(plots)}</div>'
        f"{_section('Timeline', _drawn(lambda: figures.timeline(run.trace)), wide=True)}"
        f'<div class="plots">{"".join(tables)}</div></main></body></html>\n'
    )


def write_page(run: Run, path: Path) -> Path:
    """Write the page of a run to ``path``, in one step."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(path.name + ".tmp")
    unfinished.write_text(render(run), encoding="utf-8")
    return unfinished.replace(path)
