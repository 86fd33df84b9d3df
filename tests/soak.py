"""Reads random rows with every engine for a given time and compares every byte; keeps the counts with the commit.

    python tests/soak.py --minutes 60

Row r of a table is a function of r alone, so that what was read is compared with what is computed, not with a second
read. Engines, options, dims that divide neither block nor page, and failing, short, late or reordered requests take
turns: readers of tables, readers of QEMU's NVMe drives where there is QEMU, and whole loaders over a file system that
fails on demand where one can be mounted. An error must be one that was asked for, and name its file. Every run is added
to experiments/results/long/soak.json, with its commit; ``rows_verified`` there is the sum.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import importlib.util
import json
import platform
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import gids
from gids import RowTable, StorageError, Stripe
from gids.generate import communities
from gids.storage import FaultOptions, RowReader, StorageOptions, engine_availability

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tests.faultfs import CannotMount, Mounted, mount
from tests.long_run import ROOT, commit

RECORD = ROOT / "experiments" / "results" / "long" / "soak.json"
TABLE_BYTES = 48 << 20
DIMS = (1, 3, 25, 100, 128, 300, 1024)
REQUESTS = (1, 100, 5000, 400_000, 1_000_000, 1_000_000)
MAX_ROW_BYTES = 64 << 20  # of one request
LOADER_NODES, LOADER_DIM = 30_000, 33


class Wrong(Exception):
    """A row that is not what it should be, or an error that nobody asked for."""


def expected(rows: np.ndarray, dim: int) -> np.ndarray:
    """Return what rows hold, ``int32[n, dim]``: a mix of row and column that no shift of bytes leaves unchanged."""
    mixed = rows[:, None].astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + np.arange(dim, dtype=np.uint64)
    return (
        ((mixed ^ (mixed >> np.uint64(29))) * np.uint64(0xBF58476D1CE4E5B9) >> np.uint64(32))
        .astype(np.uint32)
        .view(np.int32)
    )


def make_table(directory: Path, dim: int, table_bytes: int = TABLE_BYTES) -> tuple[RowTable, np.ndarray]:
    """Write a table of such rows; return it and what it should hold."""
    num_rows = table_bytes // (4 * dim)
    path = directory / f"rows-{dim}.bin"
    values = np.concatenate(
        [expected(np.arange(at, min(at + 10_000, num_rows)), dim) for at in range(0, num_rows, 10_000)]
    )
    values.tofile(path)
    return RowTable(f"rows-{dim}", "int32", dim, num_rows, 4 * dim, (Stripe(path, 0, num_rows),), num_rows), values


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
    gap = chance.choice([None, None, 0, 4096, 65536])
    depth, threads = chance.choice([(1, 1), (8, 1), (128, 1), (32, 2)])
    return StorageOptions(engine=engine, queue_depth=depth, threads=threads, merge_gap_bytes=gap, fault=fault)


class Soak:
    """Counts what was read, by engine, and the errors that were asked for."""

    def __init__(self, seed: int):
        self.chance, self.order = random.Random(seed), np.random.default_rng(seed)
        self.rows: Counter[str] = Counter()
        self.errors: Counter[str] = Counter()

    def failed(self, error: StorageError, paths: list[Path], where: str) -> None:
        """Count an error that was asked for; raise Wrong for any other, and for one that does not name its file."""
        if error.errno != errno.EIO or error.path not in map(str, paths):
            raise Wrong(f"{where}: not the error that was asked for: {error!r} of {error.path}") from error
        self.errors[where] += 1

    def tables(self, tables: list[tuple[RowTable, np.ndarray]], engine: str, open_reader: Any = RowReader) -> None:
        """Read a table with one reader, some requests after each other."""
        table, values = self.chance.choice(tables)
        options = options_of(self.chance, engine)
        with open_reader(table, options) as reader:
            # One read per row, or late reads, would take all the time: many rows only where neither is.
            slow = options.merge_gap_bytes == 0 or (options.fault is not None and options.fault.delay_us > 0)
            most = 5000 if slow else MAX_ROW_BYTES // table.row_bytes
            for _ in range(8):
                rows = self.order.integers(0, table.num_rows, min(self.chance.choice(REQUESTS), most))
                try:
                    got = reader.read(rows).numpy()
                except StorageError as error:
                    if options.fault is None or options.fault.fail_at < 0:
                        raise Wrong(f"{engine}: {error!r} though nothing was to fail") from error
                    self.failed(error, [stripe.path for stripe in table.stripes], engine)
                    continue
                right = np.take(values, rows, axis=0)
                if not np.array_equal(got, right):
                    row = rows[np.flatnonzero((got != right).any(axis=1))[0]]
                    raise Wrong(f"row {row} of {table.name} is wrong with {engine}, {options}")
                self.rows[engine] += len(rows)

    def loader(self, mounted: Mounted, values: np.ndarray, engine: str) -> None:
        """Run epochs of a loader over the file system that fails on demand."""
        dataset = gids.open(mounted.path / "graph")
        features = dataset.feature_table().stripes[0].path
        storage = StorageOptions(engine=engine, threads=1)
        pipeline = gids.PipelineOptions(sweep_batches=self.chance.choice([1, 4, None]))
        memory = gids.MemoryOptions(cache=self.chance.choice(["64KiB", "1MiB"]), host_buffer="256KiB")
        with gids.Loader(
            dataset, "train", fanouts=[10, 10], batch_size=512, budget="64MiB",
            storage=storage, pipeline=pipeline, memory=memory, order=gids.OrderOptions(seed=self.chance.randrange(1000)),
        ) as loader:  # fmt: skip
            loader.prepare()
            for _ in range(4):
                at = self.chance.randrange(LOADER_NODES * LOADER_DIM * 4)
                rule: dict[str, object] = {"name": features.name, "begin": at, "end": at + 4096}
                rule |= self.chance.choice(
                    [{"do": "error"}, {"do": "short"}, {"do": "delay", "seconds": 0.05}, {"do": "none"}]
                )
                mounted.set(rule)
                try:
                    for batch in loader:
                        nodes = batch.input_nodes.numpy()
                        if not np.array_equal(batch.x.numpy(), values[nodes]):
                            raise Wrong(f"a batch of the loader is wrong with {engine}, {rule}")
                        self.rows[f"loader, {engine}"] += len(nodes)
                except StorageError as error:
                    if rule["do"] != "error":
                        raise Wrong(f"{error!r} with {rule}") from error
                    self.failed(error, [features], f"loader, {engine}")
                mounted.set()


@contextlib.contextmanager
def loader_turn(soak: Soak, directory: Path, engines: list[str]) -> Iterator[Callable[[], None] | None]:
    """Make what runs a loader over the file system that fails on demand; None where nothing can be mounted."""
    (directory / "below").mkdir()
    dataset = communities(directory / "below" / "graph", num_nodes=LOADER_NODES, degree=8, dim=LOADER_DIM, train=0.3)
    values = np.fromfile(dataset.feature_table().stripes[0].path, np.float32).reshape(-1, LOADER_DIM)
    try:
        with mount(directory / "below") as mounted:
            yield lambda: soak.loader(mounted, values, soak.chance.choice(engines))
    except CannotMount as reason:
        print(f"no loader over a file system that fails: {reason}")
        yield None


@contextlib.contextmanager
def nvme_turn(soak: Soak, directory: Path) -> Iterator[Callable[[], None] | None]:
    """Make what reads from QEMU's drives; None where there is no QEMU."""
    if shutil.which("qemu-system-x86_64") is None:
        print("no drives: qemu-system-x86_64 is not installed")
        yield None
        return
    spec = importlib.util.spec_from_file_location("nvme_qemu", ROOT / "tests" / "nvme" / "qemu.py")
    assert spec is not None
    assert spec.loader is not None
    sys.modules["nvme_qemu"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules["nvme_qemu"])
    from tests.nvme.test_engine import Disk

    (directory / "nvme").mkdir()
    disk = Disk(directory / "nvme")
    tables = [make_table(directory / "nvme", dim, 4 << 20) for dim in (25, 1024)]

    def turn() -> None:
        disk.recycle()
        soak.tables(tables, "nvme", disk.reader)

    try:
        yield turn
    finally:
        disk.close()


