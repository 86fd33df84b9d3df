"""Packed epochs with device="cuda": rows are planned and gathered on the device, the batches are those of the CPU."""

import gids
from gids.generate import communities
from gids.runtime.batch import map_tensors


def tensors(batch):
    found = []
    map_tensors(batch, lambda tensor: found.append(tensor.cpu()) or tensor)
    return found


def test_batches_are_those_of_the_cpu(tmp_path):
    dataset = communities(tmp_path / "g", num_nodes=600, dim=20, train=0.4)
    packed = gids.pack(dataset, tmp_path / "packed", "train", fanouts=[3, 3], batch_size=50, epochs=2, hot="4KiB")
    with (
        gids.Loader(dataset, packed=packed, budget="64MiB") as host,
        gids.Loader(dataset, packed=packed, budget="64MiB", device="cuda") as device,
    ):
        for _ in range(2):
            for one, two in zip(host, device, strict=True):
                assert all((a == b).all() for a, b in zip(tensors(one), tensors(two), strict=True))
