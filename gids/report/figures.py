"""Plots of a run as inline SVG: every function takes the run's data and gives markup that needs no other file."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from gids.errors import ConfigError
from gids.report.run import SOURCES, Epoch, Memory

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: One colour per source of a row, used in every plot and in the page's legend.
SOURCE_COLOURS = {"cache": "#2a9d8f", "host": "#e9c46a", "disk": "#d1495b", "duplicates": "#8d99ae"}
TRAINER_COLOURS = ("#1d3557", "#e76f51", "#6a994e", "#9b5de5")
#: Bars drawn in a timeline; a page with more is slow to open and no easier to read.
MAX_TIMELINE_SPANS = 2000
TIMELINE_SECONDS = 1.0

_MEBI = float(1 << 20)


def _figure(height: float, width: float = 6.4) -> tuple[Figure, Axes]:
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ConfigError("gids report needs matplotlib (pip install 'gids[report]')") from error
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


def learning_curves(epochs: Sequence[Epoch]) -> str:
    """Draw loss (left axis) and accuracy (right axis) by epoch, one line per trainer."""
    figure, axes = _figure(2.9)
    other = axes.twinx()
    other.spines["top"].set_visible(False)
    # Equal curves lie on top of each other: the first is drawn wide and pale so that both stay visible.
    for position, trainer in enumerate(_trainers(epochs)):
        mine = [epoch for epoch in epochs if epoch.trainer == trainer]
        style: dict[str, Any] = {"color": TRAINER_COLOURS[position % len(TRAINER_COLOURS)]}
        style |= {"linewidth": 5, "alpha": 0.35} if position == 0 else {"linewidth": 1.6}
        numbers = [epoch.number + 1 for epoch in mine]
        losses = [epoch.loss for epoch in mine if epoch.loss is not None]
        if len(losses) == len(mine):
            axes.plot(numbers, losses, label=trainer, marker="o", markersize=4, **style)
        points = [100 * epoch.accuracy for epoch in mine if epoch.accuracy is not None]
        if len(points) == len(mine):
            other.plot(numbers, points, linestyle="--", marker="s", markersize=4, **style)
    axes.set_xlabel("epoch")
    axes.set_ylabel("training loss (solid)")
    other.set_ylabel("accuracy, % (dashed)")
    axes.locator_params(axis="x", integer=True)
    axes.legend(frameon=False, loc="center right")
    return _svg(figure, "learning", "training loss and accuracy by epoch")


def rows_by_source(epochs: Sequence[Epoch]) -> str:
    """Draw where the rows of each epoch came from, as stacked bars."""
    mine = [epoch for epoch in epochs if epoch.rows]
    figure, axes = _figure(2.9)
    floor = [0.0] * len(mine)
    for source in SOURCES:
        heights = [epoch.rows.get(source, 0) / 1e6 for epoch in mine]
        if any(heights):
            labels = [str(epoch.number + 1) for epoch in mine]
            axes.bar(labels, heights, bottom=floor, color=SOURCE_COLOURS[source], label=source, width=0.7)
            floor = [low + height for low, height in zip(floor, heights, strict=True)]
    axes.set_xlabel("epoch")
    axes.set_ylabel("rows, millions")
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
    axes.set_xlabel("epoch")
    axes.set_ylabel("thousand rows/s")
    axes.locator_params(axis="x", integer=True)
    axes.legend(frameon=False)
    return _svg(figure, "throughput", "rows delivered per second by epoch")


def memory_bars(memory: Memory) -> str:
    """Draw the feature table beside the budget and beside what was used, to one scale."""
    figure, axes = _figure(1.9)
    axes.grid(visible=False)
    bars = [("feature table", memory.table_bytes, "#ced4da"), ("budget", memory.budget_bytes, "#8d99ae")]
    bars.append(("loader, peak", memory.peak_bytes, "#2a9d8f"))
    if memory.rss_growth_bytes is not None:
        bars.append(("process grew by", memory.rss_growth_bytes, "#1d3557"))
    names, sizes, colours = zip(*reversed(bars), strict=True)
    drawn = axes.barh(names, [size / _MEBI for size in sizes], color=colours, height=0.65)
    axes.bar_label(drawn, labels=[f"{size / _MEBI:,.0f} MiB" for size in sizes], padding=4)
    axes.axvline(memory.budget_bytes / _MEBI, color="#d1495b", linewidth=1, linestyle=":")
    axes.margins(x=0.16)
    axes.set_xlabel("MiB")
    return _svg(figure, "memory", "memory used against budget and table size")


def rates_bars(rates: Sequence[dict[str, Any]]) -> str:
    """Draw a benchmark's contenders: median with the median absolute deviation as error bar."""
    figure, axes = _figure(0.9 + 0.4 * len(rates))
    axes.grid(visible=False)
    names = [str(rate["name"]) for rate in reversed(rates)]
    medians = [float(rate["median"]) for rate in reversed(rates)]
    spreads = [float(rate["mad"]) for rate in reversed(rates)]
    drawn = axes.barh(names, medians, xerr=spreads, color="#2a9d8f", height=0.6, ecolor="#1d3557")
    axes.bar_label(drawn, labels=[f"{median:,.0f}" for median in medians], padding=6)
    axes.margins(x=0.18)
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
    palette = (*SOURCE_COLOURS.values(), *TRAINER_COLOURS)
    for kind, colour in zip(kinds, (palette[i % len(palette)] for i in range(len(kinds))), strict=True):
        for lane, thread in enumerate(reversed(lanes)):
            mine = [span for span in shown if span["name"] == kind and span["tid"] == thread]
            pieces = [((float(span["ts"]) - begin) / 1e3, float(span["dur"]) / 1e3) for span in mine]
            axes.broken_barh(pieces, (lane - 0.38, 0.76), facecolors=colour)
        axes.plot([], [], color=colour, linewidth=6, label=kind)
    axes.set_yticks(range(len(lanes)), [names.get(thread, f"thread {thread}") for thread in reversed(lanes)])
    axes.set_xlabel(f"ms, from {(begin - float(spans[0]['ts'])) / 1e6:.1f} s into the run")
    axes.legend(frameon=False, ncols=min(8, len(kinds)), loc="lower left", bbox_to_anchor=(0.0, 1.0))
    return _svg(figure, "timeline", "what each thread did")
