"""Where a container's seccomp profile forbids io_uring, readers use pread, say why, and read the same bytes.

Likewise process_vm_readv, without which mapped files are refused.
"""

import ctypes
import errno
import json
import platform
import shutil
import struct
import threading

import numpy as np
import pytest
from storage_tables import make_table, raw

from gids.bench.fio import fio_engine, run_fio
from gids.cli import main
from gids.cli.doctor import io_uring
from gids.errors import ConfigError
from gids.storage import RowReader, StorageOptions, engine_availability

PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS, SECCOMP_MODE_FILTER = 22, 38, 2
LOAD_SYSCALL_NUMBER, JUMP_IF_EQUAL, RETURN = 0x20, 0x15, 0x06
RETURN_ERRNO, RETURN_ALLOW = 0x00050000, 0x7FFF0000
IO_URING_SETUP = 425  # the same on every architecture
PROCESS_VM_READV = 310 if platform.machine() == "x86_64" else 270


class _Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p)]


def forbid(system_call, error_number):
    """Install the filter for the calling thread and those that it starts; it cannot be taken back."""
    instructions = b"".join(
        struct.pack("HBBI", *instruction)
        for instruction in (
            (LOAD_SYSCALL_NUMBER, 0, 0, 0),
            (JUMP_IF_EQUAL, 0, 1, system_call),
            (RETURN, 0, 0, RETURN_ERRNO | error_number),
            (RETURN, 0, 0, RETURN_ALLOW),
        )
    )
    libc = ctypes.CDLL(None, use_errno=True)
    program = _Program(len(instructions) // 8, instructions)
    assert libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
    if libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(program), 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "seccomp")


def in_filtered_thread(work, error_number, system_call=IO_URING_SETUP):
    """Run ``work`` where a system call fails with ``error_number``; skips where filters cannot be installed."""
    outcome = {}

    def body():
        try:
            forbid(system_call, error_number)
        except OSError as error:
            outcome["skip"] = f"the kernel installs no seccomp filter: {error}"
            return
        try:
            outcome["value"] = work()
        except BaseException as error:
            outcome["error"] = error

    thread = threading.Thread(target=body)
    thread.start()
    thread.join()
    if "skip" in outcome:
        pytest.skip(outcome["skip"])
    if "error" in outcome:
        raise outcome["error"]
    return outcome["value"]


# Docker's profile answers EPERM, Podman's and buildah's ENOSYS.
@pytest.mark.parametrize(
    ("error_number", "words"), [(errno.EPERM, "Operation not permitted"), (errno.ENOSYS, "not implemented")]
)
def test_auto_falls_back_and_says_why(tmp_path, error_number, words):
    table, values = make_table(tmp_path)
    rows = np.random.default_rng(0).permutation(1000)

    def work():
        with RowReader(table) as reader:
            return reader.engine, reader.engine_reason, raw(reader.read(rows))

    engine, reason, read = in_filtered_thread(work, error_number)
    assert engine == "pread"
    assert reason.startswith("uring cannot be used: the kernel refuses io_uring")
    assert words in reason
    assert np.array_equal(read, values[rows])


@pytest.mark.skipif(engine_availability()["uring"] != "", reason="the kernel refuses io_uring")
def test_auto_takes_uring_where_it_can(tmp_path):
    table, values = make_table(tmp_path)
    with RowReader(table) as reader:
        assert (reader.engine, reader.engine_reason) == ("uring", "the kernel offers io_uring")
        assert np.array_equal(raw(reader.read([3])), values[[3]])


def test_mmap_is_refused_where_the_kernel_does_not_copy(tmp_path):
    table, _ = make_table(tmp_path)
    with pytest.raises(ConfigError, match="mmap cannot be used: the kernel refuses process_vm_readv"):
        in_filtered_thread(lambda: RowReader(table, StorageOptions(engine="mmap")), errno.EPERM, PROCESS_VM_READV)


def test_asking_for_uring_is_an_error_with_the_reason(tmp_path):
    table, _ = make_table(tmp_path)
    with pytest.raises(ConfigError, match=r"uring.*Operation not permitted"):
        in_filtered_thread(lambda: RowReader(table, StorageOptions(engine="uring")), errno.EPERM)


def test_probe_and_doctor_say_it(tmp_path, capsys):
    command = ["probe", str(tmp_path), "--seconds", "0.1", "--scratch", "16MiB", "--no-save"]
    in_filtered_thread(lambda: main([*command, "--json"]), errno.EPERM)
    told = json.loads(capsys.readouterr().out)
    assert told["engine"] == "pread"
    assert "Operation not permitted" in told["engine_reason"]
    in_filtered_thread(lambda: main(command), errno.EPERM)
    assert "engine pread: uring cannot be used: the kernel refuses io_uring" in capsys.readouterr().out
    finding = in_filtered_thread(io_uring, errno.EPERM)
    assert not finding.ok
    assert "seccomp" in finding.step


@pytest.mark.skipif(shutil.which("fio") is None, reason="fio is not installed")
def test_the_disk_benchmark_compares_with_what_fio_may_use(tmp_path):
    file = tmp_path / "file"
    file.write_bytes(bytes(1 << 20))
    assert fio_engine() == ("libaio" if engine_availability()["uring"] else "io_uring")
    assert in_filtered_thread(fio_engine, errno.EPERM) == "libaio"
    assert in_filtered_thread(lambda: run_fio(file, "randread", 4096, 4, 1, 0.05), errno.EPERM).iops > 0
