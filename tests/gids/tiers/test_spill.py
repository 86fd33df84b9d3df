"""Rows that are spilled come back bit for bit; space is bounded and has no name; whatever fails, rows are read online."""

import os

import numpy as np
import pytest
import torch

from gids.errors import StorageError
from gids.storage import RowReader
from gids.table import RowTable, Stripe
from gids.tiers import HostRows
from gids.tiers import spill as spills
from gids.tiers.spill import RowSpill, SpilledRead, SpillSetup


@pytest.fixture(params=[1, 5, 128], ids=["12 B", "60 B", "1536 B"])
def dim(request):
    return 3 * request.param


ROWS = 700


@pytest.fixture
def spill(tmp_path, dim):
    made = []

    def make(limit_bytes=64 << 20, host=None, **setup):
        values, path = torch.randn(ROWS, dim), tmp_path / "rows.bin"
        path.write_bytes(values.numpy().tobytes())
        table = RowTable("t", "float32", dim, ROWS, 4 * dim, (Stripe(path, 0, ROWS),), ROWS)
        setup = SpillSetup(tmp_path, limit_bytes, **({"block_bytes": 50 * table.row_bytes} | setup))
        reader = RowReader(table)
        made.extend([RowSpill(table, reader, RowReader, setup, host), reader])
        return made[-2], values

    yield make
    for one in made:
        one.close()
    assert not list(tmp_path.glob(".gids*")), "the file never had a name"


def batches_of(count, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randperm(ROWS, generator=generator)[: 30 + 11 * (n % 7)] for n in range(count)]


def fetch(spill, rows, chunks):
    out = torch.full((len(rows) + 3, spill.table.dim), -1.0)
    places = torch.randperm(len(out))[: len(rows)].to(torch.int32).numpy()
    for read in spill.submit(np.sort(rows.numpy()), out, places, chunks):
        read.wait()
    return out[torch.from_numpy(places).long()]


def check(spill, values, waiting, lookahead=40):
    """Plan and fetch batches two by two, as a store does."""
    while waiting:
        group, waiting = waiting[:2], waiting[2:]
        chunks = spill.foresee(group, waiting[:lookahead])
        rows = torch.cat(group).unique()
        assert torch.equal(fetch(spill, rows, chunks), values[rows])


def test_rows_come_back(spill):
    found, values = spill()
    waiting = batches_of(50)
    check(found, values, list(waiting))
    rows = sum(map(len, waiting))
    stats = found.stats()
    assert rows * found.table.row_bytes <= stats["bytes_written"] < 1.2 * rows * found.table.row_bytes + 100 * 4096
    assert stats["reads"] > 0
    check(found, values, batches_of(30, seed=1))  # in the same space


def test_what_memory_holds_is_not_written(spill):
    host = HostRows(torch.arange(0, 700, 2))
    found, _ = spill(host=host)
    (chunk,) = found.foresee([torch.tensor([5, 4, 699, 2])], [])
    assert chunk.rows.tolist() == [5, 699]


def test_space_is_bounded(spill):
    limit = 40 * 4096
    found, values = spill(limit_bytes=limit)
    check(found, values, batches_of(40))
    assert found.bytes_written > 0
    assert os.fstat(found._file.fileno()).st_size <= limit


def test_what_is_written_is_bounded(spill):
    found, values = spill(limit_bytes=20 * 4096, most_written_bytes=1_000_000)
    waiting = batches_of(200)
    check(found, values, waiting)
    assert 0 < found.bytes_written <= 1_000_000


def test_too_few_batches_are_read_online(spill):
    found, values = spill(fewest_batches=10)
    check(found, values, batches_of(9))
    assert found.bytes_written == 0


def test_another_future_than_announced(spill):
    found, values = spill()
    first, second = batches_of(10), batches_of(10, seed=2)
    found.foresee(first[:2], first[2:])
    check(found, values, second)


@pytest.mark.parametrize("where", ["allocate", "write", "read"])
def test_failures_are_told_once_and_lose_nothing(spill, monkeypatch, where):
    found, values = spill()
    if where == "allocate":

        def full(descriptor, offset, length):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "posix_fallocate", full)
    elif where == "write":

        class Broken(spills.Scatter):
            def add(self, *arguments):
                raise StorageError("cannot write packed rows", "spill", 0, 4096, 28)

        monkeypatch.setattr(spills, "Scatter", Broken)
    else:
        check(found, values, batches_of(10))
        assert found.bytes_written > 0
        waiting = batches_of(10)
        chunks = found.foresee(waiting[:1], waiting[1:])
        fetch(found, waiting[0], chunks)
        os.ftruncate(found._file.fileno(), 0)
        (chunk,) = found.foresee(waiting[1:2], waiting[2:])
        with pytest.warns(RuntimeWarning, match="they are read online"):
            assert torch.equal(fetch(found, waiting[1], [chunk]), values[waiting[1].sort().values])
        found.forget()
    if where != "read":
        with pytest.warns(RuntimeWarning, match="they are read online") as told:
            check(found, values, batches_of(12))
        assert len(told) == 1
    written = found.bytes_written
    check(found, values, batches_of(12))
    assert found.bytes_written == written


def test_an_end_of_the_run_ends_a_pass(spill):
    class Ended(Exception):
        pass

    found, values = spill()
    calls = []

    def check_run():
        calls.append(1)
        if len(calls) == 3:
            raise Ended

    found._check = check_run
    waiting = batches_of(10)
    chunks = found.foresee(waiting[:1], waiting[1:])
    with pytest.raises(Ended):
        fetch(found, waiting[0], chunks)
    found.forget()
    check(found, values, waiting)


def test_a_cancelled_read_is_not_repeated():
    class Cancelled:
        def wait(self):
            raise StorageError("cancelled", "spill", 0, 0, 125)

        def cancel(self):
            pass

    read = SpilledRead(Cancelled(), lambda: pytest.fail("read again"), lambda error: pytest.fail("told"))
    read.cancel()
    with pytest.raises(StorageError):
        read.wait()
