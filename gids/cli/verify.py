"""``gids verify``: read a whole dataset and name what is damaged."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict

from gids.dataset import open_dataset
from gids.dataset.progress import progress_bars
from gids.dataset.verifier import verify
from gids.units import format_bytes


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.epilog = "Exit code 0: nothing is wrong; 1: something is damaged, or the dataset cannot be opened."
    parser.add_argument("path", help="directory of the dataset")
    parser.add_argument("--json", action="store_true", help="one JSON object for machines")
    parser.add_argument("--quiet", action="store_true", help="no progress bars")


def run(args: argparse.Namespace) -> int:
    """Check and print; the exit code says whether all is well."""
    dataset = open_dataset(args.path)
    with progress_bars(not (args.quiet or args.json)) as progress:
        problems = verify(dataset, progress)
    tables = list(dataset.manifest.tables())
    if args.json:
        facts = {"path": str(dataset.path), "tables": len(tables), "ok": not problems}
        print(json.dumps(facts | {"problems": [asdict(problem) for problem in problems]}, indent=2))
    else:
        for problem in problems:
            print(problem.message)
        size = format_bytes(sum(stored.table.total_bytes for stored in tables))
        verdict = f"{len(problems)} problem{'s' * (len(problems) != 1)}" if problems else "no problem"
        print(f"{dataset.path}: {verdict} in {len(tables)} tables, {size}")
    return 1 if problems else 0
