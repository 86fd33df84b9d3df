"""``gids probe PATH``: measure the device that holds PATH and keep the curve for later runs."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict, replace
from pathlib import Path

from rich.console import Console
from rich.table import Table

from gids.report.provenance import provenance
from gids.storage.curve import DeviceCurve, save_curve
from gids.storage.options import ENGINES
from gids.storage.probe import SCRATCH_BYTES, probe
from gids.storage.reader import choose_engine
from gids.storage.write_probe import probe_writes
from gids.units import format_bytes, parse_bytes

PLOT_WIDTH = 40
COVERAGES = (0.01, 0.025, 0.1, 0.33, 1.0)


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``gids probe``."""
    parser.add_argument("path", type=Path, help="a file or directory on the device; a directory may get a scratch file")
    parser.add_argument("--seconds", type=float, default=4.0, help="time for all measurements together (default 4)")
    parser.add_argument("--engine", choices=ENGINES, default="auto", help="what to measure with")
    parser.add_argument("--scratch", default=str(SCRATCH_BYTES), metavar="SIZE", help="size of a scratch file")
    parser.add_argument(
        "--no-writes", action="store_true", help="only read: do not write 256 MiB to a directory on trial"
    )
    parser.add_argument("--no-save", action="store_true", help="only print; later runs keep what they know")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> int:
    """Probe, store, print."""
    console = Console(stderr=True, quiet=args.json)
    with console.status("probing") as status:
        curve = probe(
            args.path,
            seconds=args.seconds,
            engine=args.engine,
            progress=status.update,
            scratch_bytes=parse_bytes(args.scratch, "--scratch"),
        )
    if args.path.is_dir() and not args.no_writes:
        rates = probe_writes(args.path)
        curve = replace(curve, write_bandwidth=rates.write, read_back_bandwidth=rates.read_back)
    stored = None if args.no_save else str(save_curve(args.path, curve))
    engine, reason = choose_engine(args.engine)
    derived = {
        "engine": engine,
        "engine_reason": reason,
        "peak_iops": curve.peak_iops,
        "best_depth": curve.best_depth,
        "threads": curve.threads,
        "cost": curve.cost._asdict(),
        "merge_gap_bytes": curve.merge_gap_bytes,
        "rows_per_second_1024": {str(share): curve.rows_per_second(1024, share) for share in COVERAGES},
    }
    if args.json:
        print(json.dumps({"curve": asdict(curve), **derived, "stored": stored, "provenance": provenance()}, indent=2))
    else:
        _print(curve)
        print(f"engine {engine}: {reason}")
        print(f"latency {curve.latency_us:.0f} µs, {curve.peak_iops:,.0f} IOPS, {format_bytes(curve.bandwidth)}/s")
        if curve.write_bandwidth is not None and curve.read_back_bandwidth is not None:
            written, back = format_bytes(curve.write_bandwidth), format_bytes(curve.read_back_bandwidth)
            print(f"{written}/s written, read back at {back}/s: what packing and spilling cost")
        cost = curve.cost
        print(f"a read costs {cost.per_read_s * 1e6:.2f} µs and {cost.per_byte_s * (1 << 20) * 1e6:.0f} µs per MiB")
        print(
            f"so: depth {curve.best_depth}, I/O threads {curve.threads}, merge gap {format_bytes(curve.merge_gap_bytes)}"
        )
        expected = (f"{share:.1%} {curve.rows_per_second(1024, share):,.0f}" for share in COVERAGES)
        print(f"1 KiB rows per second to expect, by the share of a table read at once: {', '.join(expected)}")
        print(f"stored in {stored}" if stored else "not stored")
    return 0


def _print(curve: DeviceCurve) -> None:
    console = Console()
    depths = Table(title="4 KiB random reads by depth", title_justify="left")
    blocks = Table(title="random reads by size, at the best depth", title_justify="left")
    for table, first, rates in ((depths, "depth", curve.iops_at_depth), (blocks, "size", curve.iops_at_block)):
        table.add_column(first, justify="right")
        table.add_column("IOPS", justify="right")
        table.add_column("per second", justify="right")
        table.add_column("", min_width=PLOT_WIDTH)
        points = curve.depths if table is depths else curve.blocks
        shown = rates if table is depths else [b * r for b, r in zip(points, rates, strict=True)]
        for point, rate, height in zip(points, rates, shown, strict=True):
            size = curve.block_bytes if table is depths else point
            label = str(point) if table is depths else format_bytes(point)
            bar = "█" * max(1, round(PLOT_WIDTH * height / max(shown)))
            table.add_row(label, f"{rate:,.0f}", f"{format_bytes(size * rate)}/s", bar)
        console.print(table)
