"""``gids demo``: train from disk within a memory budget, compare with training from memory, write a report."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from pathlib import Path

from gids.units import parse_bytes


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument("--dir", type=Path, default=Path("gids-demo"), help="dataset and report (default ./gids-demo)")
    parser.add_argument("--budget", default=None, help="memory for the loader, e.g. 96MiB (default 128MiB)")
    parser.add_argument("--epochs", type=int, default=None, help="epochs to train (default 3)")
    parser.add_argument("--quick", action="store_true", help="a small graph, for a look at the moving parts")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")


def run(args: argparse.Namespace) -> int:
    """Run the demo; exit code 1 where one of its promises does not hold."""
    from gids.demo import Settings, print_table, run_demo
    from gids.report import write_page

    settings = dataclasses.replace(Settings.quick() if args.quick else Settings(), directory=args.dir)
    if args.budget is not None:
        settings = dataclasses.replace(settings, budget_bytes=parse_bytes(args.budget, "budget"))
    if args.epochs is not None:
        settings = dataclasses.replace(settings, epochs=args.epochs)
    record = run_demo(settings, show_progress=sys.stderr.isatty())
    record.save(args.dir)
    page = write_page(record, args.dir / "report.html").resolve()
    if args.json:
        print(json.dumps(record.as_dict() | {"report": str(page)}, indent=1, default=str))
    else:
        print_table(record, page)
    return 0 if all(bar["holds"] for bar in record.bars) else 1
