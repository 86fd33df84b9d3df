"""``gids reorder``: write a dataset again with its nodes relabelled."""

from __future__ import annotations

import argparse


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.epilog = (
        "Batches of the new dataset are those of the old one under the new ids; Dataset.original_ids() leads back. "
        "A killed run continues when the same command is given again; nothing appears at PATH until it is complete."
    )
    parser.add_argument("dataset", help="directory of the dataset to read")
    parser.add_argument("path", help="directory to create")
    parser.add_argument(
        "--by",
        choices=["partition", "visits", "degree"],
        required=True,
        help="part by part (see `gids partition`); most often sampled first; sources of most edges first",
    )
    parser.add_argument("--partition", metavar="NAME", help="by partition: which one (default: the only one stored)")
    parser.add_argument("--edge-ids", action="store_true", help="store former edge positions as edge ids in any case")
    parser.add_argument(
        "--stripe-dir",
        action="append",
        default=[],
        metavar="DIR",
        help="spread features over these directories (repeat)",
    )
    parser.add_argument(
        "--overwrite", action="store_true", help="replace an existing dataset when the new one is complete"
    )
    parser.add_argument("--quiet", action="store_true", help="no progress bars")


def run(args: argparse.Namespace) -> None:
    """Relabel and print what was made."""
    import gids
    from gids.cli.info import print_summary
    from gids.dataset.progress import progress_bars
    from gids.partition import reorder

    with progress_bars(not args.quiet) as progress:
        dataset = reorder(
            gids.open(args.dataset),
            args.path,
            by=args.by,
            partition=args.partition,
            edge_ids=args.edge_ids,
            overwrite=args.overwrite,
            stripe_dirs=args.stripe_dir,
            progress=progress,
        )
    print_summary(dataset)
