"""Superblocks and loading: nothing is written before two tellings, and nothing opens that is not exactly right."""

import numpy as np
import pytest
import torch

from gids import ConfigError, DatasetError
from gids.cli import main
from gids.dataset import DatasetWriter, open_dataset
from gids.nvme import StoredFile, Superblock, Target, format_drives, load_dataset
from gids.nvme.raw import check_set, feature_files, read_superblock
from gids.nvme.superblock import SUPERBLOCK_BYTES


@pytest.fixture
def dataset(tmp_path):
    values = torch.from_numpy(np.random.default_rng(0).standard_normal((501, 77)).astype(np.float32))
    with DatasetWriter(tmp_path / "data") as writer:
        writer.add_nodes(501)
        writer.add_features(values)
        writer.add_csc(indptr=[0] * 501 + [1], indices=[3])
    return open_dataset(tmp_path / "data")


def images(directory, count=2, size=8 << 20):
    paths = [directory / f"drive{i}" for i in range(count)]
    for path in paths:
        path.write_bytes(b"\x77" * size)
    return [Target(path, f"serial-{i}") for i, path in enumerate(paths)]


def test_superblock_survives_the_way_to_disk_and_back():
    block = Superblock("set", 1, 3, "S/N 7", "dataset", (StoredFile("a/feat.bin", 12345, 1 << 20, 131072, "ab"),))
    data = block.to_bytes()
    assert len(data) == SUPERBLOCK_BYTES
    assert data[:8] == b"GIDSNVME"
    assert Superblock.from_bytes(data, "x") == block


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: b"\0" * 16 + d[16:], "x carries no gids superblock"),
        (lambda d: d[:8] + b"\2\0\0\0" + d[12:], "version of x must be 1 .got 2."),
        (lambda d: d[:100] + bytes([d[100] ^ 1]) + d[101:], "damaged"),
        (lambda d: d[:12] + b"\xff\xff\xff\x7f" + d[16:], "damaged"),
    ],
)
def test_a_wrong_superblock_is_refused(change, message):
    data = Superblock("set", 0, 1, "s").to_bytes()
    with pytest.raises(DatasetError, match=message):
        Superblock.from_bytes(change(data), "x")


def test_formatting_needs_two_tellings(tmp_path):
    targets = images(tmp_path)
    with pytest.raises(ConfigError, match="erase must be True"):
        format_drives(targets, erase=False)
    with pytest.raises(ConfigError, match="different drives"):
        format_drives([targets[0], targets[0]], erase=True)
    with pytest.raises(ConfigError, match="must be a block device or an image"):
        format_drives([Target(tmp_path, "s")], erase=True)
    with pytest.raises(ConfigError, match="No such file"):
        format_drives([Target(tmp_path / "none", "s")], erase=True)
    assert all(target.path.read_bytes() == b"\x77" * (8 << 20) for target in targets)


def test_formatting_writes_the_superblock_and_nothing_else(tmp_path):
    targets = images(tmp_path)
    blocks = format_drives(targets, erase=True)
    assert [(b.position, b.drives, b.serial, b.dataset_id) for b in blocks] == [
        (0, 2, "serial-0", ""),
        (1, 2, "serial-1", ""),
    ]
    assert blocks[0].set_id == blocks[1].set_id
    for target, block in zip(targets, blocks, strict=True):
        assert read_superblock(target.path) == block
        assert target.path.read_bytes()[SUPERBLOCK_BYTES:] == b"\x77" * ((8 << 20) - SUPERBLOCK_BYTES)


def test_loading_stripes_the_features(tmp_path, dataset):
    targets = images(tmp_path, 3)
    format_drives(targets, erase=True)
    blocks = load_dataset(dataset, targets, unit_bytes=8192)
    assert all(block.dataset_id == dataset.id for block in blocks)
    (file,) = blocks[0].files
    (path,) = feature_files(dataset)
    data = path.read_bytes()
    assert file.bytes == len(data)
    raw = [target.path.read_bytes() for target in targets]
    joined = b"".join(raw[u % 3][file.offset + u // 3 * 8192 :][:8192] for u in range(-(-len(data) // 8192)))
    assert joined[: len(data)] == data


def test_loading_refuses(tmp_path, dataset):
    targets = images(tmp_path)
    with pytest.raises(DatasetError, match="no gids superblock"):
        load_dataset(dataset, targets)
    format_drives(targets, erase=True)
    with pytest.raises(DatasetError, match="all 2 of one set"):
        load_dataset(dataset, targets[:1])
    with pytest.raises(DatasetError, match="stripe order"):
        load_dataset(dataset, targets[::-1])
    with pytest.raises(DatasetError, match="belongs to the drive with serial 'serial-0'"):
        load_dataset(dataset, [Target(targets[0].path, "other"), targets[1]])
    with pytest.raises(ConfigError, match="multiple of 4096"):
        load_dataset(dataset, targets, unit_bytes=1000)
    load_dataset(dataset, targets)
    with pytest.raises(ConfigError, match="overwrite must be True"):
        load_dataset(dataset, targets)
    load_dataset(dataset, targets, overwrite=True)


def test_a_drive_that_is_too_small_ends_with_no_dataset(tmp_path, dataset):
    targets = images(tmp_path, 1, size=SUPERBLOCK_BYTES + 4096)
    format_drives(targets, erase=True)
    with pytest.raises(ConfigError, match="must hold at least"):
        load_dataset(dataset, targets)
    assert read_superblock(targets[0].path).dataset_id == ""


def test_sets_are_not_mixed():
    blocks = [Superblock("a", 0, 2, "0"), Superblock("b", 1, 2, "1")]
    with pytest.raises(DatasetError, match="one set"):
        check_set(blocks, ["0", "1"], ["d0", "d1"])


def test_command_line(tmp_path, dataset, capsys):
    targets = images(tmp_path, 2)
    devices = [word for t in targets for word in ("--device", str(t.path), "--serial", t.serial)]
    assert main(["nvme", "format", *devices]) == 1
    assert "erase must be True" in capsys.readouterr().err
    assert main(["nvme", "format", *devices[:-2], "--erase"]) == 1
    assert "--serial must be given once per --device" in capsys.readouterr().err
    assert main(["nvme", "format", *devices, "--erase"]) == 0
    assert main(["nvme", "load", str(dataset.path), *devices]) == 0
    assert f"loaded dataset {dataset.id}: 1 file(s)" in capsys.readouterr().out
    assert main(["nvme", "info", str(targets[1].path)]) == 0
    out = capsys.readouterr().out
    assert "drive 1 of 2, serial serial-1" in out
    assert dataset.id in out
    assert main(["nvme", "give", "0000:01:00.0"]) == 0
    assert "echo vfio-pci > /sys/bus/pci/devices/0000:01:00.0/driver_override" in capsys.readouterr().out
    assert main(["nvme", "take", "0000:01:00.0"]) == 0
    assert "drivers_probe" in capsys.readouterr().out
    assert main(["nvme", "facts"]) == 0
    assert "IOMMU groups" in capsys.readouterr().out
