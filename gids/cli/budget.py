"""``gids budget``: say how a loader would divide its memory, and why, by the loader's own code."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING

from gids.cli.generate import count
from gids.cli.tables import add_features, features_of
from gids.units import parse_bytes

if TYPE_CHECKING:
    from gids.budget import Division


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument(
        "dataset", nargs="?", help="directory of the dataset; or describe a table with --rows and --dim"
    )
    parser.add_argument("--budget", help="host memory of the loader (default half of what is available)")
    parser.add_argument("--device-memory", metavar="BYTES", help="divide for device='cuda' with so much device memory")
    parser.add_argument("--seeds", default="train", help="split whose nodes are the seeds (default train)")
    parser.add_argument("--fanouts", type=int, nargs="+", default=[10, 10], help="outermost first (default 10 10)")
    parser.add_argument("--batch-size", type=int, default=1024, help="seeds of a batch (default 1024)")
    parser.add_argument("--seed", type=int, default=0, help="of the loader (default 0)")
    add_features(parser, "fetch")
    ranks = ["visits", "pagerank", "degree", "counted", "random"]
    parser.add_argument("--host-rank", choices=ranks, help="ranking of the host buffer's rows (default visits)")
    for name in ("cache", "host-buffer", "groups", "staging"):
        parser.add_argument(f"--{name}", metavar="BYTES", help=f"fix the memory for {name.replace('-', ' ')}")
    parser.add_argument("--window", type=int, help="fix the batches to look ahead")
    parser.add_argument("--sweep-batches", type=int, help="fix the most batches that share each read")
    parser.add_argument("--spill", metavar="BYTES", help="disk space that rows may be spilled to, where that pays")
    parser.add_argument("--spill-dir", metavar="DIR", help="where (default beside the table)")
    parser.add_argument(
        "--spill-batches", type=int, metavar="S", help="batches that a pass serves, whether it pays or not"
    )
    described = parser.add_argument_group("instead of a dataset, a table that is only described")
    described.add_argument("--rows", type=count, help="rows of the table, e.g. 269M")
    described.add_argument("--dim", type=int, help="values in a row")
    described.add_argument("--dtype", default="float32", help="of the values (default float32)")
    described.add_argument("--batch-rows", type=count, help="rows that a batch asks for, e.g. 1M")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> None:
    """Divide, and print."""
    division = _of_description(args) if args.dataset is None else _of_dataset(args)
    if args.json:
        print(json.dumps(division.as_dict(), indent=2))
        return
    print(division.allotment)
    print(
        f"window {division.window}, {division.group_batches} batches a group, {division.sweep_groups} groups share reads"
    )
    print(f"prefetch {division.prefetch}, {division.groups_in_flight} groups in flight")
    for reason in division.reasons:
        print(reason)


def _of_dataset(args: argparse.Namespace) -> Division:
    """Divide as the loader of a dataset does, with its profile."""
    import gids

    dataset = gids.open(args.dataset)
    loader = gids.Loader(
        dataset,
        args.seeds,
        fanouts=args.fanouts,
        batch_size=args.batch_size,
        order=gids.OrderOptions(seed=args.seed),
        features=features_of(dataset, args.features, args.edge_features),
        budget=args.budget,
        memory=_memory(args),
        pipeline=gids.PipelineOptions(window=args.window, sweep_batches=args.sweep_batches),
        spill=_spill(args),
    )
    with loader:
        return loader.foresee(device_bytes=_device_bytes(args))


def _of_description(args: argparse.Namespace) -> Division:
    """Divide by rule for a table that is only described: no profile, no files."""
    from pathlib import Path

    import gids
    from gids.budget import Demand, Memory, Pace, TableDemand, default_budget, divide
    from gids.cuda.backend import cuda_pace
    from gids.errors import ConfigError
    from gids.runtime.options import RuntimeOptions
    from gids.storage.curve import DEFAULT_CURVE
    from gids.types import TableKey

    if None in (args.rows, args.dim, args.batch_rows):
        raise ConfigError("dataset must be given, or --rows, --dim and --batch-rows to describe a table")
    if args.spill is not None:
        raise ConfigError("spill needs a dataset: whether it pays is decided by a profile (got a described table)")
    rows: int = args.rows
    bare = gids.RowTable("feat", args.dtype, args.dim, 0, 1 << 40, (gids.Stripe(Path("feat"), 0, 0),), 1)
    table = gids.RowTable(
        "feat", args.dtype, args.dim, rows, bare.row_bytes, (gids.Stripe(Path("feat"), 0, rows),), max(rows, 1)
    )
    key = TableKey("_N", "feat")
    pipeline = gids.PipelineOptions(window=args.window, sweep_batches=args.sweep_batches)
    options = RuntimeOptions(budget=args.budget, memory=_memory(args), pipeline=pipeline)
    device = _device_bytes(args)
    host = default_budget() if args.budget is None else parse_bytes(args.budget, "budget")
    return divide(
        Memory(host, device),
        Demand({key: TableDemand.of(table, args.batch_rows, table.item_bytes)}),
        {key: table},
        options.request(),
        Pace(pipeline.prefetch, pipeline.groups_in_flight) if device is None else cuda_pace(pipeline, options.reading),
        curve=DEFAULT_CURVE,
    )


def _memory(args: argparse.Namespace):  # type: ignore[no-untyped-def]
    import gids

    return gids.MemoryOptions(
        cache=args.cache,
        host_buffer=args.host_buffer,
        groups=args.groups,
        staging=args.staging,
        host_rank=args.host_rank,
    )


def _spill(args: argparse.Namespace):  # type: ignore[no-untyped-def]
    import gids
    from gids.errors import ConfigError

    if args.spill is not None:
        return gids.SpillOptions(args.spill, args.spill_dir, batches=args.spill_batches)
    if args.spill_dir is not None or args.spill_batches is not None:
        raise ConfigError("spill must be given with --spill-dir and --spill-batches (got none)")
    return None


def _device_bytes(args: argparse.Namespace) -> int | None:
    return None if args.device_memory is None else parse_bytes(args.device_memory, "device_memory")
