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

    def cancel(self):
        self.error = self.error or StorageError("cancelled", "memory", 0, 0, 125)


class MemoryReader:
    """Reads rows of a tensor; counts them; fails when told to."""

    def __init__(self, values):
        self.values = values
        self.rows_read = self.reads = self.closed = 0
        self.fail_next = False

    def submit(self, rows, out, places=None):
        if self.fail_next:
            self.fail_next = False
            return Done(StorageError("read failed", "memory", 0, 0, 5))
        assert torch.equal(rows, rows.unique())  # sorted, each row once
        if places is None:
            out.copy_(self.values[rows])
        else:
            out[torch.from_numpy(places).long()] = self.values[rows]
        self.rows_read += len(rows)
        self.reads += 1
        return Done()

    def stats(self):
        row_bytes = self.values.element_size() * self.values.shape[1]
        return {"reads": self.reads, "bytes_read": self.rows_read * row_bytes}

    def close(self):
        self.closed += 1


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


def begun(store, batches, lookahead=()):
    """Plan a group and read it to its end."""
    ticket = store.plan(list(batches), list(lookahead))
    ticket.begin()
    while not ticket.underway:
        store.advance()
    return ticket


@pytest.fixture
def batches_of():
    """Batches of unique rows, skewed so that some repeat."""

    def make(count, size, num_rows, seed=0):
        generator = torch.Generator().manual_seed(seed)
        weights = 1 / torch.arange(1, num_rows + 1)
        return [torch.multinomial(weights, min(size, num_rows), generator=generator) for _ in range(count)]

    return make
