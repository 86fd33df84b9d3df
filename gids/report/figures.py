"""Plots of a run as inline SVG: every function takes the run's data and returns markup that needs no other file."""

from __future__ import annotations

import importlib.util
import io
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from gids.report.run import SOURCES, Epoch, Memory

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: One colour, one meaning, in every plot of a page: where a row came from, who trained, what memory is, what a thread did.
#: Red is left to promises that do not hold.
SOURCE_COLOURS = {"cache": "#2a9d8f", "host": "#e9c46a", "disk": "#457b9d", "duplicates": "#adb5bd"}
TRAINER_COLOURS = ("#1d3557", "#f3722c", "#6a994e", "#9b5de5")
MEMORY_COLOURS = {"table": "#dee2e6", "budget": "#868e96", "loader": "#7b5ea7", "process": "#3d2c5e"}
SPAN_COLOURS = ("#8ecae6", "#ffb703", "#90be6d", "#cdb4db", "#bc6c25", "#577590", "#f9c6b0", "#43aa8b")
RATE_COLOUR = "#577590"
#: Bars drawn in a timeline; a page with more is slow to open and no easier to read.
MAX_TIMELINE_SPANS = 2000
TIMELINE_SECONDS = 1.0

_MEBI = float(1 << 20)


def can_draw() -> bool:
    """Whether matplotlib is installed; a page without it has tables only."""
    return importlib.util.find_spec("matplotlib") is not None


def _figure(height: float, width: float = 6.4) -> tuple[Figure, Axes]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.subplots()
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#e5e5e5", linewidth=0.8)
    axes.set_axisbelow(True)
    return figure, axes


def _svg(figure: Figure, name: str, description: str) -> str:
    import matplotlib

    buffer = io.StringIO()
    # Text stays text (searchable, small); ids are salted by name so that two plots of a page cannot share one.
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": name}):
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    markup = buffer.getvalue()
    markup = re.sub(r"<metadata>.*?</metadata>", "", markup[markup.index("<svg") :], flags=re.DOTALL)
    return markup.replace("<svg ", f'<svg id="{name}" role="img" aria-label="{description}" ', 1)


def _trainers(epochs: Sequence[Epoch]) -> list[str]:
    return list(dict.fromkeys(epoch.trainer for epoch in epochs))


def losses(epochs: Sequence[Epoch]) -> str:
    """Draw the training loss by epoch, one line per trainer."""
    lines = {name: [epoch.loss for epoch in epochs if epoch.trainer == name] for name in _trainers(epochs)}
    return _curves(lines, "loss", "training loss", "training loss by epoch")


def accuracies(epochs: Sequence[Epoch]) -> str:
    """Draw the accuracy by epoch, one line per trainer; nothing where none was measured."""
    lines = {
        name: [None if epoch.accuracy is None else 100 * epoch.accuracy for epoch in epochs if epoch.trainer == name]
        for name in _trainers(epochs)
    }
    return _curves(lines, "accuracy", "training accuracy, %", "training accuracy by epoch")


def _number_epochs(axes: Axes, count: int) -> None:
    """Let the axis below count epochs, whole ones, with room beside the first and the last."""
    axes.set_xlabel("epoch")
    axes.set_xlim(0.4, max(count, 3) + 0.6)  # a run of one epoch is a point or a bar, not a whole page of it
    if count <= 12:
        axes.set_xticks(range(1, count + 1))
    else:
        axes.locator_params(axis="x", integer=True)


def _curves(lines: dict[str, list[float | None]], name: str, label: str, description: str) -> str:
    whole = {trainer: [v for v in values if v is not None] for trainer, values in lines.items() if None not in values}
    if not whole:
        return ""
    figure, axes = _figure(2.5)
    # Equal curves lie on top of each other: the first is drawn wide and pale so that both stay visible.
    for position, trainer in enumerate(lines):
        if trainer in whole:
            values = whole[trainer]
            style: dict[str, Any] = {"color": TRAINER_COLOURS[position % len(TRAINER_COLOURS)]}
            style |= {"linewidth": 5, "alpha": 0.35} if position == 0 else {"linewidth": 1.6}
            axes.plot(range(1, len(values) + 1), values, label=trainer, marker="o", markersize=4, **style)
    _number_epochs(axes, max(map(len, whole.values())))
    axes.set_ylabel(label)
    axes.legend(frameon=False)
    return _svg(figure, name, description)


def rows_by_source(epochs: Sequence[Epoch]) -> str:
    """Draw where the rows of each epoch came from, as stacked bars."""
    mine = [epoch for epoch in epochs if epoch.rows]
    figure, axes = _figure(2.9)
    numbers = sorted({epoch.number for epoch in mine})
    counts = {
        source: [sum(epoch.rows.get(source, 0) for epoch in mine if epoch.number == number) for number in numbers]
        for source in SOURCES
    }
    floor = [0.0] * len(numbers)
    highest = max((sum(rows) for rows in zip(*counts.values(), strict=True)), default=0)
    scale, unit = (1e6, "millions") if highest >= 1e6 else (1e3, "thousands")
    for source, rows in counts.items():
        heights = [count / scale for count in rows]
        if any(heights):
            places = [number + 1 for number in numbers]
            axes.bar(places, heights, bottom=floor, color=SOURCE_COLOURS[source], label=source, width=0.7)
            floor = [low + height for low, height in zip(floor, heights, strict=True)]
    _number_epochs(axes, max(numbers, default=0) + 1)
    axes.set_ylabel(f"rows, {unit}")
    axes.legend(frameon=False, ncols=4, loc="lower center", bbox_to_anchor=(0.5, 1.0))
    return _svg(figure, "tiers", "rows by source for each epoch")


