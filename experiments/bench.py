"""The benchmarks that the repository keeps, and README.md's table of them: `python -m experiments.bench FILE.json ...`.

Each FILE is what `gids bench NAME --json` printed. It is put into `results/bench/NAME.json`, and the table is written
anew from all that is kept there; with no FILE only the table is written.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.keep import between

RESULTS = Path(__file__).with_name("results") / "bench"
README = Path(__file__).resolve().parents[1] / "README.md"


@dataclass(frozen=True)
class Row:
    """A line of the table: the bars of one benchmark whose names match, side by side, and a word from its results."""

    label: str
    bars: str
    remark: Callable[[dict[str, Any]], str] = lambda results: ""


def merged_by_fio(results: dict[str, Any]) -> str:
    by_gap = results["every tenth row by merge gap, times one read per row"]
    best = max(gap["measured"] for gap in by_gap.values())
    fio = results["10.0% of 1 KiB rows: the merged reads by fio, times one read per row"]
    return f"of 10 %, fio with exactly the merged reads gets {fio:.2f}, the best of {len(by_gap)} gaps {best:.2f}"


def by_jobs(results: dict[str, Any]) -> str:
    parts = [results[f"cpu_us_per_read_{size}"] for size in (512, 1024, 4096)]
    values = [" / ".join(f"{part[f'gids / fio, {jobs} jobs']:.2f}" for part in parts) for jobs in (1, 2)]
    return f"with one job {values[0]}, with two {values[1]}; fio does not touch the bytes"


def rates(results: dict[str, Any]) -> str:
    median = {rate["name"]: rate["median"] for rate in results["rates"]}
    return f"{median['gids']:,.0f} against {median['dgl-mmap-random']:,.0f} rows/s"


TABLE = {
    "disk": [
        Row("random rows of 512 B / 1 KiB / 4 KiB over fio's best", r"^random"),
        Row("merged reads over one read per row, 2.5 / 10 / 33 % of the rows", r"/ one read per row$", merged_by_fio),
        Row("merged reads over the same reads by fio, 2.5 / 10 / 33 % of the rows", r"/ the same reads by fio$"),
        Row("sequential over fio", r"^sequential"),
        Row("memory engine over `index_select`", r"^memory engine"),
        Row("processor time per row over fio's, 512 B / 1 KiB / 4 KiB", r"^CPU per", by_jobs),
    ],
    "sample": [
        Row("times DGL, fan-out 10,10,10 and 20,15,10, 2 threads", r"times DGL, 2 thread"),
        Row("2 threads over 1, the same fan-outs", r"2 threads over 1$"),
        Row("edges from disk over one read per edge", r"^disk: edges/s"),
    ],
    "cache": [
        Row(
            "window(16) over random, `bench epoch`'s graph at 1 / 4 / 16 % of the rows", r"/ random, .*, communities \("
        ),
        Row("the same, R-MAT at 1 / 4 / 16 %", r"/ random, cache \d+%, rmat \("),
        Row("window(16) over the optimum where the window fits, R-MAT at 16 %", r"/ belady, cache \d+%, rmat \("),
        Row("the same in batches as small as real use's, R-MAT at 4 / 16 %", r"/ belady, .*, rmat, 64 seeds"),
        Row("the same, `bench epoch`'s graph at 16 %", r"/ belady, .*, communities, 64 seeds"),
        Row("planning and gathering over `index_select`", r"^plan \+ gather"),
        Row("the accumulator's model over depths 1 to 256, largest error", r"^accumulator's model"),
    ],
    "epoch": [
        Row("rows/s over DGL with mmap and `MADV_RANDOM`", r"^rows/s over DGL", rates),
        Row("memory over its limit", r"^peak resident memory"),
        Row("epoch over the longer of data and training", r"^epoch /"),
    ],
}


def number(value: float) -> str:
    """Two decimals, one from 10 on, three below 0.1."""
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}" if value >= 0.1 else f"{value:.3f}"


def bound(bar: dict[str, Any]) -> str:
    """Whether the bar is a floor or a ceiling: the records say only if it holds."""
    at_most = bar["value"] != bar["floor"] and (bar["value"] < bar["floor"]) == bar["holds"]
    return f"{'at most' if at_most else 'at least'} {bar['floor']:g}"


def measured(bar: dict[str, Any]) -> str:
    """A bar's value; one that is missed stands in bold, with what its name says was possible."""
    if bar["holds"]:
        return number(bar["value"])
    possible = re.search(r"\(([^()]*)\)$", bar["name"])
    words = [possible.group(1).replace(":", "")] if possible else []
    words += [] if bar["reachable"] else ["beyond reach"]
    return f"**{number(bar['value'])}**" + (f" ({', '.join(words)})" if words else "")


