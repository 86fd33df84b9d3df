"""``gids convert``: make a dataset from a graph in another layout."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from gids.cli.generate import count
from gids.cli.info import print_summary
from gids.convert import FORMATS, ArrayFiles, ConvertOptions, convert, detect
from gids.dataset.progress import progress_bars
from gids.errors import ConfigError

_FILES = ("features", "labels", "edges", "indptr", "indices", "edge_weights", "edge_features")


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    layouts = "\n".join(f"  {name:10} {layout.summary}" for name, layout in FORMATS.items())
    parser.epilog = (
        f"layouts:\n{layouts}\n\nA killed conversion continues when the same command is given again; "
        "nothing appears at PATH until it is complete."
    )
    parser.add_argument("source", help="file or directory to read")
    parser.add_argument("path", help="directory to create")
    parser.add_argument(
        "--from", dest="format", choices=list(FORMATS), help="layout of the source (default: found out)"
    )
    parser.add_argument(
        "--in-place", action="store_true", help="use feature files where they are instead of copying them"
    )
    parser.add_argument("--dtype", help="cast float features, e.g. to float16")
    parser.add_argument("--add-reverse", action="store_true", help="add the reverse of every edge")
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
    parser.add_argument(
        "--trust", action="store_true", help="pyg: load any pickled object, which can run code of the file's maker"
    )
    parser.add_argument("--classes", type=int, choices=[19, 2983], help="igb: which labels (default 19)")
    group = parser.add_argument_group("arrays", "files, where they do not have their usual names in SOURCE")
    for name in _FILES:
        group.add_argument(f"--{name.replace('_', '-')}", type=Path, metavar="FILE")
    for name in ("train", "val", "test"):
        group.add_argument(f"--{name}", type=Path, metavar="FILE", help="node ids or a mask")
    group.add_argument("--nodes", type=count, help="number of nodes (default: rows of features, or largest id + 1)")


def _details(args: argparse.Namespace, layout: str) -> dict[str, Any]:
    given: dict[str, Any] = {name: getattr(args, name) for name in _FILES if getattr(args, name) is not None}
    splits = {name: getattr(args, name) for name in ("train", "val", "test") if getattr(args, name) is not None}
    arrays_only = [*given, *splits, *(["nodes"] if args.nodes is not None else [])]
    owners = dict.fromkeys(arrays_only, "arrays")
    owners |= {"trust": "pyg"} if args.trust else {}
    owners |= {"classes": "igb"} if args.classes is not None else {}
    for option, owner in owners.items():
        if layout != owner:
            raise ConfigError(f"--{option.replace('_', '-')} is an option of {owner}, and this is {layout}")
    if layout == "arrays":
        return {"files": ArrayFiles(**given, num_nodes=args.nodes, splits=splits)}
    if layout == "pyg":
        return {"trust": args.trust}
    return {"num_classes": args.classes} if layout == "igb" and args.classes else {}


def run(args: argparse.Namespace) -> None:
    """Convert and print what was made."""
    layout = args.format or detect(args.source)
    details = _details(args, layout)
    with progress_bars(not args.quiet) as progress:
        options = ConvertOptions(
            in_place=args.in_place,
            feature_dtype=args.dtype,
            add_reverse=args.add_reverse,
            overwrite=args.overwrite,
            stripe_dirs=args.stripe_dir,
            progress=progress,
        )
        dataset = convert(args.source, args.path, format=layout, options=options, **details)
    print_summary(dataset)
