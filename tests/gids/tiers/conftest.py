"""A table in memory and a reader of it, so that plans and copies are tested without a disk."""

from pathlib import Path

import pytest
import torch

from gids import RowTable, Stripe
from gids.errors import StorageError


class Done:
    def __init__(self, error=None):
        self.error = error

    def wait(self):
        if self.error is not None:
            raise self.error


class MemoryReader:
    """Reads rows of a tensor; counts them; fails when told to."""

    def __init__(self, values):
        self.values = values
        self.rows_read = 0
        self.fail_next = False

    def submit(self, rows, out, dtype=None, places=None):
        if self.fail_next:
            self.fail_next = False
            return Done(StorageError("read failed", "memory", 0, 0, 5))
        assert torch.equal(rows, rows.unique())  # sorted, each row once
        if places is None:
            out.copy_(self.values[rows])
        else:
            out[torch.from_numpy(places).long()] = self.values[rows]
        self.rows_read += len(rows)
        return Done()


def make_values(num_rows, dim, dtype):
    generator = torch.Generator().manual_seed(7)
    if dtype.is_floating_point:
        return torch.randn(num_rows, dim, generator=generator).to(dtype)
    info = torch.iinfo(dtype)
    return torch.randint(max(info.min, -(2**40)), min(info.max, 2**40), (num_rows, dim), generator=generator).to(dtype)


def make_table(num_rows, dim, dtype="float32"):
    values = make_values(num_rows, dim, getattr(torch, dtype))
    row_bytes = values.element_size() * dim
    table = RowTable("t", dtype, dim, num_rows, row_bytes, (Stripe(Path("memory"), 0, num_rows),), num_rows)
    return table, values


@pytest.fixture
def batches_of():
    """Batches of unique rows, skewed so that some repeat."""

    def make(count, size, num_rows, seed=0):
        generator = torch.Generator().manual_seed(seed)
        weights = 1 / torch.arange(1, num_rows + 1)
        return [torch.multinomial(weights, min(size, num_rows), generator=generator) for _ in range(count)]

    return make
