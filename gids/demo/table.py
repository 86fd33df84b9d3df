"""The demo's result for people: one table, the promises, and where the report is."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from gids.report import Run
from gids.report.figures import can_draw
from gids.report.run import SOURCES
from gids.units import format_bytes


def print_table(record: Run, page: Path) -> None:
    """Print what the demo found."""
    console = Console(width=None)
    table = Table(title="GraphSAGE on features larger than memory", title_justify="left", show_header=False)
    accuracy = record.results["accuracy"]
    table.add_row("test accuracy, trained from disk", f"{100 * accuracy['disk']:.2f} % (sampled neighbours)")
    table.add_row("the same by gids.infer", f"{100 * accuracy['exact']:.2f} % (exact: every neighbour)")
    table.add_row("test accuracy, trained from memory", f"{100 * accuracy['memory']:.2f} %")
    table.add_row("test accuracy without the graph (MLP)", f"{100 * accuracy['without_graph']:.2f} %")
    same = "identical to the last bit" if record.results["losses_identical"] else "not identical"
    table.add_row("training losses from disk and memory", same)
    table.add_row("rows/s, reading only", f"{record.results['rows_per_s']:,.0f}")
    totals = record.results["rows_by_source"]
    everything = max(1, sum(totals.values()))
    for source in SOURCES:
        table.add_row(f"rows from {source}", f"{totals[source]:,} ({100 * totals[source] / everything:.1f} %)")
    memory = record.memory
    assert memory is not None
    table.add_row("feature table", format_bytes(memory.table_bytes))
    table.add_row("memory budget", format_bytes(memory.budget_bytes))
    table.add_row("memory that the loader allotted", format_bytes(memory.peak_bytes))
    if memory.rss_growth_bytes is not None:
        table.add_row("process grew by, while reading", format_bytes(memory.rss_growth_bytes))
    console.print(table)
    for bar in record.bars:
        sign = "≤" if bar["lower_is_better"] else "≥"
        word = "holds" if bar["holds"] else "DOES NOT HOLD"
        console.print(f"{word}: {bar['name']} = {bar['value']:.3g} ({sign} {bar['floor']:g})")
    tables_only = "" if can_draw() else " (tables only: pip install 'gids[report]' draws the plots)"
    console.print(f"report: {page}{escape(tables_only)}", soft_wrap=True)
