"""``gids convert``: make a dataset from a graph in another layout."""

from __future__ import annotations

import argparse
import hashlib
import shutil
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import gids
from gids.cli.generate import count
from gids.cli.info import print_summary
from gids.convert import FORMATS, ArrayFiles, ConvertOptions, LocalWorkers, RayWorkers, convert, detect
from gids.convert.workers import TASK_MEMORY
from gids.dataset import Dataset
from gids.dataset.progress import progress_bars
from gids.errors import ConfigError
from gids.partition import make, reorder, stored_names

#: Nodes of a part where the user does not say how many parts there shall be: a few parts make a batch.
PART_NODES = 400
#: Arrays of a graph, with the shape that each must have.
_FILES = {
    "features": "[nodes, dim]",
    "labels": "[nodes]",
    "edges": "[2, edges] or [edges, 2]: sources and destinations; or lines of two numbers",
    "indptr": "[nodes + 1]: where the in-edges of each node begin",
    "indices": "[edges]: their sources",
    "edge_weights": "[edges]",
    "edge_features": "[edges, dim]",
}


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
    parser.add_argument(
        "--order",
        choices=["partition", "visits", "degree"],
        help="relabel nodes as `gids reorder` does, so that rows asked for together are neighbours on disk; the converted "
        "graph lies beside PATH until that is done (with --in-place without a copy of the features)",
    )
    parser.add_argument(
        "--parts", type=count, help=f"--order partition: number of parts (default: one for {PART_NODES} nodes)"
    )
    parser.add_argument(
        "--workers", type=count, metavar="N", help="convert with N processes; the dataset is the same, byte for byte"
    )
    parser.add_argument(
        "--ray",
        metavar="ADDRESS",
        help="convert on Ray: the address of a cluster whose nodes see SOURCE and PATH, or 'local' (pip install 'gids[ray]')",
    )
    parser.add_argument(
        "--task-memory",
        metavar="BYTES",
        help=f"--workers, --ray: memory of each task beside its interpreter's (default {TASK_MEMORY})",
    )
    parser.add_argument("--quiet", action="store_true", help="no progress bars")
    parser.add_argument(
        "--trust", action="store_true", help="pyg: load any pickled object, which can run code of the file's maker"
    )
    parser.add_argument("--classes", type=int, choices=[19, 2983], help="igb: which labels (default 19)")
    group = parser.add_argument_group(
        "arrays", "files, where they do not have their usual names in SOURCE (features.npy, labels.npy, edges.npy, ...)"
    )
    for name, shape in _FILES.items():
        group.add_argument(f"--{name.replace('_', '-')}", type=Path, metavar="FILE", help=shape)
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
    if args.parts is not None and args.order != "partition":
        raise ConfigError(f"--parts is an option of --order partition (got --order {args.order})")
    with _workers(args) as workers, progress_bars(not args.quiet) as progress:
        options = ConvertOptions(
            in_place=args.in_place,
            feature_dtype=args.dtype,
            add_reverse=args.add_reverse,
            workers=workers,
            overwrite=args.overwrite,
            stripe_dirs=args.stripe_dir,
            progress=progress,
        )
        if args.order is None:
            dataset = convert(args.source, args.path, format=layout, options=options, **details)
        else:
            dataset = _convert_ordered(args, layout, options, details)
    print_summary(dataset)


def _workers(args: argparse.Namespace) -> AbstractContextManager[LocalWorkers | RayWorkers | None]:
    memory = args.task_memory or TASK_MEMORY
    if args.ray is not None:
        return RayWorkers(args.ray, args.workers, memory)
    if args.workers is not None:
        return LocalWorkers(args.workers, memory)
    if args.task_memory is not None:
        raise ConfigError(f"--task-memory is an option of --workers and --ray (got {args.task_memory})")
    return nullcontext()


def _convert_ordered(
    args: argparse.Namespace, layout: str, options: ConvertOptions, details: dict[str, Any]
) -> Dataset:
    """Convert to a directory beside the path, relabel from there, and remove it."""
    path = Path(args.path)
    if path.exists() and not args.overwrite:
        raise ConfigError(f"{path} exists; choose another path, or overwrite it (--overwrite)")
    # The same command on the same source finds what a killed one had converted.
    source = Path(args.source).absolute()
    changed = source.stat().st_mtime_ns if source.exists() else None
    asked = (source, changed, layout, options.in_place, options.feature_dtype, options.add_reverse, details)
    digest = hashlib.sha256(repr(asked).encode()).hexdigest()[:12]
    beside = path.absolute().parent / f".{path.name}.{digest}.unordered"
    if beside.exists():
        plain = gids.open(beside)
    else:
        plain = convert(
            args.source, beside, format=layout, options=replace(options, overwrite=False, stripe_dirs=()), **details
        )
    parts = args.parts or max(1, plain.num_nodes() // PART_NODES)
    if args.order == "partition" and str(parts) not in stored_names(plain):
        make(plain, parts, progress=options.progress)
    dataset = reorder(
        plain,
        path,
        by=args.order,
        partition=str(parts) if args.order == "partition" else None,
        overwrite=args.overwrite,
        stripe_dirs=options.stripe_dirs,
        progress=options.progress,
    )
    shutil.rmtree(beside)
    return dataset
