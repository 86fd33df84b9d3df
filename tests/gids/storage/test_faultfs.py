"""Reads from a file system that fails on demand: an exception with file and offset, or the right bytes; nothing hangs."""

import errno
import json
import subprocess
import sys

import numpy as np
import pytest
from storage_tables import ENGINES, make_table, raw

from gids import RowTable, StorageError, Stripe
from gids.storage import RowReader, StorageOptions
from tests.faultfs import mounted
from tests.resources import DEADLINE_S

FROM_DISK = [name for name in ("uring", "pread", "mmap") if name in ENGINES]
ROWS = np.arange(0, 1000, 7)


def moved(table, place):
    """The same table seen through another directory."""
    stripes = tuple(Stripe(place / stripe.path.name, stripe.data_offset, stripe.num_rows) for stripe in table.stripes)
    return RowTable(table.name, table.dtype, table.dim, table.num_rows, table.row_stride, stripes, table.stripe_rows)


def options(engine, **more):
    return StorageOptions(engine=engine, merge_gap_bytes=0, queue_depth=16, threads=1, **more)


@pytest.mark.parametrize("engine", FROM_DISK)
def test_an_error_at_an_offset_and_back(tmp_path, engine):
    table, values = make_table(tmp_path, dim=128)
    with mounted(tmp_path, cached=engine == "mmap") as faults:
        broken = moved(table, faults.path)
        name = broken.stripes[0].path.name
        with RowReader(broken, options(engine)) as reader:
            faults.set({"name": name, "begin": 490 * 512, "end": 491 * 512, "do": "error", "errno": errno.EIO})
            with pytest.raises(StorageError) as caught:
                reader.read(ROWS)
            error = caught.value
            assert (error.path, error.errno) == (str(broken.stripes[0].path), errno.EIO)
            assert error.offset <= 490 * 512 < error.offset + error.length
            faults.set()
            np.testing.assert_array_equal(raw(reader.read(ROWS)), values[ROWS])


@pytest.mark.parametrize("engine", [name for name in FROM_DISK if name != "mmap"])
def test_short_reads_are_completed(tmp_path, engine):
    table, values = make_table(tmp_path, dim=300)
    with mounted(tmp_path) as faults, RowReader(moved(table, faults.path), options(engine)) as reader:
        faults.set({"name": ".bin", "do": "short"})
        np.testing.assert_array_equal(raw(reader.read(ROWS)), values[ROWS])
        assert reader.stats()["retries"] > 0


@pytest.mark.parametrize("engine", FROM_DISK)
def test_a_slow_server_is_waited_for(tmp_path, engine):
    table, values = make_table(tmp_path, dim=128)
    with (
        mounted(tmp_path, cached=engine == "mmap") as faults,
        RowReader(moved(table, faults.path), options(engine)) as reader,
    ):
        faults.set({"name": ".bin", "begin": 0, "end": 4096, "do": "delay", "seconds": 0.5})
        np.testing.assert_array_equal(raw(reader.read(ROWS)), values[ROWS])


HUNG = """
import json, sys, warnings
from pathlib import Path
import numpy as np
from gids import RowTable, StorageError, Stripe
from gids.storage import RowReader, StorageOptions
path, engine = Path(sys.argv[1]), sys.argv[2]
table = RowTable("t", "float32", 128, 1000, 512, (Stripe(path, 0, 1000),), 1000)
reader = RowReader(table, StorageOptions(engine=engine, merge_gap_bytes=0, queue_depth=16, threads=1, timeout_s=1.0))
print("open", flush=True)
sys.stdin.readline()
said = {}
try:
    reader.read(np.arange(0, 1000, 7))
except StorageError as error:
    said["error"], said["path"] = str(error), error.path
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    reader.close()
said["warnings"] = [str(w.message) for w in caught]
print(json.dumps(said), flush=True)
"""


@pytest.mark.parametrize("engine", [name for name in FROM_DISK if name != "mmap"])
def test_a_hung_server(tmp_path, engine):
    """Everything is said while the server still hangs: nothing but the deadline can end the read, or the closing."""
    table, _ = make_table(tmp_path, dim=128)
    with mounted(tmp_path) as faults:
        path = faults.path / table.stripes[0].path.name
        command = [sys.executable, "-c", HUNG, str(path), engine]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        assert process.stdout.readline() == "open\n"
        faults.set({"name": path.name, "do": "hang"})
        assert process.stdin is not None
        print("go", file=process.stdin, flush=True)
        said = json.loads(process.stdout.readline())
        faults.set()  # until then, the kernel does not let a process go that waits for a server's answer
        process.communicate(timeout=DEADLINE_S)
    assert said["error"].startswith("read timed out")
    assert said["path"] == str(path)
    assert process.returncode == 0


def test_a_device_that_is_gone(tmp_path):
    table, values = make_table(tmp_path, dim=128)
    with mounted(tmp_path) as faults:
        broken = moved(table, faults.path)
        with RowReader(broken, options("pread")) as reader:
            faults.set({"name": ".bin", "do": "error", "errno": errno.ENODEV, "every": True})
            with pytest.raises(StorageError, match="No such device"):
                reader.read(ROWS)
            with pytest.raises(StorageError, match="cannot open the file: No such device"):
                RowReader(broken, options("pread"))
            faults.set()
            np.testing.assert_array_equal(raw(reader.read(ROWS)), values[ROWS])
