"""An I/O thread blocked in the kernel, as by a hung file server: whoever waits keeps the deadline, and nothing hangs.

Each case is a process of its own, whose thread stays blocked for far longer than the case may take.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from storage_tables import ENGINES

SCRIPT = """
import gc, json, os, sys, threading, time, warnings
from pathlib import Path
import numpy as np
sys.path.insert(0, sys.argv[1])
from storage_tables import make_table, raw
from gids import StorageError
from gids.storage import FaultOptions, RowReader, StorageOptions, aligned_empty

BLOCKED_S = 120
said = {}

def threads(most):
    '''Threads of readers, once there are no more than expected: one that was joined may still be on its way out.'''
    deadline = time.monotonic() + 30
    while True:
        found = []
        for path in Path("/proc/self/task").glob("*/comm"):
            try:
                found.append(path.read_text().strip())
            except OSError:
                continue
        found = sorted(name for name in found if name.startswith("gids-io"))
        if len(found) <= most or time.monotonic() > deadline:
            return found
        time.sleep(0.001)

def same(got):
    return bool((raw(got) == values[rows]).all())

def error_of(call):
    begun = time.monotonic()
    try:
        call()
    except StorageError as error:
        said["error"] = [str(error), error.path == str(table.stripes[0].path), error.offset, error.length]
    said["in_time"] = time.monotonic() - begun < BLOCKED_S / 2

class Beside:
    '''Counts on another thread, which it can only where the lock of the interpreter is free.'''
    def __enter__(self):
        self.count, self.stop = 0, False
        self.thread = threading.Thread(target=self.run)
        self.thread.start()
        return self
    def run(self):
        while not self.stop:
            self.count += 1
            time.sleep(0.001)
    def __exit__(self, *_):
        self.stop = True
        self.thread.join()

engine, dim = sys.argv[3], int(sys.argv[4])
table, values = make_table(Path(sys.argv[2]), dim=dim)
rows = np.arange(0, 1000, 10)
fault = FaultOptions(block_at=int(sys.argv[5]), block_us=BLOCKED_S * 1_000_000)
options = StorageOptions(engine=engine, merge_gap_bytes=0, queue_depth=16, threads=1, timeout_s=0.3, fault=fault)
reader = RowReader(table, options)
blocked = 1  # threads that the case leaves behind
exec(sys.stdin.read())
said["threads"] = threads(blocked)
print(json.dumps(said), flush=True)
"""


def run(tmp_path, body, engine="pread", dim=128, block_at=3):
    here = str(Path(__file__).parent)
    command = [sys.executable, "-c", SCRIPT, here, str(tmp_path), engine, str(dim), str(block_at)]
    result = subprocess.run(command, input=body, capture_output=True, text=True, check=False, timeout=100)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout.splitlines()[-1])


def run_beside(*arguments, **options):
    """Run a case in which another thread counts during each wait; again where the machine kept that thread waiting.

    With the interpreter's lock held no try would count beyond two: once before the wait, once after it.
    """
    for _ in range(4):
        said = run(*arguments, **options)
        if all(count > 2 for name, count in said.items() if name.startswith("beside")):
            break
    return said


@pytest.mark.parametrize(
    ("engine", "dim"),
    [
        pytest.param("uring", 128, marks=pytest.mark.skipif("uring" not in ENGINES, reason="no io_uring here")),
        ("pread", 1024),
    ],
    ids=["staged", "in place"],
)
def test_the_reader_times_out_and_closes(tmp_path, engine, dim):
    said = run_beside(
        tmp_path,
        """
out = aligned_empty(len(rows), dim, table.torch_dtype)
with Beside() as beside:
    error_of(lambda: reader.read(rows, out))
    said["beside_read"] = beside.count
with Beside() as beside, warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    reader.close()
    said["beside_close"] = beside.count
said["warnings"] = [str(w.message) for w in caught]
other = RowReader(table, StorageOptions(engine=engine))
said["other"] = same(other.read(rows))
other.close()
""",
        engine,
        dim,
    )
    message, same_path, offset, length = said["error"]
    assert message.startswith("read timed out: I/O thread gids-io-0 has been blocked in the kernel for ")
    assert (same_path, offset % (dim * 4), length) == (True, 0, dim * 4)
    assert said["in_time"]
    assert said["threads"] == ["gids-io-0"], "it is blocked still"
    assert said["beside_read"] > 2
    assert said["beside_close"] > 2
    assert said["other"], "another reader of the same files is not disturbed"
    assert len(said["warnings"]) == 1
    assert "left gids-io-0 behind, blocked in the kernel" in said["warnings"][0]


def test_a_pending_read_is_dropped_and_cancelled(tmp_path):
    said = run_beside(
        tmp_path,
        """
out = aligned_empty(len(rows), dim, table.torch_dtype)
kept = sys.getrefcount(out)
pending = [reader.submit(rows, out) for _ in range(3)]
with Beside() as beside:
    error_of(lambda: (pending[0].cancel(), pending.clear(), gc.collect()))
    said["beside"] = beside.count
del reader
gc.collect()
said["kept"] = sys.getrefcount(out) - kept
""",
        dim=1024,
        block_at=0,
    )
    assert said["in_time"]
    assert said["beside"] > 2
    assert said["kept"] >= 1, "rows that the device may still write to are never freed"


def test_a_thread_that_comes_back_goes_on(tmp_path):
    said = run(
        tmp_path,
        """
brief = FaultOptions(block_at=3, block_us=1_500_000)
reader = RowReader(table, StorageOptions(engine=engine, queue_depth=16, threads=1, timeout_s=0.3, fault=brief))
error_of(lambda: reader.read(rows))
deadline = time.monotonic() + 60
while time.monotonic() < deadline:
    try:
        said["same"] = same(reader.read(rows))
        break
    except StorageError:
        pass
reader.close()
blocked = 0
""",
        dim=1024,
    )
    assert said["error"]
    assert said["same"]
    assert said["threads"] == []
