"""Engine ``nvme`` through RowReader on QEMU's controller: the conformance suite, stripes, faults, many random reads."""

import importlib.util
import inspect
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from nvme_qemu import Machine, needs_qemu

from gids import ConfigError, RowTable, StorageError, Stripe
from gids.nvme import Drives
from gids.storage import RowReader, StorageOptions

pytestmark = [needs_qemu, pytest.mark.nvme, pytest.mark.xdist_group("nvme")]

PIECE = 4096
IMAGE_BYTES = 24 << 20
SLOW = "driver=null-co,size=16777216,latency-ns=1200000000"
# Where other commands must be answered in time, also on a busy machine.
SLOWER = "driver=null-co,size=16777216,latency-ns=2000000000"

_SUITE = Path(__file__).parents[1] / "gids" / "storage"
sys.path.insert(0, str(_SUITE))  # the suite's own helpers


def _load(name):
    spec = importlib.util.spec_from_file_location(f"nvme_{name}", _SUITE / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


suites = [_load("test_reader"), _load("test_failure")]

#: What these check belongs to files that the kernel opens; attaching a drive has checks of its own, below.
_NOT_OURS = {
    "test_missing_file",
    "test_short_file_is_refused_at_open",
    "test_file_truncated_while_open",
    "test_filesystem_without_direct_reads",
    "test_fork_opens_anew_and_a_read_of_the_parent_is_refused",  # a drive belongs to one process
    "test_interrupt_returns_within_a_second",  # starts a process of its own, which has no drive
}


class Disk:
    """Two drives of which files take random pieces, in random order, as on a badly fragmented filesystem."""

    def __init__(self, directory):
        self.images = [directory / f"image{i}" for i in range(2)]
        for image in self.images:
            image.write_bytes(bytes(IMAGE_BYTES))
        self.machine = Machine([[image] for image in self.images])
        self.drives = Drives([self.machine.open(i, pairs=8) for i in range(2)])
        self.random = np.random.default_rng(5)
        self.recycle()

    def recycle(self):
        places = [(d, at) for d in range(2) for at in range(0, IMAGE_BYTES, PIECE)]
        self.free = [places[i] for i in self.random.permutation(len(places))]

    def place(self, table):
        for stripe in table.stripes:
            data = stripe.path.read_bytes()
            extents = []
            for at in range(0, max(len(data), 1), PIECE):
                drive, offset = self.free.pop()
                with self.images[drive].open("r+b") as image:
                    image.seek(offset)
                    image.write(data[at : at + PIECE].ljust(PIECE, b"\xaa"))
                extents.append((at, PIECE, offset, drive, 1))
            self.drives._set.add_extents(str(stripe.path), len(extents) * PIECE, extents)

    def reader(self, table, options=None, pool=None):
        self.place(table)
        return RowReader(table, options, pool)

    def close(self):
        self.drives.close()
        self.machine.close()


@pytest.fixture(scope="module")
def disk(tmp_path_factory):
    disk = Disk(tmp_path_factory.mktemp("disk"))
    yield disk
    assert [stats["spurious"] for stats in disk.drives.stats] == [0, 0]
    disk.close()


@pytest.fixture
def engine(disk, monkeypatch):
    """Stand in for the suite's own fixture: its readers find their files on the drives."""
    disk.recycle()
    for suite in suites:
        monkeypatch.setattr(suite, "RowReader", disk.reader)
    return "nvme"


for _suite in suites:
    for _name, _function in vars(_suite).items():
        if _name.startswith("test_") and "engine" in inspect.signature(_function).parameters and _name not in _NOT_OURS:
            globals()[_name] = _function


def test_the_suite_is_not_empty():
    assert {
        "test_rows_arrive",
        "test_submit_overlaps_and_order_is_free",
        "test_closed_reader",
        "test_nothing_leaks",
    } <= set(globals())


def striped(directory, drives, rows=4000, dim=300, unit=8192, make=None):
    """Write one file over images in stripes, as ``gids nvme load`` does; give table, rows and images."""
    values = np.random.default_rng(2).standard_normal((rows, dim)).astype(np.float32)
    path = directory / "feat.bin"
    path.write_bytes(values.tobytes())
    data = values.tobytes()
    columns = [bytearray() for _ in range(drives)]
    for u, at in enumerate(range(0, len(data), unit)):
        columns[u % drives] += data[at : at + unit].ljust(unit, b"\0")
    images = []
    for i, column in enumerate(columns):
        images.append(directory / f"stripe{i}")
        images[-1].write_bytes(bytes(1 << 20) + bytes(column) + bytes(1 << 20))
    table = RowTable("t", "float32", dim, rows, dim * 4, (Stripe(path, 0, rows),), rows)
    return table, values, images


def attach(drives, table, unit=8192, nsid=1):
    size = -(-table.num_rows * table.row_stride // 4096) * 4096
    drives._set.add_striped(
        str(table.stripes[0].path), size, unit, [(1 << 20, i, nsid) for i in range(len(drives.native))]
    )


@pytest.mark.parametrize("threads", [1, 3])
def test_stripes_over_three_drives(tmp_path, threads):
    table, values, images = striped(tmp_path, 3)
    with Machine([[image] for image in images]) as machine, Drives([machine.open(i) for i in range(3)]) as drives:
        attach(drives, table)
        with RowReader(table, StorageOptions(engine="nvme", threads=threads, queue_depth=96)) as reader:
            rows = np.random.default_rng(threads).integers(0, table.num_rows, 9000)
            np.testing.assert_array_equal(reader.read(rows).numpy(), values[rows])
        assert all(stats["timeouts"] == 0 for stats in drives.stats)


def eio(image, sector, **rule):
    rule = {"event": "read_aio", "errno": 5, "sector": sector, **rule}
    settings = ",".join(f"file.inject-error.0.{key}={value}" for key, value in rule.items())
    return f"driver=raw,file.driver=blkdebug,file.image.driver=file,file.image.filename={image},{settings}"


def test_an_unreadable_block_fails_its_read_and_no_other(tmp_path):
    table, values, images = striped(tmp_path, 1)
    sector = (1 << 20) // 512 + 9
    with Machine([[eio(images[0], sector)]]) as machine, Drives([machine.open()]) as drives:
        attach(drives, table)
        with RowReader(table, StorageOptions(engine="nvme", merge_gap_bytes=0)) as reader:
            pattern = (
                r"drive qtest:4 \(serial gids-test-0\), namespace 1, LBA 20\d\d, \d+ blocks: unrecovered read error "
                r"\(type 2, code 0x81, do-not-retry 0\), after 3 retries"
            )
            with pytest.raises(StorageError, match=pattern) as info:
                reader.read(np.arange(10))
            assert info.value.errno == 5
            np.testing.assert_array_equal(reader.read(np.arange(100, 900)).numpy(), values[100:900])
            with pytest.raises(StorageError, match="unrecovered"):
                reader.read([3])


def test_an_error_that_passes_is_retried(tmp_path):
    table, values, images = striped(tmp_path, 1)
    with Machine([[eio(images[0], (1 << 20) // 512 + 9, once="on")]]) as machine, Drives([machine.open()]) as drives:
        attach(drives, table)
        with RowReader(table, StorageOptions(engine="nvme")) as reader:
            np.testing.assert_array_equal(reader.read(np.arange(100)).numpy(), values[:100])


def test_time_outs_fail_the_read_and_leave_the_engine_usable(tmp_path):
    table, values, images = striped(tmp_path, 1)
    slow = RowTable("slow", "float32", 300, 1000, 1200, (Stripe(tmp_path / "slow.bin", 0, 1000),), 1000)
    (tmp_path / "slow.bin").write_bytes(bytes(1_200_000))
    with Machine([[images[0], SLOWER]]) as machine, Drives([machine.open(timeout_s=0.8)]) as drives:
        attach(drives, table)
        attach(drives, slow, nsid=2)
        with (
            RowReader(table, StorageOptions(engine="nvme")) as reader,
            RowReader(slow, StorageOptions(engine="nvme")) as stuck,
        ):
            with pytest.raises(StorageError, match=r"namespace 2, LBA .*no answer within 800 ms") as info:
                stuck.read([1, 500, 999])
            assert info.value.errno == 110
            assert drives.stats[0]["resets"] >= 1
            assert drives.stats[0]["timeouts"] >= 1
            np.testing.assert_array_equal(reader.read(np.arange(500)).numpy(), values[:500])


def test_a_drive_that_vanishes_closes_the_engine(tmp_path):
    table, values, images = striped(tmp_path, 1)
    with Machine([[images[0]]]) as machine, Drives([machine.open()]) as drives:
        attach(drives, table)
        with RowReader(table, StorageOptions(engine="nvme")) as reader:
            np.testing.assert_array_equal(reader.read([5]).numpy(), values[5:6])
            machine.native.vanish(4)
            for _ in range(2):
                with pytest.raises(StorageError, match="left the bus"):
                    reader.read(np.arange(0, 4000, 7))


def test_closing_the_drives_under_a_reader(tmp_path):
    table, _, images = striped(tmp_path, 1)
    with Machine([[images[0]]]) as machine, Drives([machine.open()]) as drives:
        attach(drives, table)
        with RowReader(table, StorageOptions(engine="nvme")) as reader:
            reader.read([1])
            drives.close()
            with pytest.raises(StorageError, match="the drive was closed"):
                reader.read([1])
        with pytest.raises(ConfigError, match="open drive"):
            RowReader(table, StorageOptions(engine="nvme"))


def reader_once_a_pair_is_free(table):
    """Open a reader; a queue pair that was left behind is given back once the drive has answered."""
    deadline = time.monotonic() + 60
    while True:
        try:
            return RowReader(table, StorageOptions(engine="nvme"))
        except ConfigError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)


def test_dropping_a_reader_with_reads_in_flight(tmp_path):
    table, values, images = striped(tmp_path, 1)
    slow = RowTable("slow", "float32", 300, 1000, 1200, (Stripe(tmp_path / "slow.bin", 0, 1000),), 1000)
    (tmp_path / "slow.bin").write_bytes(bytes(1_200_000))
    with Machine([[images[0], SLOW]]) as machine, Drives([machine.open(timeout_s=60, pairs=2)]) as drives:
        attach(drives, table)
        attach(drives, slow, nsid=2)
        stuck = RowReader(slow, StorageOptions(engine="nvme"))
        pending = stuck.submit(np.arange(100), stuck.read([], None).new_zeros((100, 300)))
        stuck.close()
        del pending
        with RowReader(table, StorageOptions(engine="nvme")) as reader:
            np.testing.assert_array_equal(reader.read([7]).numpy(), values[7:8])
        with (
            RowReader(table, StorageOptions(engine="nvme")) as one,
            reader_once_a_pair_is_free(table) as other,
        ):
            np.testing.assert_array_equal(one.read([8]).numpy(), other.read([8]).numpy())
        assert drives.stats[0]["timeouts"] == 0  # nobody waited for what the drive had not answered yet


def test_more_readers_than_queue_pairs_is_an_error_with_a_way_out(tmp_path):
    table, _, images = striped(tmp_path, 1)
    with Machine([[images[0]]]) as machine, Drives([machine.open(pairs=1)]) as drives:
        attach(drives, table)
        with (
            RowReader(table, StorageOptions(engine="nvme")),
            pytest.raises(ConfigError, match="at most 1, which is what the drive granted"),
        ):
            RowReader(table, StorageOptions(engine="nvme"))


def test_files_that_are_on_no_drive(tmp_path, disk):
    table, _, _ = striped(tmp_path, 1)
    with pytest.raises(ConfigError, match="needs the file's place on an open drive"):
        RowReader(table, StorageOptions(engine="nvme"))
    with pytest.raises(Exception, match="must cover 8192 bytes"):
        disk.drives._set.add_extents("x", 8192, [(0, 4096, 0, 0, 1)])
    with pytest.raises(Exception, match="must end inside"):
        disk.drives._set.add_extents("x", 4096, [(0, 4096, IMAGE_BYTES, 0, 1)])
    with pytest.raises(ConfigError, match="names drive 2 of 2"):
        disk.drives._set.add_extents("x", 4096, [(0, 4096, 0, 2, 1)])


def test_cancelling_from_another_thread_returns(tmp_path):
    slow = RowTable("slow", "float32", 300, 1000, 1200, (Stripe(tmp_path / "slow.bin", 0, 1000),), 1000)
    (tmp_path / "slow.bin").write_bytes(bytes(1_200_000))
    with Machine([[SLOW]]) as machine, Drives([machine.open(timeout_s=5)]) as drives:
        attach(drives, slow)
        with RowReader(slow, StorageOptions(engine="nvme")) as reader:
            pending = reader.submit(np.arange(50), reader.read([], None).new_zeros((50, 300)))
            threading.Timer(0.1, pending.cancel).start()
            with pytest.raises(StorageError):
                pending.wait()


@pytest.mark.slow
@pytest.mark.parametrize(
    "reads", [60_000, pytest.param(2_000_000, marks=[pytest.mark.long, pytest.mark.timeout(1800)])]
)
def test_many_random_reads(tmp_path, reads):
    table, values, images = striped(tmp_path, 2, rows=40_000, dim=128, unit=4096)
    with Machine([[image] for image in images]) as machine, Drives([machine.open(i) for i in range(2)]) as drives:
        attach(drives, table, unit=4096)
        options = StorageOptions(engine="nvme", merge_gap_bytes=0, max_io_bytes=4096, queue_depth=256, threads=2)
        random = np.random.default_rng(0)
        with RowReader(table, options) as reader:
            while reader.stats()["reads"] < reads:
                rows = random.permutation(table.num_rows)[::5]
                np.testing.assert_array_equal(reader.read(rows).numpy(), values[rows])
        assert all(
            stats == {"timeouts": 0, "aborted": 0, "resets": 0, "spurious": 0, "late": 0} for stats in drives.stats
        )
