"""Engine gds on cuFile's batch interface: the fake libcufile of tests/cufile takes the batches, and goes wrong on request."""

import ctypes
import importlib.util
import os
import sys
from pathlib import Path

import numpy as np
import pytest

CUFILE = Path(__file__).resolve().parents[3] / "cufile"
_spec = importlib.util.spec_from_file_location("cufile_build", CUFILE / "build.py")
_build = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_build)
if importlib.util.find_spec("kvikio") is None or _build.header_directory() is None:
    pytest.skip("kvikio or nvidia-cufile is not installed (make test installs them)", allow_module_level=True)
# Loaded before kvikio looks for a library of this name; OFF: registration and files are not left out.
FAKE = ctypes.CDLL(str(_build.build() / "libcufile.so.0"), mode=ctypes.RTLD_GLOBAL)
os.environ["KVIKIO_COMPAT_MODE"] = "OFF"

sys.path.insert(0, str(Path(__file__).parent))
import case_slots as slots  # noqa: E402

import gids  # noqa: E402
from gids.bench.options import loader_arguments  # noqa: E402
from gids.cuda.cufile import BatchTransport, KvikioTransport, RegisteredMemory, gds_availability  # noqa: E402
from gids.errors import StorageError  # noqa: E402
from gids.runtime.batch import map_tensors  # noqa: E402
from gids.storage import RowReader, StorageOptions  # noqa: E402
from gids.tiers import TableStore  # noqa: E402

NAMES = ("submissions", "entries", "rules", "registered", "most_registered", "status_calls")


def counts():
    values = (ctypes.c_uint64 * 6)()
    FAKE.gids_cufile_counts(values)
    return dict(zip(NAMES, values, strict=True))


def inject(*, fail=0, short=0, stuck=0, submit=0, code=5040, ignore_cancel=False):
    """Let the n-th read or submission from now on go wrong."""
    FAKE.gids_cufile_inject(fail, short, stuck, submit, code, int(ignore_cancel))


@pytest.fixture(autouse=True)
def _clean():
    inject()
    before = counts()
    yield
    inject()
    after = counts()
    assert after["rules"] == before["rules"]
    assert after["registered"] == before["registered"] == RegisteredMemory._used == 0


class Setup(slots.Setup):
    """A device store over engine gds in batches; nothing is spied on."""

    def spy(self, transport):
        pass


@pytest.fixture(autouse=True)
def _options(monkeypatch):
    monkeypatch.setattr(slots, "OPTIONS", StorageOptions(merge_gap_bytes=0, max_io_bytes=64 << 10, queue_depth=24))


@pytest.mark.parametrize(
    ("dtype", "dim", "files", "header"), [("float32", 1024, 1, 0), ("float32", 384, 3, 0), ("float32", 100, 2, 128)]
)
def test_rows_come_in_batches_and_are_the_cpus(tmp_path, dtype, dim, files, header):
    table, values = slots.make_table(tmp_path, dtype, dim, files, header)
    batches, before = slots.make_batches(), counts()
    setup = Setup(table, 60, "window(3)", slots.ROWS)
    assert isinstance(setup.reader.transport, BatchTransport)
    assert "cuFile reads in batches of up to 6, 4 in flight" in setup.reader.notes
    cpu = TableStore(
        table, RowReader(table, StorageOptions()), cache_rows=60, policy="window(3)", seed=3, arena_rows=slots.ROWS
    )
    for batch, got in zip(batches, setup.run(batches), strict=True):
        assert np.array_equal(got, values[batch.numpy()])
    for at in range(0, len(batches), 3):
        ticket = slots.begun(cpu, batches[at : at + 3], batches[at + 3 :])
        for i in range(3):
            cpu.gather(ticket, i)
    sources = ("requests", "cache", "host", "disk", "duplicates")
    assert [setup.store.counts()[name] for name in sources] == [cpu.counts()[name] for name in sources]
    stats, seen = setup.reader.stats(), counts()
    assert seen["entries"] - before["entries"] == stats["reads"] > 40
    assert seen["submissions"] - before["submissions"] == stats["batches"] < stats["reads"] / 3
    assert seen["most_registered"] > 0
    cpu.close()
    setup.close()


def test_a_python_call_for_a_group_not_for_a_read(tmp_path):
    table, _ = slots.make_table(tmp_path, "float32", 1024)
    setup = Setup(table, 0, "lru", slots.ROWS)
    calls, read = [], setup.reader.transport.read
    setup.reader.transport.read = lambda *arguments: calls.append(len(arguments[1])) or read(*arguments)
    setup.run(slots.make_batches())
    assert len(calls) == 3  # groups of three batches
    assert sum(calls) > 40
    setup.close()


@pytest.mark.parametrize(
    ("wrong", "message", "number"),
    [
        ({"fail": 5}, r"gds read failed \(Input/output error\)", 5),
        ({"short": 9}, r"gds read \d+ of \d+ bytes", 0),
        ({"submit": 2, "code": 5012}, r"cuFile takes no batch of \d+ \(cuFile error 5012\)", 5),
    ],
)
def test_a_failed_read_is_named_and_leaves_the_store_usable(tmp_path, wrong, message, number):
    table, values = slots.make_table(tmp_path, "float32", 1024)
    batches, setup = slots.make_batches(), Setup(table, 40, "window(3)", slots.ROWS)
    inject(**wrong)
    with pytest.raises(StorageError, match=message) as info:
        setup.run(batches)
    assert info.value.path == str(table.stripes[0].path)
    assert (info.value.errno or 0) == number
    assert info.value.length > 0
    inject()
    setup.store.reset()
    for batch, got in zip(batches, setup.run(batches), strict=True):
        assert np.array_equal(got, values[batch.numpy()])
    setup.close()


