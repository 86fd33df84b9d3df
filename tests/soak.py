"""Reads random rows with every engine for a given time and compares every byte; keeps the count with the commit.

    python tests/soak.py --minutes 60

Row r of the table is a function of r alone, so that what was read is compared with what is computed, not with a second
read. Engines, options, dims that divide neither block nor page, and failing or slow requests take turns.
"""

from __future__ import annotations

import argparse
import json
import platform
import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import numpy as np

from gids import RowTable, StorageError, Stripe
from gids.storage import FaultOptions, RowReader, StorageOptions, engine_availability

sys.path.insert(0, str(Path(__file__).resolve().parent))
from long_run import ROOT, commit

RECORD = ROOT / "experiments" / "results" / "long" / "soak.json"
NUM_ROWS = 200_000
DIMS = (1, 25, 100, 128, 300, 1024)


def expected(rows: np.ndarray, dim: int) -> np.ndarray:
    """Return what rows hold, ``int32[n, dim]``: a mix of row and column that no shift of bytes leaves unchanged."""
    mixed = rows[:, None].astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + np.arange(dim, dtype=np.uint64)
    return (
        ((mixed ^ (mixed >> np.uint64(29))) * np.uint64(0xBF58476D1CE4E5B9) >> np.uint64(32))
        .astype(np.uint32)
        .view(np.int32)
    )


def make_table(directory: Path, dim: int) -> RowTable:
    """Write a table of such rows."""
    num_rows = max(1000, min(NUM_ROWS, (256 << 20) // (4 * dim)))
    path = directory / f"rows-{dim}.bin"
    with path.open("wb") as file:
        for begin in range(0, num_rows, 10_000):
            file.write(expected(np.arange(begin, min(begin + 10_000, num_rows)), dim).tobytes())
    return RowTable(f"rows-{dim}", "int32", dim, num_rows, 4 * dim, (Stripe(path, 0, num_rows),), num_rows)


def options_of(chance: random.Random, engine: str) -> StorageOptions:
    """Choose options; one reader in three has requests that fail, fall short or come late."""
    fault = None
    if chance.random() < 1 / 3:
        fault = chance.choice(
            [
                FaultOptions(fail_at=chance.randrange(200)),
                FaultOptions(short_at=chance.randrange(200), short_bytes=512),
                FaultOptions(delay_us=chance.randrange(300), reorder=True),
            ]
        )
    gap = chance.choice([None, 0, 4096, 65536])
    return StorageOptions(
        engine=engine, queue_depth=chance.choice([1, 8, 128]), threads=1, merge_gap_bytes=gap, fault=fault
    )


def main() -> int:
    """Read until the time is over; return 1 at the first wrong byte."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=60, help="how long (default 60)")
    parser.add_argument("--directory", type=Path, help="on the device to read from (default: a temporary one)")
    parser.add_argument("--seed", type=int, default=int(time.time()) % 2**31)
    args = parser.parse_args()
    chance, order = random.Random(args.seed), np.random.default_rng(args.seed)
    engines = [name for name, refusal in engine_availability().items() if not refusal and name not in ("gds", "nvme")]
    rows_read: Counter[str] = Counter()
    errors = 0
    begun = time.time()
    with tempfile.TemporaryDirectory(dir=args.directory, prefix="gids-soak-") as directory:
        tables = [make_table(Path(directory), dim) for dim in DIMS]
        while time.time() < begun + 60 * args.minutes:
            table, engine = chance.choice(tables), chance.choice(engines)
            with RowReader(table, options_of(chance, engine)) as reader:
                for _ in range(20):
                    rows = order.integers(0, table.num_rows, chance.choice([1, 100, 5000, 20_000]))
                    try:
                        got = reader.read(rows).numpy()
                    except StorageError as error:
                        errors += 1
                        if error.errno != 5 or error.path != str(table.stripes[0].path):
                            raise
                        continue
                    wrong = np.flatnonzero((got != expected(rows, table.dim)).any(axis=1))
                    if len(wrong):
                        print(f"row {rows[wrong[0]]} of {table.name} is wrong with {engine}, seed {args.seed}")
                        return 1
                    rows_read[engine] += len(rows)
            if sum(rows_read.values()) % 50 == 0:
                print(f"\r{sum(rows_read.values()):,} rows verified", end="", flush=True)
    record = {
        "commit": commit(),
        "kernel": platform.release(),
        "seed": args.seed,
        "minutes": round((time.time() - begun) / 60, 2),
        "rows_verified": sum(rows_read.values()),
        "by_engine": dict(rows_read),
        "errors_asked_for": errors,
        "wrong": 0,
    }
    RECORD.write_text(json.dumps(record, indent=1) + "\n")
    print(
        f"\n{record['rows_verified']:,} rows verified in {record['minutes']} minutes, none wrong; kept in {RECORD.relative_to(ROOT)}"
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
