"""What goes wrong: errors name file, offset and errno, other reads go on, nothing hangs, nothing leaks."""

import errno
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch
from storage_tables import ENGINES, make_table, raw

from gids import ConfigError, StorageError
from gids.storage import FaultOptions, RowReader, StorageOptions
from tests.resources import left_behind, settled

ROWS = np.arange(0, 1000, 10)  # 100 reads of one row each: rows are 512 bytes, and nothing is merged


def options(engine, fault=None, **changes):
    return StorageOptions(engine=engine, **({"merge_gap_bytes": 0, "queue_depth": 16, "fault": fault} | changes))


def test_error_names_file_offset_and_errno_and_the_reader_goes_on(tmp_path, engine):
    table, values = make_table(tmp_path, dim=128)
    with RowReader(table, options(engine, FaultOptions(fail_at=7, error_number=errno.EIO))) as reader:
        with pytest.raises(StorageError) as caught:
            reader.read(ROWS)
        error = caught.value
        assert (error.errno, error.path, error.length) == (errno.EIO, str(table.stripes[0].path), 512)
        assert error.offset == 70 * 512
        assert "Input/output error" in str(error)
        np.testing.assert_array_equal(raw(reader.read(ROWS)), values[ROWS])
        assert reader.stats()["errors"] == 1


def test_one_failed_read_leaves_the_others_alone(tmp_path, engine):
    table, values = make_table(tmp_path, dim=128)
    with RowReader(table, options(engine, FaultOptions(fail_at=150))) as reader:
        reads = [reader.submit(ROWS, torch.empty(100, 128)) for _ in range(3)]
        np.testing.assert_array_equal(raw(reads[0].wait()), values[ROWS])
        with pytest.raises(StorageError):
            reads[1].wait()
        np.testing.assert_array_equal(raw(reads[2].wait()), values[ROWS])


def test_busy_device_is_asked_again(tmp_path, engine):
    table, values = make_table(tmp_path, dim=128)
    with RowReader(table, options(engine, FaultOptions(fail_at=3, error_number=errno.EAGAIN))) as reader:
        np.testing.assert_array_equal(raw(reader.read(ROWS)), values[ROWS])
        assert reader.stats()["retries"] == 1


def test_short_read_goes_on_from_the_last_whole_block(tmp_path, engine):
    table, values = make_table(tmp_path, dim=128)
    everything = np.arange(1000)
    with RowReader(table, options(engine, FaultOptions(short_at=1, short_bytes=5000))) as reader:
        np.testing.assert_array_equal(raw(reader.read(everything)), values)
        assert reader.stats()["retries"] == 1


def test_a_read_that_was_as_short_by_itself_changes_no_later_one(tmp_path, engine):
    """The fault engine took a later read with the same tag for it, and wrote over what lay at the first one's place."""
    table, values = make_table(tmp_path, dim=1, num_rows=200_000)
    random = np.random.default_rng(3)
    for number in range(12):  # of reads of one block each, before those of many
        fault = FaultOptions(short_at=number, short_bytes=512)
        with RowReader(table, StorageOptions(engine=engine, queue_depth=32, threads=2, fault=fault)) as reader:
            for count in (1, 100, 20_000, 20_000):
                rows = random.integers(0, table.num_rows, count)
                np.testing.assert_array_equal(raw(reader.read(rows)), values[rows])


def test_short_read_without_progress_is_an_error(tmp_path, engine):
    table, _ = make_table(tmp_path, dim=128)
    with (
        RowReader(table, options(engine, FaultOptions(short_at=1, short_bytes=0))) as reader,
        pytest.raises(StorageError, match="ends before its rows") as caught,
    ):
        reader.read(ROWS)
    assert (caught.value.errno, caught.value.offset) == (None, 10 * 512)


def test_file_truncated_while_open(tmp_path, engine):
    table, values = make_table(tmp_path, dim=128)
    with RowReader(table, options(engine)) as reader:
        os.truncate(table.stripes[0].path, 500 * 512 + 100)
        if engine == "memory":  # it has its own copy
            np.testing.assert_array_equal(raw(reader.read(ROWS)), values[ROWS])
            return
        with pytest.raises(StorageError, match=r"short read|ends before its rows") as caught:
            reader.read(ROWS)
        assert caught.value.offset >= 500 * 512
        np.testing.assert_array_equal(raw(reader.read(ROWS[:50])), values[ROWS[:50]])


