"""``gids status``: the table of what of the CUDA backend was proven, and how."""

from __future__ import annotations

import argparse
from pathlib import Path


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument("--evidence", type=Path, default=Path("build/evidence"), help="what tests and selftest wrote")
    parser.add_argument("--write", type=Path, metavar="PAGE.md", help="put the table between its markers in this page")
    parser.add_argument(
        "--registers", action="store_true", help="print registers / shared bytes of every kernel instead"
    )


def run(args: argparse.Namespace) -> int:
    """Compile for every architecture (or take that from the cache) and print the table."""
    from gids.cuda.compile import compile_all, resource_table
    from gids.cuda.status import insert, status_table

    cubins = compile_all()
    table = resource_table(cubins) if args.registers else status_table(cubins, args.evidence)
    print(table)
    if args.write is not None:
        args.write.write_text(insert(args.write.read_text(), table))
    return 0
