"""``gids report RUN``: one self-contained HTML page for a run, a benchmark's JSON or a trace."""

from __future__ import annotations

import argparse
from pathlib import Path

from gids.report import load_run, write_page


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "run", type=Path, help="directory with run.json, or a JSON file of a run, of `gids bench`, or a trace"
    )
    parser.add_argument("--out", "-o", type=Path, help="page to write (default: report.html beside the run)")


def run(args: argparse.Namespace) -> None:
    """Write the page and print its path."""
    record = load_run(args.run)
    beside = args.run if args.run.is_dir() else args.run.parent
    print(write_page(record, args.out or beside / "report.html").resolve())
