"""Keep records of benchmarks and write the pages that show them: `python -m experiments.bench FILE.json ...`.

Each FILE is what `gids bench NAME --json` printed. It is kept beside all earlier ones, and docs/benchmarks.md and README's
table are written anew from what is kept; with no FILE only the pages are written.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments import cells, records
from experiments.cells import number
from experiments.keep import between
from experiments.records import Record
from gids.cli.bench import BENCHMARKS
from gids.units import format_bytes

ROOT = Path(__file__).resolve().parents[1]
README, PAGE = ROOT / "README.md", ROOT / "docs" / "benchmarks.md"


@dataclass(frozen=True)
class Headline:
    """A line of README's table: the bars of a benchmark whose names match, side by side; of many, the extremes."""

    benchmark: str
    label: str
    bars: str


#: What a reader wants to know first: what a careful person would use instead, then the papers' loop. The page has everything.
HEADLINES = (
    Headline(
        "epoch", "rows/s over the best of the tuned peers, batches that share many rows", r"^rows/s over the best peer"
    ),
    Headline("epoch", "the same, batches that share few", r"^sparse: rows/s over the best peer"),
    Headline(
        "train", "seconds of an epoch of the best peer over ours, least and most of all cells", r"best peer over gids$"
    ),
    Headline("epoch", "rows/s over the papers' loop: DGL, a mapped file, `MADV_RANDOM`", r"^rows/s over DGL with mmap"),
    Headline("epoch", "an epoch of training over the longer of data and compute", r"^epoch /"),
    Headline("disk", "random rows of 512 B / 1 KiB / 4 KiB over fio's best", r"^random"),
    Headline("disk", "merged reads over one read per row, 2.5 / 10 / 33 % of the rows", r"/ one read per row$"),
    Headline("sample", "sampled edges/s over DGL, fan-out 10,10,10 and 20,15,10", r"times DGL, 2 thread"),
    Headline(
        "sample",
        "sampled edges/s from disk over a mapped edge file; memory for little, much or all of it",
        r"^disk: over a mapped file",
    ),
    Headline(
        "cache", "hits of window(16) over random, R-MAT at 1 / 4 / 16 % of the rows", r"/ random, cache \d+%, rmat \("
    ),
)
#: What the name of a bar has where an upper bound is known: only that proves that a miss is beyond reach.
BOUND = "(belady: "
#: Bars that stand side by side in README; of more, the least and the most do.
SIDE_BY_SIDE = 3


def bound(bar: dict[str, Any]) -> str:
    """Say the promise; records of before 0.2 say only whether it holds."""
    guessed = bar["value"] != bar["floor"] and (bar["value"] < bar["floor"]) == bar["holds"]
    floor = f"{bar['floor'] / 1e6:g} M" if bar["floor"] >= 1e6 else f"{bar['floor']:g}"
    return f"{'at most' if bar.get('lower_is_better', guessed) else 'at least'} {floor}"


def measured(bar: dict[str, Any]) -> str:
    """Return a bar's value; one that is missed stands in bold.

    Older records call also beyond reach what a policy that was told the counts missed too, or a process that was large
    before there was a loader: these are no bounds.
    """
    if bar["holds"]:
        return number(bar["value"])
    proven = not bar["reachable"] and BOUND in bar["name"]
    return f"**{number(bar['value'])}**" + (" (beyond reach)" if proven else "")


def headline(line: Headline, record: Record) -> str | None:
    """Return one cell of README's table; None where the record has no such bar."""
    bars = [bar for bar in record.bars if re.search(line.bars, bar["name"])]
    if not bars:
        return None
    shown = bars
    if len(bars) > SIDE_BY_SIDE:
        shown = [choose(bars, key=lambda bar: float(bar["value"])) for choose in (min, max)]
    bounds = [bound(bar) for bar in shown]
    if len(set(bounds)) == 1:
        text = f"{' / '.join(measured(bar) for bar in shown)} ({bounds[0]})"
    else:
        text = " / ".join(f"{measured(bar)} ({rule})" for bar, rule in zip(shown, bounds, strict=True))
    missed = sum(not bar["holds"] for bar in bars)
    return text + (f"; **{missed} of {len(bars)}** missed" if shown != bars and missed else "")