@pytest.mark.skipif("mmap" not in ENGINES, reason="the kernel refuses process_vm_readv")
@pytest.mark.parametrize("left", [0, 300 * 512 + 100])
def test_mapped_file_truncated_behind_our_back_raises_no_signal(tmp_path, left):
    table, values = make_table(tmp_path, dim=128)
    path = table.stripes[0].path
    whole = path.read_bytes()
    out = torch.zeros(100, table.dim)
    for delay_us in (200_000, 2_000_000, 20_000_000):
        # Completions are held back, so that the file shrinks before rows are copied: for longer where the machine was slow.
        path.write_bytes(whole)
        reader = RowReader(table, options("mmap", FaultOptions(delay_us=delay_us)))
        pending = reader.submit(ROWS, out)
        time.sleep(delay_us / 4e6)  # the engine answers meanwhile
        os.truncate(path, left)
        if reader.stats()["reads"] == 0:
            break
        reader.close()
    with reader:
        with pytest.raises(StorageError, match="ends before its rows") as caught:
            pending.wait()
        assert caught.value.path == str(path)
        assert left <= caught.value.offset < 512 * 1000
        assert reader.stats()["errors"] >= 1
        if left:
            np.testing.assert_array_equal(raw(reader.read(ROWS[:30])), values[ROWS[:30]])


def test_delays_and_reordering_change_nothing(tmp_path, engine):
    table, values = make_table(tmp_path)
    rows = np.random.default_rng(5).integers(0, 1000, 300)
    with RowReader(table, options(engine, FaultOptions(delay_us=300, reorder=True))) as reader:
        np.testing.assert_array_equal(raw(reader.read(rows)), values[rows])


def test_stuck_request_times_out_and_its_buffer_is_not_reused(tmp_path, engine):
    table, values = make_table(tmp_path, dim=128)
    started = time.monotonic()
    with RowReader(table, options(engine, FaultOptions(stuck_at=5), timeout_s=1.5)) as reader:
        with pytest.raises(StorageError, match="timed out") as caught:
            reader.read(ROWS)
        assert caught.value.offset == 50 * 512
        assert 1.4 < time.monotonic() - started < 60
        np.testing.assert_array_equal(raw(reader.read(ROWS)), values[ROWS])
        assert reader.stats()["timeouts"] == 1
        closing = time.monotonic()
    assert time.monotonic() - closing < 60


def test_queue_full_of_stuck_requests_fails_instead_of_waiting(tmp_path, engine):
    table, _ = make_table(tmp_path, dim=128)
    with RowReader(table, options(engine, FaultOptions(stuck_at=0), timeout_s=1.0, queue_depth=1)) as reader:
        for message in ("timed out", "full of requests"):
            with pytest.raises(StorageError, match=message):
                reader.read([1])


def test_close_cancels_what_runs(tmp_path, engine):
    table, _ = make_table(tmp_path, dim=128)
    reader = RowReader(table, options(engine, FaultOptions(delay_us=4_000_000), queue_depth=2))
    pending = reader.submit(ROWS, torch.zeros(100, 128))
    started = time.monotonic()
    reader.close()
    assert time.monotonic() - started < 100, "50 rounds of 4 s each were left"
    with pytest.raises(StorageError, match="cancelled"):
        pending.wait()


def test_cancelled_read_leaves_out_alone(tmp_path, engine):
    table, _ = make_table(tmp_path, dim=128)
    with RowReader(table, options(engine, FaultOptions(delay_us=100_000))) as reader:
        out = torch.zeros(100, 128)
        pending = reader.submit(ROWS, out)
        pending.cancel()
        assert pending.done()
        before = out.clone()
        reader.read(ROWS[:1])  # its answer comes after all of theirs
        assert torch.equal(out.view(torch.int32), before.view(torch.int32))
        pending.cancel()


def test_dropped_read_is_cancelled(tmp_path, engine):
    table, values = make_table(tmp_path, dim=128)
    with RowReader(table, options(engine, FaultOptions(delay_us=20_000))) as reader:
        for _ in range(5):
            reader.submit(ROWS, torch.zeros(100, 128))
        np.testing.assert_array_equal(raw(reader.read(ROWS[:3])), values[ROWS[:3]])


def test_nothing_leaks(tmp_path, engine):
    table, values = make_table(tmp_path, dim=128)

    def open_read_fail_close():
        with RowReader(table, options(engine, FaultOptions(fail_at=120), staging_bytes=4 << 20)) as reader:
            np.testing.assert_array_equal(raw(reader.read(ROWS)), values[ROWS])
            with pytest.raises(StorageError):
                reader.read(ROWS)

    for _ in range(10):
        open_read_fail_close()
    before, memory = settled(), psutil.Process().memory_info().rss
    for _ in range(30):
        open_read_fail_close()
    assert not left_behind(before)
    assert psutil.Process().memory_info().rss - memory < 20 << 20  # 30 stagings would be 120 MiB


