"""``gids slice``: slice the subgraphs of a knowledge graph's queries before training, and say how well it went."""

from __future__ import annotations

import argparse
import json

#: Queries that are sliced between two lines of progress.
STEP_QUERIES = 256


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.epilog = (
        "gids.kg.Loader finds the slices where this command leaves them, and slices what is missing by itself. A killed "
        "run continues when the same command is given again; gids verify checks the directory."
    )
    parser.add_argument("dataset", help="directory of a dataset with triples")
    parser.add_argument("--split", default="train", help="whose queries (default train)")
    parser.add_argument("--hops", type=int, default=3, help="hops of a subgraph (default 3)")
    parser.add_argument("--both-ends", action="store_true", help="subgraphs of heads and of tails")
    parser.add_argument("--path", help="directory of the slices (default: in the dataset's scratch directory)")
    parser.add_argument("--slice", default="4KiB", metavar="SIZE", help="size of a slice (default 4KiB)")
    parser.add_argument("--atom-cache", default="64MiB", metavar="SIZE", help="memory for large atoms (default 64MiB)")
    parser.add_argument("--limit", type=int, help="the first so many queries only")
    parser.add_argument("--json", action="store_true", help="print one object")
    parser.add_argument("--quiet", action="store_true", help="no progress")


def run(args: argparse.Namespace) -> None:
    """Slice and print the figures."""
    import numpy as np
    from rich.console import Console
    from rich.table import Table

    import gids
    from gids.kg import Graph, Slices
    from gids.kg.slices import describe
    from gids.units import format_bytes, parse_bytes

    dataset = gids.open(args.dataset)
    queries = dataset.knowledge.queries(args.split)[: args.limit]
    entities = np.ascontiguousarray(queries[:, [0, 2] if args.both_ends else [0]].reshape(-1))
    size_bytes = parse_bytes(args.slice, "slice")
    with (
        Graph(dataset, on_disk=True, atom_cache=args.atom_cache) as graph,
        Slices(graph, args.path, hops=args.hops, slice_bytes=size_bytes) as slices,
    ):
        left = slices.missing(entities)
        for begin in range(0, len(left), STEP_QUERIES):
            slices.ensure(left[begin : begin + STEP_QUERIES])
            if not args.quiet:
                done = min(begin + STEP_QUERIES, len(left))
                Console(stderr=True).print(f"{done:,} of {len(left):,} entities, {slices.num_slices:,} slices")
        figures = slices.figures()
        found = {"path": str(slices.path), "sliced_now": len(left)} | describe(figures)
    if args.json:
        print(json.dumps(found))
        return
    table = Table("figure", "value", "no slicing is below")
    table.add_row("redundancy δ_R", f"{figures.redundancy:.4f}", f"{figures.redundancy_bound:.4f}")
    table.add_row("utilization δ_U", f"{figures.utilization:.4f}", f"{figures.utilization_bound:.4f}")
    table.add_row("score δ_R δ_U", f"{figures.score:.4f}", f"{figures.score_bound:.4f}")
    Console().print(table)
    print(
        f"{slices.path}: {figures.subgraphs:,} subgraphs of {figures.triples:,} triples in {figures.slices:,} slices, "
        f"{format_bytes(figures.disk_bytes)} ({figures.disk_bytes / max(figures.plain_bytes, 1):.3f} of their triples)"
    )
