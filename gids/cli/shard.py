"""``gids shard``: write the part of a dataset that one node of several holds."""

from __future__ import annotations

import argparse


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.epilog = (
        "Run it on every node, from a dataset on a shared file system, with the node's own number. Loaders with "
        "shards=gids.Shards() read it; see docs/cluster.md. Nothing appears at PATH until it is complete."
    )
    parser.add_argument("dataset", help="directory of the whole dataset")
    parser.add_argument("path", help="directory to create, on the node's own drives")
    parser.add_argument("--node", type=int, required=True, metavar="K", help="which part, from 0")
    parser.add_argument("--nodes", type=int, required=True, metavar="N", help="of how many")
    parser.add_argument("--quiet", action="store_true", help="no progress bars")


def run(args: argparse.Namespace) -> None:
    """Write the part and print what it holds."""
    import gids
    from gids.dataset.part import write_part
    from gids.dataset.progress import progress_bars
    from gids.units import format_bytes

    with progress_bars(not args.quiet) as progress:
        part = write_part(gids.open(args.dataset), args.path, node=args.node, nodes=args.nodes, progress=progress)
    held = [stored.table for stored in part.manifest.tables() if stored.table.held is not None]
    for table in held:
        assert table.held is not None
        begin, end = table.held
        print(
            f"{table.name}: rows {begin:,} to {end:,} of {table.num_rows:,}, {format_bytes((end - begin) * table.row_bytes)}"
        )
    print(f"{part.path}: part {args.node} of {args.nodes}")
