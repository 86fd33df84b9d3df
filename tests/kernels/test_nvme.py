"""The NVMe entry points lane by lane: many warps submit and poll at once, on a drive made of memory and on QEMU's."""

import ctypes
import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from simt_runner import ROOT

READ = np.dtype(
    [("lba", "<u8"), ("offset", "<u8"), ("blocks", "<u4"), ("bytes", "<u4"), ("nsid", "<u4"), ("drive", "<u4")]
)
SETTLED, DEADLINE, INVALID = 1 << 31, 3 << 16, 1 << 16
SECONDS = 10**9
SOURCES = [
    "tests/kernels/simt/nvme_host.cpp",
    *(f"cpp/nvme/{n}.cpp" for n in ("drive", "controller", "qtest", "status")),
]


@pytest.fixture(scope="session")
def host():
    """Build the host's side with the lanes' sanitizer; without one, most of it is in the installed build already."""
    sanitize = os.environ.get("GIDS_SIMT_SANITIZE", "")
    out = ROOT / "build" / (f"simt-{sanitize}" if sanitize else "simt")
    out.mkdir(parents=True, exist_ok=True)
    flags = [
        "-std=c++20",
        "-O1",
        "-g1",
        "-fPIC",
        "-Icpp",
        "-Ikernels",
        *([f"-fsanitize={sanitize}"] if sanitize else []),
    ]
    compiler = [*([shutil.which("ccache")] if shutil.which("ccache") else []), "g++"]
    archives = [] if sanitize else [str(path) for path in (ROOT / "build").glob("cp3*/libgids_host.a")]
    sources = SOURCES[:1] if archives else SOURCES
    jobs = []
    environment = {k: v for k, v in os.environ.items() if k != "LD_PRELOAD"}
    for source in sources:
        target = out / f"host-{Path(source).stem}.o"
        command = [*compiler, *flags, "-c", source, "-o", str(target)]
        jobs.append((subprocess.Popen(command, cwd=ROOT, env=environment), target))
    assert all(process.wait() == 0 for process, _ in jobs)
    library = out / f"libgids_nvme_host.{os.getpid()}.so"
    objects = [str(target) for _, target in jobs]
    link = ["g++", "-shared", *flags[-1:], *objects, *archives[:1], "-pthread", "-o", str(library)]
    subprocess.run(link, check=True, env=environment)
    loaded = ctypes.CDLL(str(library))
    library.unlink()
    for name in ("gids_nvme_stub", "gids_nvme_qemu", "gids_nvme_drives", "gids_nvme_data"):
        getattr(loaded, name).restype = ctypes.c_void_p
    return loaded


class Drive:
    """A drive with its queues; stops it at the end and checks that no rule was broken."""

    def __init__(self, host, handle):
        assert handle
        self.host, self.handle = host, ctypes.c_void_p(handle)
        self.address = np.uint64(host.gids_nvme_drives(self.handle))

    def data(self, queue, size):
        pointer = self.host.gids_nvme_data(self.handle, ctypes.c_uint32(queue))
        return np.ctypeslib.as_array(ctypes.cast(pointer, ctypes.POINTER(ctypes.c_uint8)), (size,))

    def stop(self):
        out = (ctypes.c_uint64 * 3)()
        self.host.gids_nvme_stop(self.handle, out)
        return dict(zip(("violations", "stray", "commands"), out, strict=True))


def stub(host, depth=64, ids=None, queues=1, ack_batch=16, hold_every=0, answers=1):
    arguments = [ctypes.c_uint32(v) for v in (depth, ids or depth - 1, queues, ack_batch, hold_every)]
    return Drive(host, host.gids_nvme_stub(*arguments, ctypes.c_int(answers)))


def make_reads(count, blocks=1, nsid=1):
    reads = np.zeros(count, READ)
    reads["lba"] = np.random.default_rng(count).permutation(count * 8)[:count]
    reads["offset"] = np.arange(count) * blocks * 512
    reads["blocks"], reads["bytes"], reads["nsid"] = blocks, blocks * 512, nsid
    return reads


def launch(simt, name, drive, reads, results, threads, timeout_ns, *rest, seed):
    # Raw addresses: completions write to the result words until the poll has ended, so they must not move.
    pointers = [drive.address, np.uint64(reads.ctypes.data), np.uint64(results.ctypes.data)]
    simt.launch(name, 1, threads, *pointers, np.uint32(len(reads)), np.uint64(timeout_ns), *rest, seed=seed)


def submit_and_poll(simt, drive, reads, threads, seed, timeout_ns=60 * SECONDS):
    results, unsettled = np.zeros(len(reads), np.uint32), np.zeros(1, np.uint32)
    launch(simt, "nvme_submit", drive, reads, results, threads, timeout_ns, seed=seed)
    launch(simt, "nvme_poll", drive, reads, results, threads, timeout_ns, unsettled, seed=seed + 1)
    return results, int(unsettled[0])


def stub_bytes(lba):
    address = np.uint64(lba) * np.uint64(512) + np.arange(512, dtype=np.uint64)
    return (address * np.uint64(0x9E3779B97F4A7C15) >> np.uint64(56)).astype(np.uint8)


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
    assert unsettled in (1, 2)  # one warp may have taken every id
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