def test_fork_opens_anew_and_a_read_of_the_parent_is_refused(tmp_path, engine):
    table, values = make_table(tmp_path, dim=128)
    with RowReader(table, options(engine)) as reader:
        reader.read(ROWS)
        pending = reader.submit(ROWS, torch.empty(100, 128))
        child = os.fork()
        if child == 0:
            code = 1
            try:
                good = np.array_equal(raw(reader.read(ROWS)), values[ROWS])
                try:
                    pending.wait()
                except StorageError as error:
                    code = 0 if good and "fork" in str(error) else 2
                del pending
                reader.close()
            finally:
                os._exit(code)
        deadline = time.monotonic() + 120
        while (status := os.waitpid(child, os.WNOHANG)) == (0, 0) and time.monotonic() < deadline:
            time.sleep(0.02)
        if status == (0, 0):
            os.kill(child, signal.SIGKILL)
        assert status == (child, 0)
        np.testing.assert_array_equal(raw(pending.wait()), values[ROWS])
        np.testing.assert_array_equal(raw(reader.read(ROWS)), values[ROWS])


INTERRUPTED = """
import signal, sys, time
from pathlib import Path
from gids import RowTable, Stripe
from gids.storage import FaultOptions, RowReader, StorageOptions
signal.signal(signal.SIGINT, signal.default_int_handler)  # a parent in the background may have it ignored
table = RowTable("t", "float32", 128, 1000, 512, (Stripe(Path(sys.argv[1]), 0, 1000),), 1000)
for line in sys.stdin:
    engine = line.strip()
    fault = FaultOptions(delay_us=60_000_000)
    reader = RowReader(table, StorageOptions(engine="pread" if engine == "none" else engine, fault=fault))
    try:
        print("reading", flush=True)
        if engine == "none":
            time.sleep(60)
        reader.read(range(1000))
    except KeyboardInterrupt:
        print("interrupted", flush=True)
    reader.close()
    print("closed", flush=True)
"""


def wait_until_asleep(pid):
    """Return when the main thread of a process sleeps, and has done nothing since the last look."""

    def look():
        status = Path(f"/proc/{pid}/task/{pid}/status").read_text()
        switches = re.findall(r"ctxt_switches:\t(\d+)", status)
        return re.search(r"State:\t(\w)", status)[1], *switches

    deadline, last = time.monotonic() + 60, None
    while (now := look()) != last or now[0] != "S":
        assert time.monotonic() < deadline, f"it does not sleep: {now}"
        last = now
        time.sleep(0.01)


def interrupt_seconds(process, engine):
    """Interrupt a read whose answer takes a minute, or with "none" a sleep; return how long that took."""
    print(engine, file=process.stdin, flush=True)
    assert process.stdout.readline() == "reading\n"
    wait_until_asleep(process.pid)
    process.send_signal(signal.SIGINT)
    started = time.monotonic()
    assert process.stdout.readline() == "interrupted\n"
    took = time.monotonic() - started
    assert process.stdout.readline() == "closed\n"
    return took


def test_interrupt_returns_within_a_second(tmp_path):
    table, _ = make_table(tmp_path, dim=128)
    command = [sys.executable, "-c", INTERRUPTED, str(table.stripes[0].path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            for engine in {"uring", "pread"} & set(ENGINES):
                # Other tests have the cores, too: the best of three counts, beside what it takes where nothing is read.
                limits = [1 + 10 * interrupt_seconds(process, "none") for _ in range(3)]
                assert any(interrupt_seconds(process, engine) < limit for limit in limits), engine
            process.stdin.close()
            assert process.wait(timeout=60) == 0
        finally:
            process.kill()


def test_filesystem_without_direct_reads(tmp_path, engine):
    shared = Path("/dev/shm")
    if not shared.is_dir() or not os.access(shared, os.W_OK):
        pytest.skip("no tmpfs at /dev/shm")
    directory = shared / f"gids-test-{os.getpid()}-{engine}"
    directory.mkdir()
    try:
        table, values = make_table(directory)
        with RowReader(table, options(engine)) as reader:
            np.testing.assert_array_equal(raw(reader.read(ROWS)), values[ROWS])
    finally:
        for path in directory.iterdir():
            path.unlink()
        directory.rmdir()


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"engine": "tape"}, "engine must be one of"),
        ({"queue_depth": 0}, "queue_depth must be positive"),
        ({"merge_gap_bytes": -1}, "merge_gap_bytes must not be negative"),
        ({"timeout_s": 0.0}, "timeout_s must be positive"),
    ],
)
def test_refuses_options(change, word):
    with pytest.raises(ConfigError, match=word):
        StorageOptions(**change)


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"staging_bytes": 4096}, "staging_bytes must be at least"),
        ({"queue_depth": 5000}, "queue_depth must be between"),
        ({"threads": 9, "queue_depth": 8}, "threads must be between"),
    ],
)
def test_reader_refuses_options(tmp_path, change, word):
    table, _ = make_table(tmp_path)
    with pytest.raises(ConfigError, match=word):
        RowReader(table, StorageOptions(engine="pread", **change))
