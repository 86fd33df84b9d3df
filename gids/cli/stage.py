"""``gids stage``: copy a dataset from object storage to a directory, or back."""

from __future__ import annotations

import argparse


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.epilog = (
        "One of SOURCE and TARGET is a URL: s3://bucket/name, gs://, az://. Credentials and endpoints come from the "
        "environment (AWS_ACCESS_KEY_ID, AWS_ENDPOINT_URL, ...). Every chunk is checked on the way; a killed run "
        "continues when the same command is given again. Needs obstore: pip install 'gids[stage]'."
    )
    parser.add_argument("source", help="URL or directory of the dataset")
    parser.add_argument("target", help="directory or URL to create")
    parser.add_argument("--threads", type=int, default=8, metavar="N", help="requests at a time (default 8)")
    parser.add_argument("--budget", metavar="BYTES", help="most that what is fetched may take on the local disk")
    parser.add_argument("--node", type=int, metavar="K", help="fetch the part of node K only, counted from 0")
    parser.add_argument("--nodes", type=int, metavar="N", help="--node: of how many")
    parser.add_argument("--quiet", action="store_true", help="no progress bars")


def run(args: argparse.Namespace) -> None:
    """Copy, and print where the dataset is."""
    from gids.cli.info import print_summary
    from gids.cluster.stage import StageOptions, stage
    from gids.dataset.progress import progress_bars
    from gids.errors import ConfigError

    if (args.node is None) != (args.nodes is None):
        raise ConfigError(f"--node and --nodes must be given together (got {args.node} and {args.nodes})")
    part = None if args.node is None else (args.node, args.nodes)
    with progress_bars(not args.quiet) as progress:
        options = StageOptions(threads=args.threads, budget=args.budget, part=part, progress=progress)
        dataset = stage(args.source, args.target, options)
    if dataset is None:
        print(f"{args.target}: complete")
    else:
        print_summary(dataset)
