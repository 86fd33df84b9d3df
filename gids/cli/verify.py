"""``gids verify``: read a whole dataset and name what is damaged."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path

from gids.dataset import open_dataset
from gids.dataset.packed import Packed, is_packed
from gids.dataset.packed_verifier import verify_packed
from gids.dataset.progress import progress_bars
from gids.dataset.verifier import verify
from gids.kg.slices import MANIFEST as SLICES
from gids.kg.slices import verify_slices
from gids.units import format_bytes


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.epilog = "Exit code 0: nothing is wrong; 1: something is damaged, or the dataset cannot be opened."
    parser.add_argument("path", help="directory of the dataset, of packed epochs, or of slices")
    parser.add_argument("--json", action="store_true", help="one JSON object for machines")
    parser.add_argument("--quiet", action="store_true", help="no progress bars")


def run(args: argparse.Namespace) -> int:
    """Check and print; the exit code says whether all is well."""
    if (Path(args.path) / SLICES).exists():
        return _run_slices(args)
    if is_packed(args.path):
        return _run_packed(args)
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


def _run_packed(args: argparse.Namespace) -> int:
    packed = Packed(args.path)
    with progress_bars(not (args.quiet or args.json)) as progress:
        problems = verify_packed(packed, progress)
    if args.json:
        facts = {"path": str(packed.path), "tables": len(packed.tables), "ok": not problems}
        print(json.dumps(facts | {"problems": [asdict(problem) for problem in problems]}, indent=2))
    else:
        for problem in problems:
            print(problem.message)
        verdict = f"{len(problems)} problem{'s' * (len(problems) != 1)}" if problems else "no problem"
        print(f"{packed.path}: {verdict} in {len(packed.index)} batches, {format_bytes(packed.size_bytes)}")
    return 1 if problems else 0


def _run_slices(args: argparse.Namespace) -> int:
    problems = verify_slices(args.path)
    if args.json:
        facts = {"path": str(args.path), "ok": not problems, "problems": [{"message": text} for text in problems]}
        print(json.dumps(facts, indent=2))
    else:
        print(
            "\n".join([*problems, f"{args.path}: {len(problems) or 'no'} problem{'s' * (len(problems) > 1)} in slices"])
        )
    return 1 if problems else 0
