"""Rows that say whose they are, the same bits on every machine: made of whole numbers, not by a processor's sine.

PyTorch takes sines from MKL, which takes other code, and rounds other values otherwise, on other processors: digests of
batches that hold such rows differ with the machine, whatever loaded them.
"""

import torch
from torch import Tensor

#: Below 2**24 every whole number is a float32.
_VALUES = 1 << 24


def rows_of(ids: Tensor, dim: int, offset: float) -> Tensor:
    """Row of id ``i``: ``i + offset`` in the first column and a hash of ``i``, ``offset`` and the column in the others."""
    columns = torch.arange(1, dim)
    hashed = (ids[:, None] * 1_000_003 + int(offset * 1000) * 7919 + columns * 97_561) * 48_271 % _VALUES
    return torch.cat([ids.float()[:, None] + offset, hashed.float() / _VALUES], dim=1)


def marked_rows(count: int, dim: int, offset: float) -> Tensor:
    """Rows of the ids below ``count``, see :func:`rows_of`."""
    return rows_of(torch.arange(count), dim, offset)
