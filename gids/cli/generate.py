"""``gids generate``: make a synthetic dataset."""

from __future__ import annotations

import argparse
import re

from gids.cli.info import print_summary
from gids.errors import ConfigError

_COUNTS = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9}


def count(text: str) -> int:
    """Parse ``4000000``, ``4M`` or ``1.5k``."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([kmb]?)", text.strip().lower().replace("_", "").replace(",", ""))
    if match is None:
        raise argparse.ArgumentTypeError(f"must be a count like 4000000, 4M or 250k (got {text!r})")
    return int(float(match[1]) * _COUNTS[match[2]])


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.epilog = "Memory stays bounded at any size; a killed run continues when the same command is given again."
    parser.add_argument("kind", choices=["communities", "rmat"], help="communities can be learned from; rmat is hubs")
    parser.add_argument("path", help="directory to create")
    parser.add_argument("--nodes", type=count, default=100_000, help="nodes, e.g. 4M (default 100k)")
    parser.add_argument("--degree", type=float, default=15.0, help="mean in-edges of a node (default 15)")
    parser.add_argument("--dim", type=int, default=128, help="values in a feature row (default 128)")
    parser.add_argument("--dtype", default="float32", help="float16, bfloat16, float32 (default) or float64")
    parser.add_argument("--classes", type=int, default=16, help="classes of labels (default 16)")
    parser.add_argument("--signal", type=float, default=1.5, help="length of class centroids, noise is 1 (default 1.5)")
    parser.add_argument("--train", type=float, default=0.1, help="share of nodes to train on (default 0.1)")
    parser.add_argument("--val", type=float, default=0.05, help="share of nodes to validate on (default 0.05)")
    parser.add_argument("--test", type=float, default=0.05, help="share of nodes to test on (default 0.05)")
    parser.add_argument("--seed", type=int, default=0, help="same seed, same bytes (default 0)")
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
    group = parser.add_argument_group("communities")
    group.add_argument("--homophily", type=float, help="share of edges within a class (default 0.6)")
    group.add_argument("--skew", type=int, help="preference for popular sources, 1 is none (default 3)")
    group.add_argument("--blocks", type=count, help="small communities of all classes, e.g. 20k (default: none)")
    group.add_argument("--inside", type=float, help="with blocks: share of edges within a block (default 0.7)")
    group.add_argument("--block-ratio", type=float, help="with blocks: largest over smallest block (default 4)")
    group = parser.add_argument_group("rmat")
    group.add_argument(
        "--abc", type=float, nargs=3, metavar=("A", "B", "C"), help="quadrant chances (default 0.57 0.19 0.19)"
    )
    group.add_argument("--ordered", action="store_true", help="keep the recursion's ids: hubs first, neighbours near")


def run(args: argparse.Namespace) -> None:
    """Generate and print what was made."""
    from gids import generate
    from gids.dataset.progress import progress_bars

    shared = {
        "num_nodes": args.nodes,
        "degree": args.degree,
        "dim": args.dim,
        "dtype": args.dtype,
        "num_classes": args.classes,
        "signal": args.signal,
        "train": args.train,
        "val": args.val,
        "test": args.test,
        "seed": args.seed,
        "overwrite": args.overwrite,
        "stripe_dirs": args.stripe_dir,
    }
    own = ("homophily", "skew", "blocks", "inside", "block_ratio")
    asked = {name: value for name in own if (value := getattr(args, name)) is not None}
    other = {
        "communities": ("--abc", args.abc or args.ordered),
        "rmat": ("/".join(f"--{name.replace('_', '-')}" for name in asked), asked),
    }
    option, given = other[args.kind]
    if given:
        raise ConfigError(f"{option} is not an option of {args.kind}")
    if args.blocks is None and not asked.keys().isdisjoint({"inside", "block_ratio"}):
        raise ConfigError("--inside and --block-ratio need --blocks")
    with progress_bars(not args.quiet) as progress:
        if args.kind == "communities":
            dataset = generate.communities(args.path, progress=progress, **shared, **asked)
        else:
            chosen = {} if args.abc is None else dict(zip("abc", args.abc, strict=True))
            dataset = generate.rmat(args.path, progress=progress, scatter=not args.ordered, **shared, **chosen)
    print_summary(dataset)
