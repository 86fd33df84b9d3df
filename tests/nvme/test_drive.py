"""A drive brought up in userspace against QEMU's controller: set-up, every shape of read, every way to fail."""

import threading

import numpy as np
import pytest
from nvme_qemu import Machine, needs_qemu

from gids import ConfigError, StorageError

pytestmark = [needs_qemu, pytest.mark.nvme, pytest.mark.xdist_group("nvme")]

IMAGE_BYTES = 4 << 20
# QEMU finishes what is in flight before it confirms a reset, so the latency also bounds the test.
SLOW_NS = "driver=null-co,size=1048576,latency-ns=1200000000"
# Where other commands must be answered in time: on a busy machine nothing is quick, so deadlines are far apart.
SLOWER_NS = "driver=null-co,size=1048576,latency-ns=2000000000"


def make_image(directory, name="image", size=IMAGE_BYTES, seed=0):
    path = directory / name
    path.write_bytes(np.random.default_rng(seed).bytes(size))
    return path


def blkdebug(image, sector, **rule):
    rule = {"event": "read_aio", "errno": 5, "sector": sector, **rule}
    settings = ",".join(f"file.inject-error.0.{key}={value}" for key, value in rule.items())
    return f"driver=raw,file.driver=blkdebug,file.image.driver=file,file.image.filename={image},{settings}"


def test_identify(tmp_path):
    images = [make_image(tmp_path, "a"), make_image(tmp_path, "b", 1 << 20)]
    with Machine([images, [make_image(tmp_path, "c")]], mdts=5) as machine:
        info = machine.open(0).info
        assert info["serial"] == "gids-test-0"
        assert info["model"] == "QEMU NVMe Ctrl"
        assert info["max_transfer_bytes"] == 4096 << 5
        assert info["max_queue_entries"] == 2048
        assert info["io_queues"] == 4
        assert [(n["nsid"], n["blocks"], n["block_bytes"]) for n in info["namespaces"]] == [
            (1, 8192, 512),
            (2, 2048, 512),
        ]
        assert machine.open(1).info["serial"] == "gids-test-1"


def test_a_limitless_controller_is_limited_by_the_list_page(tmp_path):
    with Machine([[make_image(tmp_path)]], mdts=0) as machine:
        drive = machine.open(max_io_bytes=4 << 20)
        assert drive.info["max_transfer_bytes"] == 2**64 - 1
        assert len(drive.read(1, 0, 3 << 20)) == 3 << 20


