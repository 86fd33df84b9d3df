"""A dataset on raw drives end to end: format, load, open, attach, read; and drives that carry something else."""

import numpy as np
import pytest
import torch
from nvme_qemu import Machine, needs_qemu

from gids import DatasetError
from gids.dataset import DatasetWriter, open_dataset
from gids.nvme import Drives, Target, format_drives, load_dataset
from gids.storage import RowReader, StorageOptions

pytestmark = [needs_qemu, pytest.mark.nvme, pytest.mark.xdist_group("nvme")]


def write(directory, seed):
    random = np.random.default_rng(seed)
    with DatasetWriter(directory) as writer:
        writer.add_nodes(3000)
        writer.add_features(torch.from_numpy(random.standard_normal((3000, 100)).astype(np.float32)))
        writer.add_features(torch.from_numpy(random.standard_normal((3000, 33)).astype(np.float16)), name="extra")
        writer.add_csc(indptr=[0] * 3000 + [2], indices=[1, 2])
    return open_dataset(directory)


def test_a_dataset_on_two_raw_drives(tmp_path):
    dataset, other = write(tmp_path / "a", 1), write(tmp_path / "b", 2)
    targets = []
    for i in range(2):
        path = tmp_path / f"image{i}"
        path.write_bytes(bytes(4 << 20))
        targets.append(Target(path, f"gids-test-{i}"))
    with Machine([[t.path] for t in targets]) as machine:
        natives = [machine.open(i) for i in range(2)]
        with Drives(natives) as drives, pytest.raises(DatasetError, match="no gids superblock"):
            drives.attach(dataset)
    format_drives(targets, erase=True)
    load_dataset(dataset, targets)
    with Machine([[t.path] for t in targets]) as machine:
        natives = [machine.open(i) for i in range(2)]
        with pytest.raises(DatasetError, match="all 2 of one set"):
            Drives(natives[:1]).attach(dataset)
        with pytest.raises(DatasetError, match="stripe order"):
            Drives(natives[::-1]).attach(dataset)
        with Drives(natives) as drives:
            with pytest.raises(DatasetError, match=f"must carry dataset {other.id}"):
                drives.attach(other)
            drives.attach(dataset)
            rows = np.random.default_rng(3).integers(0, 3000, 5000)
            for name in ("feat", "extra"):
                table = dataset.feature_table(None, name)
                with (
                    RowReader(table, StorageOptions(engine="nvme")) as raw,
                    RowReader(table, StorageOptions(engine="pread")) as files,
                ):
                    assert torch.equal(raw.read(rows), files.read(rows))
                    assert raw.engine == "nvme"
