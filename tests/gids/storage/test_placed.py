"""Rows that the device puts where they belong: the same bytes, and memory that nobody uses while it may still write."""

import errno
import gc
import time
import weakref

import numpy as np
import pytest
import torch
from storage_tables import ENGINES, make_table, raw

from gids import StorageError
from gids.storage import FaultOptions, RowReader, StorageOptions, aligned_empty

PLACING = [name for name in ENGINES if name in ("uring", "pread")]  # the others answer with memory of their own
ROWS = np.array([7, 3, 150, 0, 199, 42])


def options(engine, fault=None, **changes):
    return StorageOptions(engine=engine, **({"merge_gap_bytes": 0, "queue_depth": 16, "fault": fault} | changes))


def empty(rows, table):
    return aligned_empty(rows, table.dim, table.torch_dtype)


def wait_until_written(out, before):
    """Return when the device has written to every row of what was full of ``before``; its answers are held back."""
    deadline = time.monotonic() + 60
    while (out == before).all(1).any():
        assert time.monotonic() < deadline, "timed out"
        time.sleep(0.001)


@pytest.fixture(params=PLACING)
def placing(request):
    return request.param


@pytest.mark.parametrize(("dim", "dtype"), [(1024, "float32"), (2048, "float16"), (4096, "int8")])
def test_rows_of_a_page_need_no_copy(tmp_path, engine, dim, dtype):
    table, values = make_table(tmp_path, dim=dim, dtype=dtype, num_rows=200)
    with RowReader(table, options(engine)) as reader:
        np.testing.assert_array_equal(raw(reader.read(ROWS)), values[ROWS])
        assert reader.stats()["placed"] == (len(ROWS) if engine in PLACING else 0)


@pytest.mark.parametrize(
    ("shape", "rows", "placed"),
    [
        ({"dim": 1023}, ROWS, 0),  # not a whole block
        ({"dim": 1024, "offset": 128}, ROWS, 0),  # .npy header: rows do not begin at a block
        ({"dim": 1024, "stride": 8192}, ROWS, 6),  # what lies between rows is not read
        ({"dim": 512}, ROWS, 0),  # a copy costs no more
        ({"dim": 1536}, ROWS, 0),  # two rows would share a page
        ({"dim": 4096}, ROWS, 0),  # staging is faster
        ({"dim": 1024}, np.array([5, 5, 9]), 1),  # one read for two places
        ({"dim": 1024}, np.arange(20, 30), 0),  # neighbours become one read
        ({"dim": 20_000}, ROWS, 0),  # parts of rows
    ],
)
def test_others_are_copied_and_as_right(tmp_path, engine, shape, rows, placed):
    table, values = make_table(tmp_path, num_rows=200, **shape)
    with RowReader(table, options(engine)) as reader:
        np.testing.assert_array_equal(raw(reader.read(rows)), values[rows])
        assert reader.stats()["placed"] == (placed if engine in PLACING else 0)


def test_memory_between_pages_gets_copies(tmp_path, engine):
    table, values = make_table(tmp_path, dim=1024, num_rows=200)
    out = empty(len(ROWS) + 1, table).view(-1)[16 : 16 + len(ROWS) * 1024].view(len(ROWS), 1024)
    with RowReader(table, options(engine)) as reader:
        np.testing.assert_array_equal(raw(reader.submit(ROWS, out).wait()), values[ROWS])
        assert reader.stats()["placed"] == 0


def test_rows_go_to_their_places_in_an_arena(tmp_path, engine):
    table, values = make_table(tmp_path, dim=1024, num_rows=200)
    places = np.array([9, 0, 4, 2, 11, 5], np.int32)
    arena = empty(12, table).fill_(-1.0)
    with RowReader(table, options(engine)) as reader:
        reader.submit(ROWS, arena, places=places).wait()
    np.testing.assert_array_equal(raw(arena[torch.from_numpy(places).long()]), values[ROWS])
    assert (arena[[1, 3, 6, 7, 8, 10]] == -1).all(), "and nowhere else"