def readme_table() -> str:
    """Return README's table, a column for each machine: its newest record of each promise; and how much was missed in all."""
    found: dict[Headline, dict[str, str]] = {}
    for line in HEADLINES:
        for record in records.kept(line.benchmark):
            cell = headline(line, record)
            if cell is not None:
                found.setdefault(line, {}).setdefault(record.machine, cell)
    machines = list(dict.fromkeys(machine for by_machine in found.values() for machine in by_machine))
    lines = [
        f"| measured (promised) | `gids bench` | {' | '.join(machines)} |",
        "| --- | --- |" + " --- |" * len(machines),
    ]
    for line, by_machine in found.items():
        row = " | ".join(by_machine.get(machine, "–") for machine in machines)
        lines.append(f"| {line.label} | `{line.benchmark}` | {row} |")
    shown = [record for name in records.NAMES for record in records.newest(name)]
    missed = sum(not bar["holds"] for record in shown for bar in record.bars)
    total = sum(len(record.bars) for record in shown)
    lines += [
        "",
        f"{missed} of {total} promises were missed in the newest runs of each benchmark on each machine; they stand in bold, with",
        "dates, commits and every peer, in [docs/benchmarks.md](docs/benchmarks.md).",
    ]
    return "\n".join(lines)


def promises(newest: Sequence[Record]) -> list[str]:
    """Return every promise of these records, a column for each of them."""
    heads = [cells.origin(record) for record in newest]
    lines = [f"| promise | {' | '.join(heads)} |", "| --- |" + " --- |" * len(heads)]
    by_name = [{bar["name"]: bar for bar in record.bars} for record in newest]
    for label in dict.fromkeys(bar["name"] for record in newest for bar in record.bars):
        row = [f"{measured(bars[label])} ({bound(bars[label])})" if label in bars else "–" for bars in by_name]
        lines.append(f"| {label.replace('|', '/')} | {' | '.join(row)} |")
    return lines


def section(name: str) -> list[str]:
    """Return one benchmark's part of the page: its promises, then its cells, and what was kept before."""
    newest = records.newest(name)
    command = "gids demo" if name == "demo" else f"gids bench {name}"
    summary = "the run of `make demo`" if name == "demo" else BENCHMARKS[name]
    lines = [f"## `{command}`", "", f"{summary[0].upper()}{summary[1:]}. Run it with `{command} --json`.", ""]
    if not newest:
        return [*lines, "No record is kept yet.", ""]
    lines += [*promises(newest), *cells.tables(name)]
    if name == "demo":
        lines += ["", *demo_table(newest[0])]
    older = [record for record in records.kept(name) if record not in newest]
    if older:
        listed = "; ".join(
            f"{cells.origin(record)}: {sum(not bar['holds'] for bar in record.bars)} of {len(record.bars)} missed"
            for record in older
        )
        lines += ["", f"Earlier records: {listed}."]
    return [*lines, ""]


def demo_table(record: Record) -> list[str]:
    """Return what the demo found, beside its promises."""
    results, memory = record.content["results"], record.content["memory"]
    rows = results["rows_by_source"]
    total = max(1, sum(rows.values()))
    accuracy = {name: f"{100 * value:.2f} %" for name, value in results["accuracy"].items()}
    same = "every loss identical to the last bit" if results["losses_identical"] else "**losses differ**"
    table = {
        "feature table / memory budget": f"{format_bytes(memory['table_bytes'])} / {format_bytes(memory['budget_bytes'])}",
        "test accuracy from disk": accuracy["disk"],
        "the same from memory": f"{accuracy['memory']}, {same}",
        "a perceptron without the graph": accuracy["without_graph"],
        "rows from " + " / ".join(rows): " / ".join(f"{100 * count / total:.1f} %" for count in rows.values()),
        "rows/s, reading only": f"{results['rows_per_s']:,.0f}",
        "by how much the process grew while reading": format_bytes(memory["rss_growth_bytes"]),
    }
    return ["| | |", "| --- | --- |", *(f"| {label} | {value} |" for label, value in table.items())]


def page() -> str:
    """Return the generated part of docs/benchmarks.md."""
    return "\n".join(line for name in records.NAMES for line in section(name)).rstrip()


def write(path: Path, part: str, text: str) -> None:
    """Replace the part of a file that stands between its markers."""
    whole = path.read_text()
    begin, end = between(whole, part)
    path.write_text(whole[:begin] + text + whole[end:])


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m experiments.bench", description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE", help="what `gids bench NAME --json` printed")
    for path in parser.parse_args().files:
        print(records.keep(path).relative_to(ROOT))
    write(README, "bench", readme_table())
    write(PAGE, "records", page())


if __name__ == "__main__":
    main()
