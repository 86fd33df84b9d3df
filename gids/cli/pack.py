"""``gids pack``: sample epochs before training and lay their rows out as they will be read."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING, Any

from gids.cli.tables import add_features, features_of
from gids.units import format_bytes

if TYPE_CHECKING:
    from gids.dataset.packed import Packed
    from gids.pack.forecast import Forecast


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.epilog = "Then: gids.Loader(DATASET, packed=OUT). A killed run goes on where it was when the same command is given again."
    parser.add_argument("dataset", help="directory of the dataset")
    parser.add_argument("out", help="directory to make (with --plan: on its disk)")
    parser.add_argument("--seeds", default="train", help="split whose nodes are the seeds (default train)")
    parser.add_argument("--fanouts", type=int, nargs="+", default=[10, 10], help="outermost first (default 10 10)")
    kinds = ["neighbor", "ladies", "shadow", "labor"]
    parser.add_argument(
        "--sampler", choices=kinds, default="neighbor", help="sampler of the fan-outs (default neighbor)"
    )
    parser.add_argument("--batch-size", type=int, default=1024, help="seeds of a batch (default 1024)")
    parser.add_argument("--seed", type=int, default=0, help="of the loader (default 0)")
    parser.add_argument("--no-shuffle", action="store_true", help="take the seeds in their order")
    add_features(parser, "pack")
    parser.add_argument("--world-size", type=int, default=1, help="ranks whose batches are packed (default 1)")
    parser.add_argument("--epochs", type=int, default=1, help="different epochs to pack (default 1)")
    parser.add_argument(
        "--reuse", action="store_true", help="let training use them again and again: it sees no other samples then"
    )
    parser.add_argument(
        "--disk", help="most disk space, also while packing: bytes (64GiB) or a multiple of the tables (3x)"
    )
    parser.add_argument("--budget", help="memory of the loader in training (default half of what is available)")
    parser.add_argument("--hot", help="memory of the most wanted rows (default what that budget leaves)")
    parser.add_argument("--memory", default="1GiB", help="memory for packing (default 1GiB)")
    parser.add_argument("--topology", choices=["memory", "disk"], default="memory", help="where the graph is sampled")
    parser.add_argument("--plan", action="store_true", help="pack nothing: say what it would take and when it pays")
    parser.add_argument("--json", action="store_true", help="one JSON object for machines")
    parser.add_argument("--quiet", action="store_true", help="no progress bars")


def run(args: argparse.Namespace) -> None:
    """Pack, or say what it would take."""
    from gids.dataset import open_dataset
    from gids.dataset.progress import progress_bars
    from gids.pack import pack
    from gids.pack.forecast import forecast
    from gids.runtime.options import OrderOptions

    ranks = {} if args.world_size == 1 else {"rank": 0, "world_size": args.world_size}
    dataset = open_dataset(args.dataset)
    arguments: dict[str, Any] = {
        "seeds": args.seeds,
        **_sampler(args),
        "batch_size": args.batch_size,
        "order": OrderOptions(shuffle=not args.no_shuffle, seed=args.seed, **ranks),
        "features": features_of(dataset, args.features, args.edge_features),
        "topology": args.topology,
        "epochs": args.epochs,
        "reuse": args.reuse,
        "disk": args.disk,
        "budget": args.budget,
        "hot": args.hot,
        "memory": args.memory,
    }
    if args.plan:
        _print_forecast(forecast(dataset, args.out, **arguments), args.json)
        return
    with progress_bars(not (args.quiet or args.json)) as progress:
        packed = pack(dataset, args.out, progress=progress, **arguments)
    if args.json:
        print(json.dumps(summary(packed), indent=2))
    else:
        print_summary(packed)


def _sampler(args: argparse.Namespace) -> dict[str, Any]:
    if args.sampler == "neighbor":
        return {"fanouts": args.fanouts}
    from gids.sampling import LaborSampler, LadiesSampler, ShadowSampler

    kinds = {"ladies": LadiesSampler, "shadow": ShadowSampler, "labor": LaborSampler}
    return {"sampler": kinds[args.sampler](args.fanouts, edge_ids=bool(args.edge_features))}


def summary(packed: Packed) -> dict[str, Any]:
    """Collect what packed epochs hold, in values that JSON knows."""
    return {
        "path": str(packed.path),
        "dataset": packed.dataset_id,
        "epochs": packed.epochs,
        "reuse": packed.reuse,
        "batches": packed.batches,
        "segment_batches": packed.segment_batches,
        "bytes": packed.size_bytes,
        "identity": packed.identity,
        "tables": {
            str(key): {
                "rows": entry.table.num_rows,
                "hot_rows": entry.hot_rows,
                "dim": entry.table.dim,
                "dtype": entry.table.dtype,
                "bytes": entry.table.total_bytes,
            }
            for key, entry in packed.tables.items()
        },
        "facts": packed.facts,
    }


def print_summary(packed: Packed) -> None:
    """Write it for people."""
    facts = packed.facts
    again = ", which training uses again and again" if packed.reuse else ""
    print(
        f"{packed.path}: {packed.epochs} epochs of {packed.batches} batches{again}, {format_bytes(packed.size_bytes)}"
    )
    for key, entry in packed.tables.items():
        hot = format_bytes(entry.hot_rows * entry.table.row_bytes)
        print(f"{key}: {entry.table.num_rows:,} rows on disk, the first {entry.hot_rows:,} ({hot}) for memory")
    if packed.segment_batches > 1:
        print(f"segments of {packed.segment_batches} batches share what they have in common")
    shown = list(enumerate(facts["read_amplification"]))
    for epoch, amplification in shown[:10]:
        asked, disk = facts["asked_bytes"][epoch], facts["disk_bytes"][epoch]
        print(
            f"epoch {epoch}: {format_bytes(disk)} from disk of {format_bytes(asked)} asked for, "
            f"read amplification {amplification:.3f}"
        )
    if len(shown) > 10:
        print(f"... and {len(shown) - 10} more epochs")


def _print_forecast(found: Forecast, as_json: bool) -> None:
    if as_json:
        print(json.dumps(found.as_dict(), indent=2))
        return
    print("\n".join(found.lines()))