def test_what_cufile_wants_later_is_submitted_again(tmp_path):
    table, values = slots.make_table(tmp_path, "float32", 1024)
    batches, setup = slots.make_batches(), Setup(table, 40, "lru", slots.ROWS)
    inject(submit=2, code=5043)
    for batch, got in zip(batches, setup.run(batches), strict=True):
        assert np.array_equal(got, values[batch.numpy()])
    setup.close()


def test_no_answer_in_time_is_cancelled(tmp_path, monkeypatch):
    # Reads that are answered must be in time too, on a busy machine.
    monkeypatch.setattr(slots, "OPTIONS", StorageOptions(merge_gap_bytes=0, max_io_bytes=64 << 10, timeout_s=1.5))
    table, values = slots.make_table(tmp_path, "float32", 1024)
    batches, setup = slots.make_batches(), Setup(table, 40, "lru", slots.ROWS)
    inject(stuck=7)
    with pytest.raises(StorageError, match="gds read was cancelled"):
        setup.run(batches)
    inject()
    setup.store.reset()
    for batch, got in zip(batches, setup.run(batches), strict=True):
        assert np.array_equal(got, values[batch.numpy()])
    setup.close()


def test_a_read_that_cannot_be_cancelled_ends_the_reader(tmp_path, monkeypatch):
    monkeypatch.setattr(slots, "OPTIONS", StorageOptions(merge_gap_bytes=0, max_io_bytes=64 << 10, timeout_s=0.3))
    table, _ = slots.make_table(tmp_path, "float32", 1024)
    batches, setup = slots.make_batches(), Setup(table, 40, "lru", slots.ROWS)
    inject(stuck=7, ignore_cancel=True)
    with pytest.raises(StorageError, match="no answer within 300 ms, and does not let go"):
        setup.run(batches)
    with pytest.raises(StorageError, match="does not let go"):  # memory may still change: nothing is read to it
        setup.reader.take_region(1, wait=False)
    setup.close()


def test_registration_stays_below_cufiles_limit(tmp_path, monkeypatch):
    cache_kib = 128 << 10  # cuFile's own buffers count
    table, values = slots.make_table(tmp_path, "float32", 1024)
    for slots_fit, limit_kib in ((True, 64 << 10), (False, 1 << 10)):
        monkeypatch.setenv("GIDS_CUFILE_PINNED_KIB", str(cache_kib + limit_kib))
        ctypes.CDLL(None).setenv(b"GIDS_CUFILE_PINNED_KIB", str(cache_kib + limit_kib).encode(), 1)
        batches, setup = slots.make_batches(), Setup(table, 40, "lru", slots.ROWS)
        for batch, got in zip(batches, setup.run(batches), strict=True):
            assert np.array_equal(got, values[batch.numpy()])
        assert 0 < counts()["registered"] <= limit_kib << 10
        assert (setup.reader.stats()["rows_direct"] > 0) == slots_fit
        assert ("cuFile registers at most" in setup.reader.notes) != slots_fit
        setup.close()
    ctypes.CDLL(None).unsetenv(b"GIDS_CUFILE_PINNED_KIB")


def test_without_batches_kvikio_reads_one_by_one(tmp_path):
    ctypes.CDLL(None).setenv(b"GIDS_CUFILE_BATCH", b"0", 1)
    try:
        table, values = slots.make_table(tmp_path, "float32", 1024)
        batches, setup = slots.make_batches(), Setup(table, 40, "lru", slots.ROWS)
        assert isinstance(setup.reader.transport, KvikioTransport)
        assert "cuFile must support batches" in setup.reader.notes
        for batch, got in zip(batches, setup.run(batches), strict=True):
            assert np.array_equal(got, values[batch.numpy()])
        setup.close()
    finally:
        ctypes.CDLL(None).unsetenv(b"GIDS_CUFILE_BATCH")


@pytest.mark.pooled
def test_a_loader_through_cufiles_batches(dataset):
    assert gds_availability() == ""
    options = {
        "seeds": "train", "fanouts": [3, 4], "batch_size": 48, "seed": 5, "sweep_batches": 3, "window": 4,
        "cache": "8KiB", "host_buffer": 0,
    }  # fmt: skip

    def load(**more):
        with gids.Loader(dataset, **loader_arguments(options | more)) as loader:
            found = []
            for batch in loader:
                map_tensors(batch, lambda tensor: found.append(tensor.clone()) or tensor)
            return found, dict(loader.notes)

    expected, _ = load()
    got, notes = load(device="cuda", device_budget="64MiB", storage="gds")
    assert len(got) == len(expected) > 10
    assert all(np.array_equal(a.numpy(), b.numpy()) for a, b in zip(got, expected, strict=True))
    assert "cuFile reads in batches" in notes["_N/feat"]