def throughput(epochs: Sequence[Epoch]) -> str:
    """Draw rows delivered per second, by epoch, one group of bars per trainer."""
    mine = [epoch for epoch in epochs if epoch.total_rows and epoch.seconds > 0]
    figure, axes = _figure(2.5)
    trainers = _trainers(mine)
    for position, trainer in enumerate(trainers):
        bars = [epoch for epoch in mine if epoch.trainer == trainer]
        width = 0.7 / len(trainers)
        places = [epoch.number + 1 + (position - (len(trainers) - 1) / 2) * width for epoch in bars]
        rates = [epoch.total_rows / epoch.seconds / 1e3 for epoch in bars]
        axes.bar(places, rates, width=width, label=trainer, color=TRAINER_COLOURS[position % len(TRAINER_COLOURS)])
    _number_epochs(axes, max(epoch.number + 1 for epoch in mine))
    axes.set_ylabel("thousand rows/s")
    axes.legend(frameon=False, ncols=4, loc="lower center", bbox_to_anchor=(0.5, 1.0))
    return _svg(figure, "throughput", "rows delivered per second by epoch")


def memory_bars(memory: Memory) -> str:
    """Draw the feature table beside the budget and beside what was used, to one scale."""
    figure, axes = _figure(1.9)
    axes.grid(visible=False)
    bars = [
        ("feature table", memory.table_bytes, MEMORY_COLOURS["table"]),
        ("budget", memory.budget_bytes, MEMORY_COLOURS["budget"]),
        ("loader, peak", memory.peak_bytes, MEMORY_COLOURS["loader"]),
    ]
    if memory.rss_growth_bytes is not None:
        bars.append(("process grew by", memory.rss_growth_bytes, MEMORY_COLOURS["process"]))
    names, sizes, colours = zip(*reversed(bars), strict=True)
    drawn = axes.barh(names, [size / _MEBI for size in sizes], color=colours, height=0.65)
    axes.bar_label(drawn, labels=[f"{size / _MEBI:,.0f} MiB" for size in sizes], padding=4)
    axes.axvline(memory.budget_bytes / _MEBI, color=MEMORY_COLOURS["budget"], linewidth=1, linestyle=":")
    axes.margins(x=0.16)
    axes.set_xlabel("MiB")
    return _svg(figure, "memory", "memory used against budget and table size")


def rates_bars(rates: Sequence[dict[str, Any]]) -> str:
    """Draw a benchmark's contenders: median with the median absolute deviation as error bar."""
    from matplotlib.ticker import EngFormatter

    figure, axes = _figure(0.9 + 0.4 * len(rates))
    axes.grid(visible=False)
    names = [str(rate["name"]) for rate in reversed(rates)]
    medians = [float(rate["median"]) for rate in reversed(rates)]
    spreads = [float(rate["mad"]) for rate in reversed(rates)]
    drawn = axes.barh(names, medians, xerr=spreads, color=RATE_COLOUR, height=0.6, ecolor="#212529")
    axes.bar_label(drawn, labels=[f"{median:,.0f}" for median in medians], padding=6)
    axes.margins(x=0.18)
    axes.xaxis.set_major_formatter(EngFormatter())  # 2 M, where matplotlib writes 1e6 beside the axis
    axes.set_xlabel(f"{rates[0].get('unit', 'units')}/s, median and MAD")
    return _svg(figure, "rates", "rate of every contender")


def timeline(events: Sequence[dict[str, Any]]) -> str:
    """Draw the busiest stretch of a trace: one lane per thread, one bar per span, coloured by what it did.

    Parameters
    ----------
    events : sequence of dict
        Chrome trace events: complete spans (``"ph": "X"``) and thread names (``"ph": "M"``).
    """
    spans = sorted((event for event in events if event.get("ph") == "X"), key=lambda event: float(event["ts"]))
    if not spans:
        return ""
    names = {event["tid"]: str(event["args"]["name"]) for event in events if event.get("name") == "thread_name"}
    # The middle of the run: start-up and wind-down say little about how stages overlap. A short run is shown whole.
    last = float(spans[-1]["ts"]) - TIMELINE_SECONDS * 1e6
    begin = max(float(spans[0]["ts"]), min(float(spans[len(spans) // 2]["ts"]), last))
    shown = [span for span in spans if begin <= float(span["ts"]) <= begin + TIMELINE_SECONDS * 1e6]
    shown = shown[:MAX_TIMELINE_SPANS]
    lanes = list(dict.fromkeys(span["tid"] for span in sorted(shown, key=lambda span: names.get(span["tid"], ""))))
    kinds = list(dict.fromkeys(str(span["name"]) for span in shown))
    figure, axes = _figure(0.9 + 0.32 * len(lanes), width=13.2)
    axes.grid(visible=False)
    for kind, colour in zip(kinds, (SPAN_COLOURS[i % len(SPAN_COLOURS)] for i in range(len(kinds))), strict=True):
        for lane, thread in enumerate(reversed(lanes)):
            mine = [span for span in shown if span["name"] == kind and span["tid"] == thread]
            pieces = [((float(span["ts"]) - begin) / 1e3, float(span["dur"]) / 1e3) for span in mine]
            axes.broken_barh(pieces, (lane - 0.38, 0.76), facecolors=colour)
        axes.plot([], [], color=colour, linewidth=6, label=kind)
    axes.set_yticks(range(len(lanes)), [names.get(thread, f"thread {thread}") for thread in reversed(lanes)])
    axes.set_xlabel(f"ms, from {(begin - float(spans[0]['ts'])) / 1e6:.1f} s into the run")
    axes.legend(frameon=False, ncols=min(8, len(kinds)), loc="lower left", bbox_to_anchor=(0.0, 1.0))
    return _svg(figure, "timeline", "what each thread did")
