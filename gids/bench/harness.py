"""Alternate contenders in one run and report medians, spreads, bars and provenance."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field

from rich.console import Console
from rich.table import Table

from gids.report.bars import Bar as Bar
from gids.report.provenance import provenance


@dataclass(frozen=True)
class Contender:
    """Something to measure: ``run()`` does one round of work and returns the units of work done (rows, edges, bytes)."""

    name: str
    run: Callable[[], float]
    prepare: Callable[[], None] | None = None  # outside the clock, before every round (e.g. drop the page cache)


@dataclass(frozen=True)
class Measurement:
    """Rates of one contender over all rounds."""

    name: str
    unit: str
    rates: tuple[float, ...]

    @property
    def median(self) -> float:
        """Median rate, units per second."""
        return statistics.median(self.rates)

    @property
    def mad(self) -> float:
        """Median absolute deviation of the rate."""
        return statistics.median(abs(rate - self.median) for rate in self.rates)


def alternate(contenders: Sequence[Contender], *, unit: str, rounds: int = 5) -> dict[str, Measurement]:
    """Run every contender once per round, in turn, so that drift of the machine hits them alike.

    Parameters
    ----------
    contenders : sequence of Contender
        Their order is reversed in every other round.
    unit : str
        What ``run()`` counts, e.g. ``"rows"``.
    rounds : int
        Repeats; a promise needs at least 5.
    """
    rates: dict[str, list[float]] = {contender.name: [] for contender in contenders}
    for number in range(rounds):
        for contender in contenders if number % 2 == 0 else reversed(contenders):
            if contender.prepare is not None:
                contender.prepare()
            start = time.perf_counter()
            work = contender.run()
            rates[contender.name].append(work / (time.perf_counter() - start))
    return {name: Measurement(name, unit, tuple(values)) for name, values in rates.items()}


@dataclass
class Report:
    """What a benchmark prints: a table for people or one JSON object for machines."""

    benchmark: str
    settings: dict[str, object] = field(default_factory=dict)
    measurements: list[Measurement] = field(default_factory=list)
    extra: dict[str, object] = field(default_factory=dict)
    bars: list[Bar] = field(default_factory=list)

    def as_dict(self) -> dict[str, object]:
        """Return ``{"provenance", "results", "bars"}``."""
        rates = [{**asdict(m), "median": m.median, "mad": m.mad, "rounds": len(m.rates)} for m in self.measurements]
        return {
            "benchmark": self.benchmark,
            "provenance": provenance() | {"settings": self.settings},
            "results": {"rates": rates, **self.extra},
            "bars": [
                {
                    "name": b.name,
                    "value": b.value,
                    "floor": b.floor,
                    "lower_is_better": b.lower_is_better,
                    "holds": b.holds,
                    "reachable": b.reachable,
                }
                for b in self.bars
            ],
            "summary": self.summary,
        }

    @property
    def summary(self) -> str:
        """How many bars were missed, in words."""
        missed = [bar for bar in self.bars if not bar.holds]
        beyond = sum(not bar.reachable for bar in missed)
        return f"{len(missed)} of {len(self.bars)} bars missed, {beyond} of them beyond reach"

    def print(self, *, as_json: bool) -> None:
        """Write the report to standard output."""
        if as_json:
            print(json.dumps(self.as_dict(), indent=2))
            return
        console = Console()
        rates = Table(title=f"gids bench {self.benchmark}", title_justify="left")
        for column in ("contender", "median", "MAD", "unit"):
            rates.add_column(column, justify="left" if column in ("contender", "unit") else "right")
        for m in self.measurements:
            rates.add_row(m.name, f"{m.median:,.0f}", f"{m.mad:,.0f}", f"{m.unit}/s")
        console.print(rates)
        for name, value in self.extra.items():
            console.print(f"{name}: {value}")
        if self.bars:
            bars = Table(title="bars", title_justify="left")
            for column in ("promise", "value", "floor", "holds"):
                bars.add_column(column)
            for b in self.bars:
                sign = "≤" if b.lower_is_better else "≥"
                holds = "yes" if b.holds else "NO" if b.reachable else "no, beyond reach"
                bars.add_row(b.name, f"{b.value:.3g}", f"{sign} {b.floor:.3g}", holds)
            console.print(bars)
            console.print(self.summary)
