"""FIEMAP: where the bytes of a file are, and every reason to refuse; on a real ext4 where the machine allows mounts."""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest

from gids import ConfigError, DatasetError
from gids.nvme import ExtentMap, FileExtents, map_files, resolve_extents


def run(*command):
    return subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False)


@pytest.fixture
def ext4(tmp_path):
    """A mounted ext4 in an image, with a fragmented file, a file with a hole and a small one; then read-only."""
    image, mount = tmp_path / "ext4.img", tmp_path / "mnt"
    if shutil.which("mkfs.ext4") is None:
        pytest.skip("e2fsprogs is not installed: extents on a real filesystem ARE NOT TESTED")
    with image.open("wb") as file:
        file.truncate(32 << 20)
    mount.mkdir()
    run("mkfs.ext4", "-q", "-F", "-b", "4096", image)
    if (result := run("mount", "-o", "loop", image, mount)).returncode:
        pytest.skip(f"no loop mounts here, so extents on a real filesystem ARE NOT TESTED: {result.stderr}")
    try:
        random = np.random.default_rng(0)
        with (mount / "feat.bin").open("wb") as one, (mount / "other.bin").open("wb") as two:
            for _ in range(6):  # in turns and synced, so that the files lie between each other
                for file in (one, two):
                    file.write(random.bytes(300_000))
                    file.flush()
                    run("sync", "-f", mount)
        with (mount / "hole.bin").open("wb") as file:
            file.seek(1 << 20)
            file.write(b"end")
        yield image, mount
    finally:
        run("umount", mount)


def test_extents_point_at_the_bytes(ext4):
    image, mount = ext4
    run("mount", "-o", "remount,ro", mount)
    found = resolve_extents(mount / "feat.bin")
    assert found.bytes == 1_800_000
    assert len(found.extents) > 1, "the file is meant to be in several pieces"
    raw = image.read_bytes()
    joined = b"".join(raw[physical : physical + length] for _, length, physical in found.extents)
    assert joined[: found.bytes] == (mount / "feat.bin").read_bytes()
    shifted = resolve_extents(mount / "feat.bin", partition_offset=1 << 20)
    assert shifted.extents[0][2] == found.extents[0][2] + (1 << 20)


def test_a_file_that_could_move_is_refused(ext4):
    _, mount = ext4
    with pytest.raises(ConfigError, match=r"must be immutable \(chattr \+i\) or on a read-only mount"):
        resolve_extents(mount / "feat.bin")
    if run("chattr", "+i", mount / "feat.bin").returncode == 0:
        assert resolve_extents(mount / "feat.bin").extents
        run("chattr", "-i", mount / "feat.bin")


def test_holes_and_unwritten_space_are_refused(ext4):
    _, mount = ext4
    run("fallocate", "-l", "1M", mount / "reserved.bin")
    run("sync", "-f", mount)
    run("mount", "-o", "remount,ro", mount)
    with pytest.raises(ConfigError, match="no holes"):
        resolve_extents(mount / "hole.bin")
    with pytest.raises(ConfigError, match="allocated but never written"):
        resolve_extents(mount / "reserved.bin")


def test_other_filesystems_and_devices_are_refused(tmp_path, ext4):
    with tempfile.NamedTemporaryFile(dir="/dev/shm", prefix="gids-test-") as memory:
        memory.write(b"x" * 5000)
        memory.flush()
        with pytest.raises(ConfigError, match=r"must be on ext4 or xfs.*got tmpfs"):
            resolve_extents(memory.name)
    with pytest.raises(ConfigError, match=r"plain NVMe namespace or partition \(got loop"):
        map_files([ext4[1] / "feat.bin"])
    with pytest.raises(ConfigError, match="at least one file"):
        map_files([])


def test_maps_survive_the_way_to_disk_and_back(tmp_path):
    extents = ExtentMap("serial", 1, (FileExtents("/a", 9000, ((0, 8192, 40960), (8192, 4096, 0)), ((0, "aa"),)),))
    extents.save(tmp_path / "map.json")
    assert ExtentMap.load(tmp_path / "map.json") == extents
    text = (tmp_path / "map.json").read_text()
    (tmp_path / "map.json").write_text(text.replace("40960", "45056"))
    with pytest.raises(DatasetError, match="undamaged"):
        ExtentMap.load(tmp_path / "map.json")


def test_a_file_on_ext4_is_read_without_the_filesystem(ext4, tmp_path):
    """Map the file while it is mounted, unmount, then read it by its extents through QEMU's controller."""
    harness = Path(__file__).parents[2] / "nvme"
    if shutil.which("qemu-system-x86_64") is None:
        pytest.skip("qemu-system-x86 is not installed: NOTHING of the NVMe path is tested")
    sys.path.insert(0, str(harness))
    from qemu import Machine

    from gids import RowTable, Stripe
    from gids.nvme import Drives
    from gids.storage import RowReader, StorageOptions

    image, mount = ext4
    run("mount", "-o", "remount,ro", mount)
    found = resolve_extents(mount / "feat.bin")
    data = np.frombuffer((mount / "feat.bin").read_bytes(), np.uint8)
    run("umount", mount)
    table = RowTable("t", "uint8", 1000, 1800, 1000, (Stripe(mount / "feat.bin", 0, 1800),), 1800)
    extents = ExtentMap("gids-test-0", 1, (found,))
    with Machine([[image]]) as machine, Drives([machine.open()]) as drives:
        with pytest.raises(DatasetError, match="belongs to the drive with serial 'other'"):
            drives.attach_map(ExtentMap("other", 1, (found,)))
        moved = FileExtents(
            found.path, found.bytes, tuple((a, b, c + 4096) for a, b, c in found.extents), found.samples
        )
        with pytest.raises(DatasetError, match="no longer where the map says"):
            drives.attach_map(ExtentMap("gids-test-0", 1, (moved,)))
        drives.attach_map(extents)
        with RowReader(table, StorageOptions(engine="nvme")) as reader:
            rows = np.random.default_rng(1).permutation(1800)
            np.testing.assert_array_equal(reader.read(rows).numpy(), data.reshape(1800, 1000)[rows])
