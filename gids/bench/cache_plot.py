"""The figures of ``gids bench cache``: hit ratios by cache size and window, and the accumulator's model on this disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gids.bench.harness import Report


def plot(report: Report, path: Path) -> None:
    """Draw one row of panels: each trace's hit ratios, then IOPS by depth, measured and predicted."""
    from matplotlib.figure import Figure

    traces = {name: value for name, value in report.extra.items() if name.startswith("trace ")}
    figure = Figure(figsize=(5 * (len(traces) + 1), 4), layout="constrained")
    axes: Any = figure.subplots(1, len(traces) + 1)
    for axis, (name, results) in zip(axes, traces.items(), strict=False):
        _hit_ratios(axis, name, results)
    _depths(axes[-1], report.extra["accumulator"])
    figure.savefig(path, dpi=150)


def _hit_ratios(axis: Any, name: str, results: Any) -> None:
    ratios = results["hit_ratio"]
    shares = list(ratios["belady"])
    windows = [policy for policy in ratios if policy.startswith("window(") and policy.endswith(")")]  # not ranked ones
    axis.plot(shares, [ratios["belady"][s] for s in shares], "k--", label="belady (the best possible)")
    for number, policy in enumerate(windows):
        shade = 0.25 + 0.75 * number / len(windows)
        axis.plot(shares, [ratios[policy][s] for s in shares], color=(0.1, 0.3, 0.8, shade), marker=".", label=policy)
    for policy in ("window(16), ranked", "gids(16)", "sieve", "lru", "random"):
        axis.plot(shares, [ratios[policy][s] for s in shares], ":", marker="x", label=policy)
    axis.set(title=name, xlabel="cache, share of the rows", ylabel="hit ratio", ylim=(0, 1))
    axis.legend(fontsize=7)


def _depths(axis: Any, results: Any) -> None:
    depths = results["depths"]
    label = f"model: {results['peak_iops'] / 1e3:.0f} k IOPS, {results['overhead_us']:.0f} us, s {results['sharpness']}"
    axis.plot(depths, [value / 1e3 for value in results["predicted_iops"]], label=label)
    axis.plot(depths, [value / 1e3 for value in results["probed_iops"]], "+", label="probed, the model's points")
    axis.plot(depths, [value / 1e3 for value in results["measured_iops"]], "ko", label="measured in between")
    band = [[value * edge / 1e3 for value in results["measured_iops"]] for edge in (0.85, 1.15)]
    axis.fill_between(depths, *band, alpha=0.15, label="within 15 % of measured")
    axis.set(title="accumulator", xlabel="overlapping accesses", ylabel="thousand IOPS", xscale="log")
    axis.legend(fontsize=7)
