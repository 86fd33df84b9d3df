"""Where the rows of one table are on disk: the only thing that planners and engines need to know about a dataset."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from gids.errors import ConfigError

DTYPES: dict[str, torch.dtype] = {
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float32": torch.float32,
    "float64": torch.float64,
    "uint8": torch.uint8,
    "int8": torch.int8,
    "int16": torch.int16,
    "int32": torch.int32,
    "int64": torch.int64,
}


@dataclass(frozen=True)
class Stripe:
    """One file of a table: ``num_rows`` rows that begin ``data_offset`` bytes into ``path``."""

    path: Path
    data_offset: int
    num_rows: int


@dataclass(frozen=True)
class RowTable:
    """Rows of equal size in one or more files.

    Row ``r`` belongs to unit ``u = r // stripe_rows``; unit ``u`` is in file ``u % len(stripes)`` as that file's
    unit number ``u // len(stripes)``. With one file that is simply row after row.

    Attributes
    ----------
    name : str
        For messages, e.g. ``"paper/feat"``.
    dtype : str
        A key of :data:`DTYPES`.
    dim : int
        Values in a row; 1 for a plain array such as a neighbour list.
    num_rows : int
        Rows over all stripes.
    row_stride : int
        Bytes from one row to the next within a stripe; at least :attr:`row_bytes`.
    stripes : tuple of Stripe
        The files, in order.
    stripe_rows : int
        Rows in a unit.
    held : (int, int), optional
        First row, and one past the last, whose bytes the files have: one node's part of a table that is split over
        several. None is all of them.
    """

    name: str
    dtype: str
    dim: int
    num_rows: int
    row_stride: int
    stripes: tuple[Stripe, ...]
    stripe_rows: int
    held: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise ConfigError(f"dtype of {self.name} must be one of {', '.join(DTYPES)} (got {self.dtype!r})")
        if self.dim < 1:
            raise ConfigError(f"dim of {self.name} must be at least 1 (got {self.dim})")
        if self.num_rows < 0:
            raise ConfigError(f"num_rows of {self.name} must not be negative (got {self.num_rows})")
        if self.row_stride < self.row_bytes:
            raise ConfigError(
                f"row_stride of {self.name} must be at least row_bytes = {self.row_bytes} (got {self.row_stride})"
            )
        if not self.stripes or self.stripe_rows < 1:
            raise ConfigError(f"{self.name} needs at least one stripe file and stripe_rows >= 1")
        if sum(stripe.num_rows for stripe in self.stripes) != self.num_rows:
            raise ConfigError(f"stripes of {self.name} must hold num_rows = {self.num_rows} rows together")
        if self.held is not None and not 0 <= self.held[0] <= self.held[1] <= self.num_rows:
            raise ConfigError(f"held of {self.name} must be a range in [0, {self.num_rows}] (got {self.held})")

    @property
    def item_bytes(self) -> int:
        """Bytes of one value."""
        return DTYPES[self.dtype].itemsize

    @property
    def row_bytes(self) -> int:
        """Bytes of one row, without padding."""
        return self.dim * self.item_bytes

    @property
    def torch_dtype(self) -> torch.dtype:
        """The dtype as torch knows it."""
        return DTYPES[self.dtype]

    @property
    def total_bytes(self) -> int:
        """Bytes of all rows, without padding."""
        return self.num_rows * self.row_bytes

    def check_held(self, first: int, last: int) -> None:
        """Refuse rows of a table of which the files have only others.

        Parameters
        ----------
        first, last : int
            The first and the last of the rows that are wanted.
        """
        if self.held is not None and first <= last and not self.held[0] <= first <= last < self.held[1]:
            raise ConfigError(
                f"rows of {self.name} must be in [{self.held[0]}, {self.held[1]}), which this part of a dataset holds "
                f"(got {first} to {last}): a loader with shards=gids.Shards() takes the others from other nodes"
            )

    def locate(self, row: int) -> tuple[int, int]:
        """Return the stripe number and byte offset of a row."""
        if not 0 <= row < self.num_rows:
            raise ConfigError(f"row of {self.name} must be in [0, {self.num_rows}) (got {row})")
        stripe, offset = self.places(np.array([row]))
        return int(stripe[0]), int(offset[0])

    def places(self, rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the stripe number of every row and the byte at which it begins there; rows must be in range."""
        unit, within = np.divmod(rows, self.stripe_rows)
        local_unit, stripe = np.divmod(unit, len(self.stripes))
        starts = np.array([part.data_offset for part in self.stripes], np.int64)
        return stripe, starts[stripe] + (local_unit * self.stripe_rows + within) * self.row_stride

    def begin_in(self, number: int, local: int) -> int:
        """Return the byte at which row ``local`` of one stripe begins, or would begin if it had so many.

        Parameters
        ----------
        number : int
            Of the stripe.
        local : int
            Position of the row in it.
        """
        return self.stripes[number].data_offset + local * self.row_stride

    def file_bytes(self, number: int) -> int:
        """Return how many bytes the file of stripe ``number`` must have for its rows; the last one needs no padding."""
        rows = self.stripes[number].num_rows
        return self.begin_in(number, rows - 1) + self.row_bytes if rows else 0
