"""Engine `auto`: says what it took and why, and takes another where a container forbids io_uring or kernel copies."""

import platform
import subprocess
import sys
import textwrap

import numpy as np
import pytest
from storage_tables import ENGINES, make_table, raw

from gids.storage import RowReader

# System calls by their numbers.
FORBIDDEN = {"io_uring": 425, "process_vm_readv": 310 if platform.machine() == "x86_64" else 270}

CHILD = """
    import ctypes, os, struct, sys
    from pathlib import Path
    from gids import ConfigError, RowTable, Stripe
    from gids.storage import RowReader, StorageOptions

    def forbid(number):
        # Classic BPF: load the system call's number; if it is the forbidden one, answer EPERM; else allow.
        steps = ((0x20, 0, 0, 0), (0x15, 0, 1, number), (0x06, 0, 0, 0x00050000 | 1), (0x06, 0, 0, 0x7FFF0000))
        code = b"".join(struct.pack("HBBI", *step) for step in steps)
        buffer = ctypes.create_string_buffer(code)
        program = struct.pack("HxxxxxxP", len(code) // 8, ctypes.addressof(buffer))
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.prctl(38, 1, 0, 0, 0) or libc.prctl(22, 2, program, 0, 0):
            sys.exit(f"no seccomp here: errno {{ctypes.get_errno()}}")

    table = RowTable("t", "float32", 25, 1000, 100, (Stripe(Path({path!r}), 0, 1000),), 1000)
    for number in {numbers}:
        if (child := os.fork()) == 0:
            forbid(number)
            with RowReader(table) as reader:
                print(reader.engine, "|", reader.engine_reason, "|", reader.read([999])[0].numpy().tobytes().hex())
            for engine in ("uring", "mmap"):
                try:
                    RowReader(table, StorageOptions(engine=engine)).close()
                except ConfigError as error:
                    print(error, flush=True)
            os._exit(0)
        if os.waitpid(child, 0)[1] != 0:
            sys.exit("the child failed")
"""


@pytest.mark.skipif("uring" not in ENGINES, reason="the kernel refuses io_uring")
def test_takes_uring_where_it_can(tmp_path):
    table, values = make_table(tmp_path)
    with RowReader(table) as reader:
        assert (reader.engine, reader.engine_reason) == ("uring", "the kernel offers io_uring")
        np.testing.assert_array_equal(raw(reader.read([3])), values[[3]])


def test_goes_without_what_a_container_forbids(tmp_path):
    table, values = make_table(tmp_path)
    code = CHILD.format(numbers=tuple(FORBIDDEN.values()), path=str(table.stripes[0].path))
    result = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=False)
    if "no seccomp here" in result.stderr:
        pytest.skip(result.stderr.strip())
    assert result.returncode == 0, result.stderr
    without_uring, uring_refusal, without_copies, mmap_refusal = result.stdout.splitlines()
    engine, reason, row = without_uring.split(" | ")
    assert engine == "pread"
    assert reason.startswith("uring cannot be used: the kernel refuses io_uring: Operation not permitted")
    assert bytes.fromhex(row) == values[999].tobytes()
    assert uring_refusal.startswith("engine uring cannot be used: the kernel refuses io_uring")
    assert bytes.fromhex(without_copies.split(" | ")[2]) == values[999].tobytes()
    assert mmap_refusal.startswith("engine mmap cannot be used: the kernel refuses process_vm_readv")
