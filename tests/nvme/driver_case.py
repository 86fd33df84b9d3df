"""Run by test_device.py in a process whose libcuda.so.1 is the stand-in: the real CUDA session drives QEMU's controller."""

import ctypes
import sys
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
from qemu import Machine

from gids.cuda.nvme_queues import READ, DeviceQueues
from gids.cuda.session import CudaSession, open_device
from gids.errors import DeviceError
from gids.nvme import Drives


def registered() -> int:
    """Count the ranges that are registered with the driver and were not given back."""
    values = [ctypes.c_size_t() for _ in range(4)]
    ctypes.CDLL("libcuda.so.1").gids_standin_live(*(ctypes.byref(value) for value in values))
    return values[3].value


image = Path(sys.argv[1])
data = np.frombuffer(image.read_bytes(), np.uint8)
session = CudaSession(open_device())
before = registered()
with Machine([[image]]) as machine, Drives([machine.open()]) as drives:
    with DeviceQueues(drives, session, data_bytes=1 << 20, queue_pairs=2, ids=63) as queues:
        print("registered", registered() - before, "notes", queues.notes)
        reads = np.zeros(300, READ)
        reads["lba"] = np.random.default_rng(0).integers(0, 2000, 300)
        reads["offset"] = np.arange(300) * 1024
        reads["blocks"], reads["bytes"], reads["nsid"] = 2, 1024, 1
        queues.submit(reads).wait()
        for read in reads:
            begin = int(read["lba"]) * 512
            np.testing.assert_array_equal(queues.data[int(read["offset"]) :][:1024], data[begin : begin + 1024])
        underway, deadline = queues.submit(reads, poll=True), time.monotonic() + 60
        while (
            not underway.kernels.has_ended
        ):  # nobody waits for the reads: the stream itself says that its kernels ended
            assert time.monotonic() < deadline
        print("ended")
        underway.wait()
    assert ctypes.CDLL(None).setenv(b"GIDS_STANDIN_HOST_ATOMICS", b"0", 1) == 0
    try:
        DeviceQueues(drives, session, data_bytes=1 << 20)
    except DeviceError as error:
        print("refused:", error)
    print("left", registered() - before)