def keep(run: dict[str, object]) -> int:
    """Add a run to the record; return the rows of all of them."""
    kept = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    runs = [*kept.get("runs", []), run]
    total = sum(each["rows_verified"] for each in runs)
    wrong = [each["wrong"] for each in runs if each.get("wrong")]
    RECORD.write_text(json.dumps({"rows_verified": total, "wrong": wrong, "runs": runs}, indent=1) + "\n")
    return total


def main() -> int:
    """Read until the time is over; return 1 at the first wrong byte."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=60, help="how long (default 60)")
    parser.add_argument("--directory", type=Path, help="on the device to read from (default: a temporary one)")
    parser.add_argument("--seed", type=int, default=int(time.time()) % 2**31)
    args = parser.parse_args()
    soak, begun, checked_out = Soak(args.seed), time.time(), commit()
    engines = [name for name, refusal in engine_availability().items() if not refusal and name not in ("gds", "nvme")]
    found_wrong = ""
    with contextlib.ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=args.directory, prefix="gids-soak-")))
        tables = [make_table(directory, dim) for dim in DIMS]
        below = [name for name in engines if name in ("uring", "pread")]
        rare = [
            turn
            for turn in (
                stack.enter_context(loader_turn(soak, directory, below)),
                stack.enter_context(nvme_turn(soak, directory)),
            )
            if turn is not None
        ]
        while time.time() < begun + 60 * args.minutes:
            try:
                if rare and soak.chance.random() < 0.05:
                    soak.chance.choice(rare)()
                else:
                    soak.tables(tables, soak.chance.choice(engines))
            except Wrong as wrong:
                found_wrong = str(wrong)
                break
            print(f"\r{sum(soak.rows.values()):,} rows verified", end="", flush=True)
    run = {
        "commit": checked_out,
        "time_utc": time.strftime("%Y-%m-%d %H:%M", time.gmtime(begun)),
        "kernel": platform.release(),
        "seed": args.seed,
        "minutes": round((time.time() - begun) / 60, 2),
        "rows_verified": sum(soak.rows.values()),
        "by_engine": dict(soak.rows.most_common()),
        "errors_asked_for": dict(soak.errors.most_common()),
        "wrong": found_wrong,
    }
    total = keep(run)
    if found_wrong:
        print(f"\n{found_wrong}; seed {args.seed}; kept in {RECORD.relative_to(ROOT)}")
        return 1
    print(
        f"\n{run['rows_verified']:,} rows verified in {run['minutes']} minutes, none wrong; {total:,} in all runs, "
        f"kept in {RECORD.relative_to(ROOT)}"
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
