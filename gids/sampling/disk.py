"""Topology on disk: packed offsets and the most useful neighbour lists in memory, the rest read when it is sampled."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from gids import _native
from gids.dataset.rows import StoredOffsets, as_tensor, read_rows
from gids.errors import ConfigError, DatasetError
from gids.storage import RowReader, StorageOptions
from gids.table import RowTable, Stripe

Array = npt.NDArray[Any]

#: Values that are read and kept together: a cache line of them.
GRANULE_BYTES = 64
_PIECE_ROWS = 1 << 20
_LEAST_CACHE_BYTES = 64 << 10
_LEAST_STAGING_BYTES = 64 << 10


class PositionReader:
    """Reads values of a one-column table by edge position, bypassing the page cache.

    Any number of threads may read at once; those that wait at the same time share a sweep over the file. Few values at
    a time come in pieces of lists, which are kept in the cache; many are picked out of the sweep and pass it by.

    Parameters
    ----------
    table : RowTable
        Neighbours, edge ids, weights or times.
    options : StorageOptions
        Engine, depth and staging memory.
    cache_bytes : int
        Memory for pieces of lists that were read.
    group_bytes : int
        Memory for pieces that are being read.
    """

    def __init__(self, table: RowTable, options: StorageOptions, *, cache_bytes: int, group_bytes: int) -> None:
        if table.dim != 1:
            raise ConfigError(f"{table.name} must have dim 1 to be read by edge position (got {table.dim})")
        if table.dtype not in ("int32", "int64", "float32"):
            raise ConfigError(f"{table.name} must be int32, int64 or float32 (got {table.dtype})")
        self.table = table
        granules, items = granule_table(table)
        tail = read_rows(table, granules.num_rows * items).reshape(-1)
        self.granules: RowReader | None = None
        small = _small_reads(options) if cache_bytes >= _LEAST_CACHE_BYTES else None
        if small is not None:
            options = replace(options, staging_bytes=options.staging_bytes - small.staging_bytes)
        self.values = RowReader(table, options)
        try:
            if small is not None:
                self.granules = RowReader(granules, small)
        except BaseException:
            self.values.close()
            raise
        self.native = _native.PositionReader(
            self.values._native,
            None if self.granules is None else self.granules._native,
            table.dtype,
            items,
            table.num_rows,
            tail,
            cache_bytes,
            group_bytes,
        )

    def __call__(self, positions: npt.NDArray[np.int64], out: Array) -> None:
        """Fill ``out[i]`` with the value at ``positions[i]``."""
        self.native.read(positions, out)

    def stats(self) -> dict[str, int]:
        """Return what was asked for, found and read since the opening."""
        counts = self.values.stats()
        if self.granules is not None:
            counts = {name: count + counts[name] for name, count in self.granules.stats().items()}
        return counts | self.native.stats()

    def resident_bytes(self) -> int:
        """Return the memory that the reader holds at rest."""
        return sum(reader.options.staging_bytes for reader in self._readers()) + self.native.bytes

    def close(self) -> None:
        """Release buffers and files."""
        for reader in self._readers():
            reader.close()

    def _readers(self) -> list[RowReader]:
        return [self.values] if self.granules is None else [self.values, self.granules]


def _small_reads(options: StorageOptions) -> StorageOptions | None:
    """Return how pieces of lists are read beside sweeps: short reads, in a share of the staging; None if too small."""
    staging = options.staging_bytes // 4
    return None if staging < _LEAST_STAGING_BYTES else replace(options, staging_bytes=staging, threads=1)


def granule_table(table: RowTable) -> tuple[RowTable, int]:
    """Return a one-column table seen as rows of a few values each, and how many; the last, short row is left out."""
    items = max(GRANULE_BYTES // table.item_bytes, 1)
    if table.row_stride != table.item_bytes:
        items = 1
    elif len(table.stripes) > 1:
        items = math.gcd(items, table.stripe_rows)
    stripes = tuple(Stripe(s.path, s.data_offset, s.num_rows // items) for s in table.stripes)
    rows = sum(stripe.num_rows for stripe in stripes)
    unit = table.stripe_rows // items if len(stripes) > 1 else max(rows, 1)
    return RowTable(table.name, table.dtype, items, rows, table.row_stride * items, stripes, unit), items


def stream(table: RowTable) -> Iterator[tuple[int, Array]]:
    """Pass over a one-column table in order: (first position, values)."""
    for begin in range(0, table.num_rows, _PIECE_ROWS):
        end = min(begin + _PIECE_ROWS, table.num_rows)
        yield begin, as_tensor(table, read_rows(table, begin, end)).numpy()


def pack_offsets(offsets: Array | StoredOffsets, num_nodes: int, name: str) -> _native.PackedOffsets:
    """Pack the offsets of one relation, piece by piece; what is on disk is read in pieces too."""
    packed = _native.PackedOffsets(num_nodes)
    try:
        for begin in range(0, len(offsets), _PIECE_ROWS):
            packed.append(np.ascontiguousarray(offsets[begin : begin + _PIECE_ROWS], np.int64))
        packed.finish()
    except DatasetError as error:
        raise DatasetError(f"indptr of {name}: {error}") from error
    return packed
