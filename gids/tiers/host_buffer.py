"""The constant host buffer: the rows most likely to be needed, in host memory for a whole run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gids._native import fill_row_map, row_map_entries
from gids.errors import ConfigError
from gids.table import RowTable


class PendingRows(Protocol):
    """A read under way."""

    def wait(self) -> object:
        """Return when the rows are in place; raise what went wrong."""
        ...

    def cancel(self) -> object:
        """Cancel; nothing is written any more when this returns."""
        ...


class RowSource(Protocol):
    """What the tiers need of a reader (``gids.storage.RowReader``)."""

    def submit(
        self,
        rows: Tensor,
        out: Tensor,
        places: NDArray[np.int32] | None = None,
    ) -> PendingRows:
        """Begin to read ``out[i] = row rows[i]``, or ``out[places[i]]`` where places are given."""
        ...


class Reader(RowSource, Protocol):
    """A source of rows that counts what it read and is closed by whoever reads from it."""

    def stats(self) -> Mapping[str, int]:
        """Return ``reads`` and ``bytes_read`` so far."""
        ...

    def close(self) -> None:
        """Release files and memory."""
        ...


class HostRows:
    """Which rows a host buffer holds: row -> slot, as a hash map in a tensor that processes can share.

    Parameters
    ----------
    rows : Tensor
        int64[H], unique; row ``rows[i]`` is in slot ``i``.
    """

    def __init__(self, rows: Tensor):
        if rows.dtype != torch.int64 or rows.dim() != 1:
            raise ConfigError(f"rows of a host buffer must be a 1-dimensional int64 tensor (got {rows.dtype})")
        if len(rows) and int(rows.min()) < 0:
            raise ConfigError(f"rows of a host buffer must not be negative (got {int(rows.min())})")
        self.rows = rows.contiguous()
        self.entries = torch.empty(2 * row_map_entries(len(rows)), dtype=torch.int64)
        fill_row_map(self.entries.numpy(), self.rows.numpy())

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def nbytes(self) -> int:
        """Bytes of the map and of the list of rows."""
        return self.entries.nbytes + self.rows.nbytes


class HostBuffer:
    """Constant rows of one table in host memory.

    Parameters
    ----------
    index : HostRows
        Which rows.
    values : Tensor
        [H, dim], the rows in the table's dtype.
    """

    def __init__(self, index: HostRows, values: Tensor):
        if len(index) != len(values):
            raise ConfigError(f"values of a host buffer must have {len(index)} rows (got {len(values)})")
        self.index = index
        self.values = values

    def __len__(self) -> int:
        return len(self.index)

    @property
    def nbytes(self) -> int:
        """Bytes of rows and lookup map."""
        return self.values.nbytes + self.index.nbytes

    @classmethod
    def load(cls, table: RowTable, reader: RowSource, rows: Tensor) -> HostBuffer:
        """Read ``rows`` of ``table``; they are kept in row order, so that the read is sequential where it can be."""
        index = HostRows(rows.sort().values)
        values = torch.empty(len(index), table.dim, dtype=table.torch_dtype)
        if len(index):
            reader.submit(index.rows, values).wait()
        return cls(index, values)
