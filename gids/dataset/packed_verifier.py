"""Read packed epochs as a whole and compare them with their checksums."""

from __future__ import annotations

import os

import numpy as np

from gids import _native
from gids.dataset.packed import Packed, PackedReader
from gids.dataset.rows import BLOCK_BYTES, read_rows
from gids.dataset.table_writer import Progress
from gids.dataset.verifier import Problem
from gids.errors import DatasetError
from gids.types import TableKey


def verify_packed(packed: Packed, progress: Progress | None = None) -> list[Problem]:
    """Check every packed row, stored sample and position.

    Damage within one row is pinned to that row; otherwise to the region that was written as one.
    """
    pool = _native.ThreadPool(len(os.sched_getaffinity(0)), "gids-verify")
    problems = [problem for key in packed.tables for problem in _check_rows(packed, key, progress, pool)]
    return problems + _check_batches(packed, progress)


def _check_rows(packed: Packed, key: TableKey, progress: Progress | None, pool: _native.ThreadPool) -> list[Problem]:
    table, problems = packed.tables[key].table, []
    regions = packed.regions(key)
    ends = np.append(regions["begin"][1:], table.num_rows) if len(regions) else np.empty(0, np.int64)
    step = max(1, BLOCK_BYTES // table.row_bytes)
    for region, end in zip(regions, ends, strict=True):
        begin, total = int(region["begin"]), np.zeros(2, np.uint64)
        for first in range(begin, int(end), step):
            last = min(first + step, int(end))
            sums = np.zeros(2, np.uint64)
            _native.row_sums(read_rows(table, first, last).reshape(-1), table.row_bytes, last - first, sums, pool)
            # Rows are numbered within the region, and here within the block.
            total += np.array([sums[0], sums[1] + np.uint64(first - begin) * sums[0]], np.uint64)
        stored = np.array([region["sum"], region["weighted"]], np.uint64)
        if (total != stored).any():
            problems.append(_damage(packed, key, begin, int(end), total - stored))
        if progress is not None:
            progress(table.name, int(end) * table.row_bytes, table.total_bytes)
    return problems


def _damage(packed: Packed, key: TableKey, begin: int, end: int, change: np.ndarray) -> Problem:
    """Name the row whose change explains both sums, or all rows of the region."""
    table = packed.tables[key].table
    numbers = np.arange(1, end - begin + 1, dtype=np.uint64)
    rows = np.flatnonzero(numbers * change[0] == change[1]) if change[0] else np.empty(0, np.int64)
    first, last = (begin + int(rows[0]),) * 2 if len(rows) == 1 else (begin, end - 1)
    where = f"row {first}" if first == last else f"rows {first} to {last}"
    place = f"{table.stripes[0].path}, offset {table.locate(first)[1]}"
    return Problem(table.name, first, last, f"{table.name} is damaged in {where} ({place})")


def _check_batches(packed: Packed, progress: Progress | None) -> list[Problem]:
    reader, problems = PackedReader(packed), []
    try:
        for number, record in enumerate(packed.index):
            epoch, batch = divmod(number, packed.batches)
            if record["sample_bytes"]:
                try:
                    reader.sample(record)
                    positions = reader.positions(record)
                except DatasetError as error:
                    problems.append(Problem("samples", number, number, f"batch {batch} of epoch {epoch}: {error}"))
                    continue
                for key, where in positions.items():
                    rows = packed.tables[key].table.num_rows
                    if len(where) and not (int(where.min()) >= 0 and int(where.max()) < rows):
                        text = f"batch {batch} of epoch {epoch}: positions in {key} must be in [0, {rows})"
                        problems.append(Problem("positions", number, number, text))
            if progress is not None:
                progress("batches", number + 1, len(packed.index))
    finally:
        reader.close()
    return problems
