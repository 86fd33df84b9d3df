"""The NVMe entry points lane by lane: many warps submit and poll at once, on a drive made of memory and on QEMU's."""

import ctypes
import importlib.util
import os
import shutil
import sys

import numpy as np
import pytest
from nvme_drive import Drive, load_host, make_reads, stub
from simt_runner import ROOT

SETTLED, DEADLINE, INVALID = 1 << 31, 3 << 16, 1 << 16
SECONDS = 10**9


@pytest.fixture(scope="session")
def host():
    return load_host(os.environ.get("GIDS_SIMT_SANITIZE", ""))


def launch(simt, name, drive, reads, results, threads, timeout_ns, *outcome, seed):
    regions = drive.regions() if hasattr(simt, "region") else []
    for region in regions:  # by which the PTX machine checks scopes, fences and doorbells
        simt.region(*region)
    # Raw addresses: completions write to the result words until the poll has ended, so they must not move.
    set_of_reads = (np.uint64(reads.ctypes.data), np.uint64(results.ctypes.data), len(reads), timeout_ns)
    arguments = drive.polls(*set_of_reads, *outcome) if outcome else drive.submits(*set_of_reads)
    try:
        simt.launch(name, 1, threads, *arguments, seed=seed)
    finally:
        if regions:
            simt.forget_regions()


def submit_and_poll(simt, drive, reads, threads, seed, timeout_ns=60 * SECONDS):
    results, outcome = np.zeros(len(reads), np.uint32), np.zeros(4, np.uint32)
    launch(simt, "nvme_submit", drive, reads, results, threads, timeout_ns, seed=seed)
    launch(simt, "nvme_poll", drive, reads, results, threads, timeout_ns, outcome, seed=seed + 1)
    unsettled, failed, finished, closed = outcome.tolist()
    if not unsettled:
        assert failed == (results != SETTLED).sum()
    assert (finished, closed) == (threads // 32 - drive.queues, 0)
    return results, unsettled


def stub_bytes(lba):
    address = np.uint64(lba) * np.uint64(512) + np.arange(512, dtype=np.uint64)
    return (address * np.uint64(0x9E3779B97F4A7C15) >> np.uint64(56)).astype(np.uint8)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    "shape",
    [
        {"depth": 2, "ack_batch": 1},
        {"depth": 8, "ack_batch": 7, "hold_every": 3},
        {"depth": 64, "queues": 2, "hold_every": 7},
        {"depth": 1024, "queues": 3, "ack_batch": 1},
    ],
    ids=["two entries", "ring full", "two queues", "completion bursts"],
)
def test_many_warps_share_the_queues(simt, host, shape, seed):
    drive = stub(host, **shape)
    reads = make_reads(400)
    results, unsettled = submit_and_poll(simt, drive, reads, threads=128, seed=seed)
    expected = np.where(reads["lba"] % 97 == 5, SETTLED | 0x281, SETTLED)
    memory = [drive.data(q, 400 * 512).copy() for q in range(shape.get("queues", 1))]
    stopped = drive.stop()
    assert unsettled == 0
    np.testing.assert_array_equal(results, expected)
    for i in np.flatnonzero(expected == SETTLED):
        warp = i // 32 % 4
        got = memory[warp % len(memory)][i * 512 : (i + 1) * 512]
        np.testing.assert_array_equal(got, stub_bytes(reads["lba"][i]))
    assert stopped == {"violations": 0, "stray": 0, "commands": 400}


def test_a_whole_plan_is_queued_before_anyone_polls(simt, host):
    drive = stub(host, depth=1024, answers=0)
    reads, results = make_reads(1000), np.zeros(1000, np.uint32)
    launch(simt, "nvme_submit", drive, reads, results, 256, SECONDS, seed=1)
    assert not results.any()
    drive.stop()


def test_a_drive_that_never_answers_ends_at_the_deadline(simt, host):
    drive = stub(host, depth=16, answers=0)
    reads = make_reads(64)
    results, unsettled = submit_and_poll(simt, drive, reads, threads=64, seed=4, timeout_ns=20_000_000)
    assert unsettled == 1  # the other warp looks at the queue
    assert sorted(np.unique(results)) == [0, SETTLED | DEADLINE]
    assert (results == 0).sum() == 15
    drive.stop()


def test_reads_that_break_a_rule_are_settled_without_being_sent(simt, host):
    drive = stub(host)
    reads = make_reads(96)
    reads["offset"][::3] += 2
    results, unsettled = submit_and_poll(simt, drive, reads, threads=64, seed=5)
    assert unsettled == 0
    assert (results[::3] == SETTLED | INVALID).all()
    assert drive.stop()["commands"] == 64


@pytest.mark.nvme
@pytest.mark.parametrize("seed", range(2))
def test_many_warps_on_qemus_controller(simt, host, tmp_path, seed):
    if shutil.which("qemu-system-x86_64") is None:
        pytest.skip("qemu-system-x86 is not installed: NOTHING of the NVMe path is tested")
    harness = importlib.util.spec_from_file_location("nvme_qemu_lanes", ROOT / "tests" / "nvme" / "qemu.py")
    module = sys.modules[harness.name] = importlib.util.module_from_spec(harness)
    harness.loader.exec_module(module)
    image = tmp_path / "image"
    image.write_bytes(np.random.default_rng(seed).bytes(16 << 20))
    data = np.frombuffer(image.read_bytes(), np.uint8)
    with module.Machine([[image]], connect=False) as machine:
        paths = [str(machine.socket).encode(), str(machine.ram).encode()]
        drive = Drive(
            host,
            host.gids_nvme_qemu(*paths, 4, ctypes.c_uint32(3), ctypes.c_uint32(24), ctypes.c_uint64(4 << 20)),
        )
        reads = make_reads(600, blocks=3)
        results, unsettled = submit_and_poll(simt, drive, reads, threads=256, seed=seed)
        memory = drive.data(0, 4 << 20).copy()
        stopped = drive.stop()
    assert unsettled == 0
    assert (results == SETTLED).all()
    assert stopped["stray"] == 0
    for i, lba in enumerate(reads["lba"]):
        np.testing.assert_array_equal(memory[i * 1536 : (i + 1) * 1536], data[lba * 512 : lba * 512 + 1536])
