"""Run by test_device.py in a process whose libcuda.so.1 is the stand-in: gids.Loader whose kernels drive QEMU's drives."""

import sys
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1] / "standin"))
import fake_torch
from qemu import Machine

import gids
from gids.bench.options import loader_arguments
from gids.cuda.nvme_queues import DeviceQueues
from gids.generate import communities
from gids.nvme import Drives
from gids.runtime.batch import map_tensors
from gids.storage import StorageOptions

fake_torch.install()
PIECE = 4096
GPU = StorageOptions(engine="nvme", submit="gpu")
directory = Path(sys.argv[1])
dataset = communities(directory / "graph", num_nodes=1500, degree=8, dim=37, train=0.15)
OPTIONS = {
    "seeds": "train",
    "fanouts": [3, 4],
    "batch_size": 48,
    "seed": 5,
    "sweep_batches": 3,
    "window": 4,
    "cache": "8KiB",
    "host_buffer": 0,  # it would hold this small table, and the drives would have nothing to read
}


def load(**options):
    return gids.Loader(dataset, **loader_arguments(options))


def tensors(batch):
    found = []
    map_tensors(batch, lambda tensor: found.append(tensor) or tensor)
    return found


def compare(loader, expected):
    got = [batch for _ in range(2) for batch in loader]
    assert len(got) == len(expected) > 4
    for mine, theirs in zip(got, expected, strict=True):
        for a, b in zip(tensors(mine), tensors(theirs), strict=True):
            assert torch.equal(a, b)


table = dataset.feature_table("_N")
(path,) = (stripe.path for stripe in table.stripes)
data = path.read_bytes()
images = [directory / f"image{i}" for i in range(2)]
extents = []
with images[0].open("wb") as first, images[1].open("wb") as second:  # pieces of the file alternate between two drives
    for number, at in enumerate(range(0, len(data), PIECE)):
        file = (first, second)[number % 2]
        extents.append((at, PIECE, file.tell(), number % 2, 1))
        file.write(data[at : at + PIECE].ljust(PIECE, b"\xaa"))
    for file in (first, second):
        file.truncate(1 << 20)

with load(**OPTIONS) as loader:
    expected = [batch for _ in range(2) for batch in loader]
with Machine([[image] for image in images]) as machine, Drives([machine.open(i, pairs=8) for i in range(2)]) as drives:
    device = OPTIONS | {"device": "cuda", "device_budget": "48MiB"}
    try:
        list(load(storage=GPU, **device))
    except gids.ConfigError as error:
        print("refused:", error)
    drives._set.add_extents(str(path), len(extents) * PIECE, extents)
    # Once with the staging memory of a group, once with so little that a group takes several rounds.
    for storage in (
        GPU,
        StorageOptions(engine="nvme", submit="gpu", staging_bytes=32 << 10, max_io_bytes=16 << 10, merge_gap_bytes=0),
        StorageOptions(engine="nvme", submit="cpu"),
    ):
        with load(storage=storage, **device) as loader:
            compare(loader, expected)
            print("reads", loader.stats().tables["_N/feat"].reads)
            print("notes", loader.notes["_N/feat"])
    with load(storage=GPU, **device) as loader:  # dropped in the middle of an epoch
        next(iter(loader))
    print("spurious", [stats["spurious"] for stats in drives.stats])
# A consumer that comes back late: answers are taken meanwhile, so nothing looks like a drive that does not answer.
with Machine([[image] for image in images]) as machine, Drives([machine.open(i, pairs=8) for i in range(2)]) as drives:
    drives._set.add_extents(str(path), len(extents) * PIECE, extents)
    begun, begin = [], DeviceQueues.begin

    def noted(queues):
        begun.append(begin(queues))
        return begun[-1]

    DeviceQueues.begin = noted
    with load(storage=GPU, **device) as loader:
        batches = iter(loader)
        got, deadline = [next(batches)], time.monotonic() + 60
        DeviceQueues.begin = begin
        while begun:
            assert time.monotonic() < deadline, "answers wait for a consumer"
            if begun[-1].has_ended:
                begun.pop()
            else:
                time.sleep(0.01)
        for batch, other in zip([*got, *batches], expected, strict=False):
            assert torch.equal(batch.x, other.x)
    print("time-outs", [stats["timeouts"] for stats in drives.stats])
rule = "file.inject-error.0.event=read_aio,file.inject-error.0.errno=5"
broken = f"driver=raw,file.driver=blkdebug,file.image.driver=file,file.image.filename={images[1]},{rule}"
with Machine([[images[0]], [broken]]) as machine, Drives([machine.open(i, pairs=8) for i in range(2)]) as drives:
    drives._set.add_extents(str(path), len(extents) * PIECE, extents)
    try:
        with load(storage=GPU, **device) as loader:
            list(loader)
    except gids.StorageError as error:
        print("failed:", error)
