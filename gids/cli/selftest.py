"""``gids selftest``: does this device do what the CPU does? Run it first on a new machine."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument("--device", default="cuda", help="cuda or cuda:N (default: cuda)")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    parser.add_argument(
        "--report",
        type=Path,
        metavar="DIR",
        help="also measure every engine briefly, and write selftest.json and .html",
    )
    parser.add_argument("--evidence", type=Path, help="also write the results to this directory, for `gids status`")


def run(args: argparse.Namespace) -> int:
    """Run every check and print a table; the exit code is 1 if one failed."""
    import torch
    from rich.console import Console
    from rich.table import Table

    from gids.cli.selftest_report import write_report
    from gids.cuda.interop import torch_ordinal
    from gids.cuda.selftest import Result, run_selftest
    from gids.errors import ConfigError

    device = torch.device(args.device)
    if device.type != "cuda":
        raise ConfigError(f"device must be cuda or cuda:N (got {args.device!r})")
    console = Console()
    words = {True: "passed", False: "FAILED", None: "not run"}

    def show(result: Result) -> None:
        if not args.json:
            console.print(f"{words[result.passed]:8} {result.name} ({result.seconds:.1f} s)", highlight=False)

    ordinal = torch_ordinal(device)
    name, results = run_selftest(ordinal, show)
    passed = all(result.passed is not False for result in results)
    record = {"device": name, "passed": passed, "results": [asdict(result) for result in results]}
    if args.evidence is not None:
        args.evidence.mkdir(parents=True, exist_ok=True)
        kind = "standin" if "stand-in" in name else "hardware"
        (args.evidence / f"selftest-{kind}.json").write_text(json.dumps(record, indent=1))
    if args.report is not None:
        as_json, as_html = write_report(args.report, record | _beside(ordinal, name))
        if not args.json:
            console.print(f"report: {as_json}, {as_html} (nothing is sent anywhere)", highlight=False)
    if args.json:
        print(json.dumps(record, indent=1))
        return 0 if passed else 1
    table = Table(title=f"gids selftest on {name}")
    for head in ("check", "result", "what"):
        table.add_column(head)
    for result in results:
        table.add_row(result.name, words[result.passed], result.detail)
    console.print(table)
    console.print(f"{sum(result.passed is True for result in results)} of {len(results)} checks passed on {name}")
    return 0 if passed else 1


def _beside(ordinal: int, name: str) -> dict[str, Any]:
    """Return what a report has beside the checks: the machine, and speeds of the engines."""
    from gids.bench.cuda_engines import measure_engines
    from gids.cli.doctor import examine

    on_standin = "stand-in" in name
    speeds = measure_engines(ordinal, num_nodes=600 if on_standin else 100_000, dim=16 if on_standin else 256)
    note = "Speeds are of the stand-in for the driver and say nothing about a GPU." if on_standin else ""
    return {
        "note": note or "Speeds are of one short epoch each, without cache and host buffer.",
        "machine": [asdict(finding) for finding in examine(Path.cwd())],
        "speeds": [asdict(speed) for speed in speeds],
    }
