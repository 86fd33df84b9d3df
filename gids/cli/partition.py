"""``gids partition``: divide the nodes of a dataset into parts with few edges between them."""

from __future__ import annotations

import argparse

from gids.cli.generate import count


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.epilog = (
        "The parts are stored beside the dataset (in its scratch directory, or in ~/.cache/gids where that is "
        "read-only) and used by `gids reorder --by partition` and by seed orders of gids.partition."
    )
    parser.add_argument("dataset", help="directory of the dataset")
    parser.add_argument("--parts", type=count, required=True, help="number of parts, e.g. 10k")
    parser.add_argument(
        "--method",
        choices=["stream", "metis", "mtkahypar"],
        default="stream",
        help="stream (default) needs memory for nodes only; the others hold the graph (extra gids[partition])",
    )
    parser.add_argument("--passes", type=int, default=1, help="stream: passes over the edges on disk (default 1)")
    parser.add_argument(
        "--imbalance", type=float, default=0.05, help="largest part over the mean, less 1 (default 0.05)"
    )
    parser.add_argument(
        "--train-imbalance", type=float, default=0.25, help="stream: the same in training nodes (default 0.25)"
    )
    parser.add_argument("--split", default="train", help="split that is balanced too (default train)")
    parser.add_argument("--seed", type=int, default=0, help="decides ties: same seed, same parts (default 0)")
    parser.add_argument("--name", help="name to store it under (default: the number of parts)")
    parser.add_argument("--overwrite", action="store_true", help="replace a partition of that name")
    parser.add_argument("--threads", type=int, help="default: all cores; changes nothing but the time")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--quiet", action="store_true", help="no progress bar")


def run(args: argparse.Namespace) -> None:
    """Partition, store, and print cut and balance."""
    import json

    from rich.console import Console

    import gids
    from gids.dataset.progress import progress_bars
    from gids.partition import make
    from gids.partition.methods import split_nodes

    dataset = gids.open(args.dataset)
    with progress_bars(not args.quiet) as progress:
        partition = make(
            dataset,
            args.parts,
            method=args.method,
            passes=args.passes,
            imbalance=args.imbalance,
            train_imbalance=args.train_imbalance,
            split=args.split,
            seed=args.seed,
            name=args.name,
            overwrite=args.overwrite,
            threads=args.threads,
            progress=progress,
        )
    train = split_nodes(dataset, args.split)
    seconds = partition.provenance["seconds"]
    facts = {
        "name": args.name or str(args.parts),
        "parts": partition.num_parts,
        "method": args.method,
        "edges": partition.num_edges,
        "cut_edges": partition.cut_edges,
        "cut": partition.cut,
        "balance_nodes": partition.balance(),
        "balance_train": partition.balance(train) if train else None,
        "seconds": seconds,
        "edges_per_s": partition.num_edges / seconds if seconds else None,
    }
    if args.json:
        print(json.dumps(facts))
        return
    console = Console(highlight=False)
    console.print(f"{partition.num_parts:,} parts of {dataset.num_nodes():,} nodes by {args.method} in {seconds:.1f} s")
    console.print(f"cut      {partition.cut:.1%} of {partition.num_edges:,} edges lead from one part to another")
    console.print(f"balance  the largest part has {facts['balance_nodes']:.3f} times the mean's nodes", end="")
    console.print(f" and {facts['balance_train']:.3f} times its {args.split} nodes" if train else "")