@pytest.mark.parametrize("block_bytes", [512, 4096])
def test_reads_of_every_length(tmp_path, block_bytes):
    image = make_image(tmp_path)
    data = image.read_bytes()
    with Machine([[image]], mdts=7, block_bytes=block_bytes) as machine:
        drive = machine.open(max_io_bytes=512 << 10)
        for blocks in [1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 64, 65, 128, 1000]:
            size = blocks * block_bytes
            if size > IMAGE_BYTES:
                continue
            for lba in {0, 1, (IMAGE_BYTES - size) // block_bytes}:
                assert drive.read(1, lba, size) == data[lba * block_bytes : lba * block_bytes + size], (blocks, lba)
        assert drive.stats == {"timeouts": 0, "aborted": 0, "resets": 0, "spurious": 0, "late": 0}


def test_namespaces_and_controllers_are_told_apart(tmp_path):
    images = [[make_image(tmp_path, f"{i}{n}", 64 << 10, seed=10 * i + n) for n in range(3)] for i in range(3)]
    with Machine(images) as machine:
        drives = [machine.open(i) for i in range(3)]
        for i, drive in enumerate(drives):
            for n in range(3):
                assert drive.read(n + 1, 8, 4096) == images[i][n].read_bytes()[4096:8192]


def test_depth_is_a_power_of_two_within_the_controllers_limit(tmp_path):
    with Machine([[make_image(tmp_path)]]) as machine:
        for asked, given in [(2, 2), (3, 2), (1000, 512), (65536, 2048)]:
            drive = machine.open(depth=asked)
            assert drive.info["depth"] == given
            assert len(drive.read(1, 3, 8192)) == 8192
            drive.close()


def test_what_cannot_be_read_is_refused(tmp_path):
    with Machine([[make_image(tmp_path)]]) as machine:
        drive = machine.open()
        with pytest.raises(ConfigError, match="namespace"):
            drive.read(2, 0, 512)
        with pytest.raises(ConfigError, match="whole blocks"):
            drive.read(1, 8192, 512)
        with pytest.raises(ConfigError, match="whole blocks"):
            drive.read(1, 0, 100)
        with pytest.raises(ConfigError, match="depth must be from 2"):
            machine.open(depth=1)


def test_media_errors_reach_the_caller(tmp_path):
    image = make_image(tmp_path)
    with Machine([[blkdebug(image, sector=80)]]) as machine:
        drive = machine.open()
        assert drive.read(1, 0, 4096) == image.read_bytes()[:4096]
        with pytest.raises(
            StorageError, match=r"LBA 80: unrecovered read error \(type 2, code 0x81, do-not-retry 0\)"
        ) as info:
            drive.read(1, 80, 512)
        assert info.value.errno == 5
        assert info.value.offset == 80 * 512
        assert drive.read(1, 81, 512) == image.read_bytes()[81 * 512 : 82 * 512]


def test_a_command_that_is_never_answered(tmp_path):
    image = make_image(tmp_path)
    with Machine([[SLOWER_NS, image]]) as machine:
        drive = machine.open(timeout_s=0.8)
        with pytest.raises(StorageError, match="namespace 1, LBA 0: no answer within 800 ms") as info:
            drive.read(1, 0, 512)
        assert info.value.errno == 110
        assert drive.closed_reason == ""
        assert drive.stats["timeouts"] == 1
        assert drive.stats["resets"] == 1
        # The drive is usable again, on the other namespace, and the time-out can come a second time.
        assert drive.read(2, 5, 4096) == image.read_bytes()[5 * 512 : 5 * 512 + 4096]
        with pytest.raises(StorageError, match="no answer"):
            drive.read(1, 0, 512)
        assert drive.stats["resets"] == 2


def test_a_device_that_vanishes(tmp_path):
    with Machine([[SLOW_NS, make_image(tmp_path)]]) as machine:
        drive = machine.open(timeout_s=30)
        threading.Timer(0.2, lambda: machine.native.vanish(4)).start()
        with pytest.raises(StorageError, match="left the bus") as info:
            drive.read(1, 0, 512)
        assert info.value.errno == 19
        assert "left the bus" in drive.closed_reason
        with pytest.raises(StorageError, match="is closed: the device has left the bus"):
            drive.read(2, 0, 512)
        drive.close()


def test_qemu_dies(tmp_path):
    with Machine([[SLOW_NS]]) as machine:
        drive = machine.open(timeout_s=30)
        threading.Timer(0.2, machine.process.kill).start()
        with pytest.raises(StorageError, match="left the bus"):
            drive.read(1, 0, 512)


def test_fatal_status_is_recovered_from(tmp_path):
    image = make_image(tmp_path)
    with Machine([[SLOW_NS, image]]) as machine:
        drive = machine.open(timeout_s=30)
        assert drive.read(2, 0, 512) == image.read_bytes()[:512]

        def break_it():
            # An enable with an admin queue that is not page aligned: the controller answers with CSTS.CFS.
            machine.poke(0, 0x14, 0)
            machine.poke(0, 0x28, 0x123)
            machine.poke(0, 0x14, 0x460001)

        threading.Timer(0.2, break_it).start()
        with pytest.raises(StorageError, match=r"CSTS\.CFS") as info:
            drive.read(1, 0, 512)
        assert info.value.errno == 5
        assert drive.stats["resets"] == 1
        assert drive.read(2, 0, 512) == image.read_bytes()[:512]


def test_no_device_in_the_slot(tmp_path):
    with Machine([[make_image(tmp_path)]]) as machine, pytest.raises(StorageError, match="no NVMe function"):
        machine.open(7)


def test_closing_twice_and_using_a_closed_drive(tmp_path):
    with Machine([[make_image(tmp_path)]]) as machine:
        drive = machine.open()
        drive.close()
        drive.close()
        assert drive.closed_reason == "closed"
        with pytest.raises(StorageError, match="closed"):
            drive.read(1, 0, 512)