def test_short_read_goes_on_in_place(tmp_path, placing):
    table, values = make_table(tmp_path, dim=1024, num_rows=200)
    with RowReader(table, options(placing, FaultOptions(short_at=2, short_bytes=1500))) as reader:
        np.testing.assert_array_equal(raw(reader.read(ROWS)), values[ROWS])
        assert (reader.stats()["retries"], reader.stats()["placed"]) == (1, len(ROWS))


def test_error_names_the_row_and_the_reader_goes_on(tmp_path, placing):
    table, values = make_table(tmp_path, dim=1024, num_rows=200)
    with RowReader(table, options(placing, FaultOptions(fail_at=4))) as reader:
        with pytest.raises(StorageError) as caught:
            reader.read(ROWS)
        assert (caught.value.errno, caught.value.offset, caught.value.length) == (errno.EIO, 150 * 4096, 4096)
        np.testing.assert_array_equal(raw(reader.read(ROWS)), values[ROWS])


def test_cancel_returns_when_nothing_is_written_any_more(tmp_path, placing):
    table, _ = make_table(tmp_path, dim=1024, num_rows=200)
    with RowReader(table, options(placing, FaultOptions(delay_us=100_000))) as reader:
        out = empty(len(ROWS), table).fill_(7.5)
        pending = reader.submit(ROWS, out)
        wait_until_written(out, 7.5)
        pending.cancel()
        out.fill_(3.0)
        reader.read(ROWS[:1])  # begins when those reads are back
        assert (out == 3.0).all()


def test_cancel_does_not_wait_for_a_device_that_hangs_but_the_next_read_does(tmp_path, placing):
    table, values = make_table(tmp_path, dim=1024, num_rows=200)
    for delay_us in (3_000_000, 12_000_000, 48_000_000):  # longer where a slow machine looked after the answers only
        with RowReader(table, options(placing, FaultOptions(delay_us=delay_us))) as reader:
            out = empty(len(ROWS), table).fill_(7.5)
            pending = reader.submit(ROWS, out)
            wait_until_written(out, 7.5)
            pending.cancel()
            if reader.stats()["reads"]:
                continue
            assert reader.stats()["timeouts"] == len(ROWS), "given up, not answered"
            got = reader.read(ROWS[:1])  # begins when those reads are back
            assert reader.stats()["reads"] == len(ROWS) + 1
            np.testing.assert_array_equal(raw(got), values[ROWS[:1]])
            return
    pytest.fail("cancelling waited for the device")


def test_after_a_time_out_memory_stays_and_the_reader_says_that_it_must_be_closed(tmp_path, placing):
    table, _ = make_table(tmp_path, dim=1024, num_rows=200)
    with RowReader(table, options(placing, FaultOptions(stuck_at=1), timeout_s=1.5)) as reader:
        out = empty(len(ROWS), table)
        kept = weakref.ref(out)
        pending = reader.submit(ROWS, out)
        with pytest.raises(StorageError, match="timed out"):
            pending.wait()
        del out, pending
        gc.collect()
        assert kept() is not None, "the device may still write to it"
        with pytest.raises(StorageError, match="must be closed: 1 reads that timed out may still write"):
            reader.read(ROWS)
        closing = time.monotonic()
    assert time.monotonic() - closing < 30


def test_read_that_ended_keeps_nothing_alive(tmp_path, placing):
    table, _ = make_table(tmp_path, dim=1024, num_rows=200)
    with RowReader(table, options(placing)) as reader:
        out = empty(len(ROWS), table)
        gone = weakref.ref(out)
        pending = reader.submit(ROWS, out)
        pending.wait()
        del out, pending
        gc.collect()
        assert gone() is None


def test_closing_with_reads_under_way(tmp_path, placing):
    table, _ = make_table(tmp_path, dim=1024, num_rows=200)
    reader = RowReader(table, options(placing, FaultOptions(stuck_at=0)))
    out = empty(len(ROWS), table)
    pending = reader.submit(ROWS, out)
    began = time.monotonic()
    reader.close()
    assert time.monotonic() - began < 30
    with pytest.raises(StorageError, match="cancelled"):
        pending.wait()
