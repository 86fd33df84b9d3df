"""Feature rows without gids: mapped into memory, or loaded whole."""

from __future__ import annotations

import mmap
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from gids.table import RowTable


def map_rows(table: RowTable, path: Path, *, random: bool) -> Tensor:
    """Map a table as ``numpy.memmap`` does; ``random`` tells the kernel not to read ahead."""
    with path.open("rb") as file:
        # Private and writable: torch warns of arrays that it must not write to. Nothing is written.
        mapping = mmap.mmap(file.fileno(), 0, flags=mmap.MAP_PRIVATE)
    if random:
        mapping.madvise(mmap.MADV_RANDOM)
    values = np.frombuffer(mapping, table.dtype, table.num_rows * table.dim, table.stripes[0].data_offset)
    return torch.from_numpy(values.reshape(table.num_rows, table.dim))


def load_rows(table: RowTable, path: Path) -> Tensor:
    """Read a whole table into memory."""
    offset, count = table.stripes[0].data_offset, table.num_rows * table.dim
    return torch.from_numpy(np.fromfile(path, table.dtype, count, offset=offset).reshape(-1, table.dim))