def line(row: Row, record: dict[str, Any]) -> tuple[str, list[str]]:
    """One row of the table, and the names of the bars in it."""
    bars = [bar for bar in record["bars"] if re.search(row.bars, bar["name"])]
    if not bars:
        raise SystemExit(f"bench {record['benchmark']} must have a bar named like {row.bars!r} (README's: {row.label})")
    bounds = [bound(bar) for bar in bars]
    if len(set(bounds)) == 1:
        text = f"{' / '.join(measured(bar) for bar in bars)} ({bounds[0]})"
    else:
        text = " / ".join(f"{measured(bar)} ({rule})" for bar, rule in zip(bars, bounds, strict=True))
    remark = row.remark(record["results"])
    return f"| {row.label} | {text}{'; ' if remark else ''}{remark} |", [bar["name"] for bar in bars]


def rest(record: dict[str, Any], shown: set[str]) -> list[str]:
    """The bars that no row names: those that are missed one by one, of the others how many there are."""
    others = [bar for bar in record["bars"] if bar["name"] not in shown]
    lines = [f"| {bar['name']} | {measured(bar)} ({bound(bar)}) |" for bar in others if not bar["holds"]]
    held = len(others) - len(lines)
    return [*lines, *([f"| further promises of `gids bench {record['benchmark']}` | {held} hold |"] if held else [])]


def table(records: dict[str, dict[str, Any]]) -> str:
    """README's table, and where its numbers come from."""
    lines, origins = ["| benchmark | measured (promised) |", "| --- | --- |"], []
    for name, rows in TABLE.items():
        record, shown = records[name], set[str]()
        for place, row in enumerate(rows):
            text, names = line(row, record)
            lines.append(text if place else text.replace("| ", f"| `gids bench {name}`: ", 1))
            shown |= set(names)
        lines += rest(record, shown)
        origin = record["provenance"]
        when = origin["time_utc"][:16].replace("T", " ")
        origins.append(f"[`{name}`](experiments/results/bench/{name}.json) at commit {origin['commit']}, {when}")
    return "\n".join(lines) + f"\n\nFrom the runs of {'; '.join(origins)} UTC."


def kept() -> dict[str, dict[str, Any]]:
    """The records in the repository."""
    return {name: json.loads((RESULTS / f"{name}.json").read_text()) for name in TABLE}


def keep(path: Path) -> None:
    """Put a record into the repository: one of a whole run, of a clean commit."""
    record = json.loads(path.read_text())
    name, origin = record.get("benchmark"), record.get("provenance", {})
    if name not in TABLE:
        raise SystemExit(f"{path} must be what `gids bench {'|'.join(TABLE)} --json` printed (got {name})")
    if "--quick" in origin["command"] or "dirty" in origin["commit"]:
        raise SystemExit(
            "kept records must be of a whole run and a clean commit "
            f"(got {path}: {' '.join(origin['command'])}, {origin['commit']})"
        )
    for row in TABLE[name]:
        line(row, record)
    (RESULTS / f"{name}.json").write_text(json.dumps(record, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m experiments.bench", description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE", help="what `gids bench NAME --json` printed")
    for path in parser.parse_args().files:
        keep(path)
    text = README.read_text()
    begin, end = between(text, "bench")
    README.write_text(text[:begin] + table(kept()) + text[end:])


if __name__ == "__main__":
    main()
