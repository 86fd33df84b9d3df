"""Reads while signals arrive every millisecond: the same rows, for every engine, from opening to closing."""

import os
import signal

import numpy as np
import pytest
from storage_tables import make_table, raw

from gids.storage import RowReader, StorageOptions


@pytest.fixture
def storm():
    """A function that says how many signals have arrived."""
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    os.set_blocking(writer, False)
    handler = signal.signal(signal.SIGALRM, lambda *_: None)
    before = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
    yield lambda: len(os.read(reader, 1 << 16))
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.set_wakeup_fd(before)
    signal.signal(signal.SIGALRM, handler)
    os.close(reader)
    os.close(writer)


@pytest.mark.timeout(method="thread")
def test_the_same_rows_under_signals(tmp_path, engine, storm):
    table, values = make_table(tmp_path, dim=100)
    random, arrived = np.random.default_rng(1), 0
    while arrived < 30:
        rows = random.integers(0, 1000, 300)
        with RowReader(table, StorageOptions(engine=engine, queue_depth=16)) as reader:
            np.testing.assert_array_equal(raw(reader.read(rows)), values[rows])
            assert reader.stats()["errors"] == 0
        try:
            arrived += storm()
        except BlockingIOError:
            continue
