"""Shapes that several figures draw."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes


def rate_bars(axis: Axes, contenders: dict[str, dict[str, Any]]) -> None:
    """One bar of rows/s per contender on a logarithmic scale; those that did not run say why."""
    names = list(contenders)
    for place, name in enumerate(names):
        result = contenders[name]
        if "rows_per_s" in result:
            rate = result["rows_per_s"]
            axis.barh(place, rate, xerr=result["mad"], color="tab:green" if name == "gids" else "tab:blue", capsize=2)
            axis.text(rate * 1.06, place, f"{rate:,.0f}", va="center", fontsize=8)
        else:
            reason = result.get("skipped") or result.get("failed") or "?"
            axis.text(0.01, place, reason[:60], va="center", fontsize=7, transform=axis.get_yaxis_transform())
    axis.set_yticks(range(len(names)), names, fontsize=8)
    axis.invert_yaxis()
    axis.set_xscale("log")
    axis.set_xlabel("rows/s")
    axis.margins(x=0.15)


def sweep_lines(axis: Axes, points: dict[str, dict[str, dict[str, Any]]], names: Sequence[str], label: str) -> None:
    """Seconds a batch over a swept setting, a line per contender; a contender that did not run leaves a gap and a word."""
    places = list(points)
    for number, name in enumerate(names):
        ran = [(i, points[p][name]) for i, p in enumerate(places) if "rows_per_s" in points[p][name]]
        axis.plot([i for i, _ in ran], [r["seconds_per_batch"] for _, r in ran], "o-", color=f"C{number}", label=name)
        for i, point in enumerate(places):
            if "rows_per_s" not in points[point][name]:
                reason = points[point][name].get("failed", "skipped")[:32]
                axis.text(
                    i, 0.02 + 0.06 * number, f"{name}: {reason}", fontsize=7, transform=axis.get_xaxis_transform()
                )
    axis.set_yscale("log")
    axis.set_xticks(range(len(places)), places)
    axis.set(xlabel=label, ylabel="seconds a batch")
    axis.legend(fontsize=8)
