"""Weak memory: what relaxed loads may see, and orders of the NVMe queue that are found when one is left out."""

import os
import shutil

import numpy as np
import pytest
from nvme_drive import load_host, make_reads, stub
from simt_runner import KERNELS, Simt, build

pytestmark = pytest.mark.skipif(
    "GIDS_SIMT_SANITIZE" in os.environ or "GIDS_SIMT_PTX" in os.environ, reason="g++'s build has weak memory"
)
ENTRY = '#include "entry_nvme.cuh"\n'
#: Orders of ring() and of the completion path: text of kernels/nvme_queue.cuh, and the same with the order left out.
ORDERS = {
    "asks hand ready marks to the one who rings": (
        "asks.fetch_add(entries, memory_order_acq_rel)", "asks.fetch_add(entries, memory_order_relaxed)",
    ),
    "the one who rings sees the marks of those who asked": (
        "asks.fetch_sub(served, memory_order_acq_rel)", "asks.fetch_sub(served, memory_order_relaxed)",
    ),
}  # fmt: skip
SETTLED = 1 << 31


def messages(machine, order, seed):
    x, y, seen, went_back = (np.zeros(1, np.uint32) for _ in range(4))
    machine.launch("probe_messages", 1, 64, x, y, seen, went_back, np.int32(order), seed=seed)
    assert (x[0], y[0], went_back[0]) == (5, 1, 0)  # memory itself holds the latest; no location goes back
    return int(seen[0])


def test_a_relaxed_load_may_see_older_stores_and_an_acquired_one_may_not(simt):
    assert {messages(simt, 1, seed) for seed in range(60)} == {5}
    relaxed = [messages(simt, 0, seed) for seed in range(60)]
    assert len(set(relaxed)) > 2
    assert relaxed == [messages(simt, 0, seed) for seed in range(60)]  # by seed, so that a failure can be repeated


def broken(tmp_path, change):
    for path in KERNELS.glob("*.cuh"):
        shutil.copy(path, tmp_path)
    (tmp_path / "entry.cu").write_text(ENTRY)
    if change is not None:
        before, after = change
        text = (tmp_path / "nvme_queue.cuh").read_text()
        assert text.count(before) == 1
        (tmp_path / "nvme_queue.cuh").write_text(text.replace(before, after))
    return Simt(build(variant=tmp_path), weak=True)


def lost_reads(machine, host, seed, timeout_ns):
    """Submit 200 reads from four warps and poll for them; return how many were never answered."""
    drive = stub(host, depth=64, ids=40)
    reads, results, outcome = make_reads(200), np.zeros(200, np.uint32), np.zeros(4, np.uint32)
    set_of_reads = (np.uint64(reads.ctypes.data), np.uint64(results.ctypes.data), 200, timeout_ns)
    try:
        machine.launch("nvme_submit", 1, 128, *drive.submits(*set_of_reads), seed=seed)
        machine.launch("nvme_poll", 1, 128, *drive.polls(*set_of_reads, outcome), seed=seed)
        assert outcome[0] != 0 or (results != 0).all()  # one that a warp gave up may still be answered for another
    finally:
        drive.stop()
    return int((results & ~np.uint32(0x7FFF) != SETTLED).sum())


@pytest.mark.parametrize("order", ORDERS)
def test_an_order_left_out_of_the_queue_is_found(tmp_path, order):
    """Entries that were marked ready are never shown to the drive: their reads end at the deadline."""
    machine, host = broken(tmp_path, ORDERS[order]), load_host()
    assert any(lost_reads(machine, host, seed, 100_000_000) for seed in range(200))  # a third of the seeds lose some


def test_with_every_order_in_place_no_read_is_lost(simt):
    host = load_host()
    assert [lost_reads(simt, host, seed, 60 * 10**9) for seed in range(10)] == [0] * 10
