"""The read planner as Python sees it: pure, without I/O, the same code that the reader runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from gids import _native
from gids.errors import ConfigError
from gids.table import RowTable

Int64Array = npt.NDArray[np.int64]


@dataclass(frozen=True)
class PlanLimits:
    """What a device asks of reads.

    Attributes
    ----------
    block_bytes : int
        Offsets and lengths are multiples of it; a power of two.
    merge_gap_bytes : int
        Ranges at most this far apart become one read.
    max_io_bytes : int
        No read is longer.
    """

    block_bytes: int = 512
    merge_gap_bytes: int = 0
    max_io_bytes: int = 128 << 10


class Read(NamedTuple):
    """One byte range of one file, and the rows that it serves, by their place in the sorted order."""

    file: int
    offset: int
    length: int
    first: int
    num_rows: int


@dataclass(frozen=True)
class ReadPlan:
    """Which byte ranges to read for a list of rows.

    Attributes
    ----------
    rows : int64[num_rows]
        The rows in the order of (file, offset), duplicates included.
    positions : int64[num_rows]
        Where each of them stands in the caller's list.
    file, offset, length : int64[num_reads]
        The reads, in the order in which they are submitted.
    first, count : int64[num_reads]
        A read serves ``rows[first : first + count]``.
    row_begin, row_end : int64[num_reads]
        The bytes of those rows that it serves: all, except for rows longer than ``max_io_bytes``.
    num_unique : int
        Distinct rows.
    """

    rows: Int64Array
    positions: Int64Array
    file: Int64Array
    offset: Int64Array
    length: Int64Array
    first: Int64Array
    count: Int64Array
    row_begin: Int64Array
    row_end: Int64Array
    num_unique: int

    @property
    def num_rows(self) -> int:
        """Rows asked for, duplicates included."""
        return len(self.rows)

    @property
    def num_reads(self) -> int:
        """Reads that the device will see."""
        return len(self.offset)

    @property
    def total_bytes(self) -> int:
        """Bytes that the device will deliver."""
        return int(self.length.sum())

    @property
    def reads(self) -> list[Read]:
        """The reads one by one; for tests and for people."""
        columns = (self.file, self.offset, self.length, self.first, self.count)
        return [Read(*values) for values in zip(*(column.tolist() for column in columns), strict=True)]


def native_layout(table: RowTable) -> _native.TableLayout:
    """Return the table as the native code knows it."""
    files = [(str(stripe.path), stripe.data_offset, stripe.num_rows) for stripe in table.stripes]
    return _native.TableLayout(files, table.num_rows, table.row_bytes, table.row_stride, table.stripe_rows)


def as_rows(rows: object) -> Int64Array:
    """Return rows as a contiguous int64 array; without a copy where they are one."""
    if isinstance(rows, torch.Tensor):
        rows = rows.detach().cpu().numpy()
    array = np.asarray(rows)
    if array.size == 0:
        array = array.astype(np.int64)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise ConfigError(f"rows must be one-dimensional integers (got shape {array.shape}, dtype {array.dtype})")
    return np.ascontiguousarray(array, dtype=np.int64)


def plan_reads(table: RowTable, rows: object, limits: PlanLimits | None = None) -> ReadPlan:
    """Plan the reads for some rows of a table: sorted, without duplicates, merged, aligned, spread over stripes.

    Parameters
    ----------
    table : RowTable
        Its files need not exist.
    rows : array or tensor of integers [n]
        Any order, duplicates allowed.
    limits : PlanLimits, optional
        What the device asks for.
    """
    limits = limits or PlanLimits()
    plan = _native.plan_reads(
        native_layout(table), as_rows(rows), limits.block_bytes, limits.merge_gap_bytes, limits.max_io_bytes, None
    )
    return ReadPlan(
        rows=plan.rows,
        positions=plan.positions,
        file=plan.file,
        offset=plan.offset,
        length=plan.length,
        first=plan.first,
        count=plan.count,
        row_begin=plan.row_begin,
        row_end=plan.row_end,
        num_unique=plan.num_unique,
    )
