"""Reads that kernels make, end to end: host set-up, entry points lane by lane, QEMU's controller, every outcome."""

import importlib.util
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from nvme_qemu import Machine, needs_qemu

from gids import ConfigError, DeviceError, StorageError
from gids.cuda.nvme_queues import READ, DeviceQueues
from gids.nvme import Drives
from tests.resources import DEADLINE_S

pytestmark = [needs_qemu, pytest.mark.nvme, pytest.mark.xdist_group("nvme")]
ROOT = Path(__file__).resolve().parents[2]
SIMT = ROOT / "tests" / "kernels" / "simt"


@pytest.fixture(scope="module")
def session():
    sys.path.insert(0, str(SIMT))
    from runner import Simt, build
    from session import SimtSession

    return SimtSession(Simt(build()), block_threads=128)


def reads_of(count, blocks, image_blocks, drives=1, nsid=1, seed=0):
    random = np.random.default_rng(seed)
    reads = np.zeros(count, READ)
    reads["lba"] = random.integers(0, image_blocks - blocks, count)
    reads["offset"] = np.arange(count) * blocks * 512
    reads["blocks"], reads["bytes"], reads["nsid"] = blocks, blocks * 512, nsid
    reads["drive"] = random.integers(0, drives, count)
    return reads


def test_a_plan_over_two_drives(tmp_path, session):
    images = [tmp_path / f"image{i}" for i in range(2)]
    data = []
    for i, image in enumerate(images):
        image.write_bytes(np.random.default_rng(i).bytes(4 << 20))
        data.append(np.frombuffer(image.read_bytes(), np.uint8))
    with Machine([[image] for image in images]) as machine, Drives([machine.open(i) for i in range(2)]) as drives:
        with DeviceQueues(drives, session, data_bytes=4 << 20, ids=31) as queues:
            assert all(address % 4096 == 0 and size % 4096 == 0 for address, size, _ in queues.native.regions())
            for seed in range(3):
                reads = reads_of(500, 9, 8192, drives=2, seed=seed)
                queues.submit(reads).wait()
                for read in reads:
                    begin, size = int(read["lba"]) * 512, int(read["bytes"])
                    got = queues.data[int(read["offset"]) :][:size]
                    np.testing.assert_array_equal(got, data[int(read["drive"])][begin : begin + size])
            queues.submit(reads[:0]).wait()
        assert all(stats["spurious"] == 0 for stats in drives.stats)


def test_errors_name_drive_and_block(tmp_path, session):
    (tmp_path / "image").write_bytes(bytes(1 << 20))
    with (
        Machine([[tmp_path / "image"]]) as machine,
        Drives([machine.open()]) as drives,
        DeviceQueues(drives, session, data_bytes=1 << 20) as queues,
    ):
        reads = reads_of(40, 1, 2048)
        reads["lba"][17] = 5000
        with pytest.raises(StorageError, match=r"drive qtest:4, namespace 1, LBA 5000, 1 blocks: LBA out of range"):
            queues.submit(reads).wait()
        reads["lba"][17], reads["offset"][3] = 0, 2
        with pytest.raises(StorageError, match="breaks a rule of the queue"):
            queues.submit(reads).wait()
        queues.submit(reads[5:10]).wait()
        with pytest.raises(ConfigError, match="must be a vector"):
            queues.submit(np.zeros(3, np.int64))
        reads["drive"] = 1
        with pytest.raises(ConfigError, match="drive of a read must be below 1"):
            queues.submit(reads)


def test_a_time_out_is_ended_by_the_watchdog_and_the_queues_stay_usable(tmp_path, session):
    (tmp_path / "image").write_bytes(np.random.default_rng(9).bytes(1 << 20))
    data = np.frombuffer((tmp_path / "image").read_bytes(), np.uint8)
    # The drive answers long after the deadline, but before recovery gives up: QEMU's reset waits for what is in flight.
    # On a busy machine nothing here is quick, so deadlines are far apart.
    slow = "driver=null-co,size=1048576,latency-ns=4000000000"
    with (
        Machine([[tmp_path / "image", slow]]) as machine,
        Drives([machine.open(timeout_s=0.8, admin_timeout_s=60)]) as drives,
        DeviceQueues(drives, session, data_bytes=1 << 20, timeout_s=60) as queues,
    ):
        with pytest.raises(StorageError, match=r"namespace 2, LBA \d+, 1 blocks: no answer within 800 ms") as info:
            queues.submit(reads_of(3, 1, 2000, nsid=2)).wait()
        assert info.value.errno == 110
        # The watchdog dates a command from when it first saw it: those it saw a look later were stopped with the drive.
        assert 1 <= drives.stats[0]["timeouts"] <= 3
        reads = reads_of(100, 2, 2048, seed=4)
        deadline = time.monotonic() + 60
        while drives.stats[0]["resets"] == 0:
            assert time.monotonic() < deadline, drives.native[0].closed_reason
            time.sleep(0.01)
        queues.submit(reads).wait()
        for read in reads:
            begin = int(read["lba"]) * 512
            np.testing.assert_array_equal(queues.data[int(read["offset"]) :][:1024], data[begin : begin + 1024])


def test_a_block_is_read_by_way_of_each_pair_of_each_drive(tmp_path, session, monkeypatch):
    images = [tmp_path / f"image{i}" for i in range(2)]
    for image in images:
        image.write_bytes(bytes(1 << 20))
    with (
        Machine([[image] for image in images]) as machine,
        Drives([machine.open(i) for i in range(2)]) as drives,
        DeviceQueues(drives, session, data_bytes=1 << 20, queue_pairs=3) as queues,
    ):
        asked, submit = [], queues.submit
        monkeypatch.setattr(queues, "submit", lambda reads: asked.append(reads.copy()) or submit(reads))
        queues.check_doorbells()
    assert [reads["drive"].tolist() for reads in asked] == [[0] * 65, [1] * 65]  # 32 for a warp: the third has the last
    assert all((reads["blocks"] == 1).all() and (reads["nsid"] == 1).all() for reads in asked)


def test_a_doorbell_that_the_drive_does_not_hear(tmp_path, session, monkeypatch):
    monkeypatch.setattr(DeviceQueues, "_carry", lambda queues: None)  # registers written here reach QEMU by this alone
    (tmp_path / "image").write_bytes(bytes(1 << 20))
    with (
        Machine([[tmp_path / "image"]]) as machine,
        Drives([machine.open(timeout_s=0.5, admin_timeout_s=60)]) as drives,
        DeviceQueues(drives, session, data_bytes=1 << 20, timeout_s=60) as queues,
        pytest.raises(DeviceError, match=r"LBA 0, 1 blocks: no answer within 500 ms.*doorbell must reach.*iommu=pt"),
    ):
        queues.check_doorbells()


def run_on_standin(script, argument):
    """Run a script in a process whose driver library is the stand-in; give the lines that it printed."""
    pytest.importorskip("cuda.core", reason="cuda-core is not installed (tests/requirements.txt brings it)")
    sys.path.insert(0, str(SIMT))
    from runner import build as build_kernels

    spec = importlib.util.spec_from_file_location("standin_build", ROOT / "tests" / "standin" / "build.py")
    standin = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(standin)
    environment = os.environ | {
        "LD_LIBRARY_PATH": f"{standin.build()}:{os.environ.get('LD_LIBRARY_PATH', '')}",
        "GIDS_STANDIN_KERNELS": str(build_kernels()),
        "GIDS_CACHE_DIR": str(ROOT / "build" / "cache"),
    }
    command = [sys.executable, str(Path(__file__).parent / script), str(argument)]
    result = subprocess.run(
        command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False, timeout=DEADLINE_S
    )
    assert result.returncode == 0, result.stderr[-4000:]
    return result.stdout.strip().splitlines()


def test_the_real_cuda_session_drives_the_queues(tmp_path):
    """CUDA bindings, NVRTC's module and registered memory, with the stand-in for the driver library."""
    (tmp_path / "image").write_bytes(np.random.default_rng(3).bytes(2 << 20))
    first, ended, refused, last = run_on_standin("driver_case.py", tmp_path / "image")
    # Data, and for each of two pairs its rings and what the watchdog sees; the doorbells are on pages of their own.
    assert int(first.split()[1]) >= 6
    assert "data goes through pinned host memory" in first
    assert ended == "ended"
    assert "must carry compare-and-swap of 32 bits (cuDeviceGetHostAtomicCapabilities: capabilities 0x0)" in refused
    assert "submit='cpu' needs none" in refused
    assert last == "left 0"


def test_a_loader_whose_kernels_read_the_drives(tmp_path):
    """The same batches as on the CPU, in one round of reads per group and in several; failures name the drive."""
    lines = run_on_standin("loader_case.py", tmp_path)
    refused, *engines, spurious, late, failed = lines
    assert refused.startswith("refused: engine nvme needs the file's place on an open drive"), lines
    *kernels, threads = engines[1::2]
    assert all("kernels drive 2 queue pairs on each of 2 drives" in line for line in kernels), lines
    assert "threads of the CPU queue the commands: submit='cpu' was asked for" in threads, lines
    merged, single, by_threads = (int(line.split()[1]) for line in engines[::2])
    assert by_threads >= 5, lines
    assert merged >= 5, lines  # at least one for each group of two epochs
    assert single > 100, lines  # nothing is merged
    assert failed.startswith("failed: read of drive qtest:5, namespace 1, LBA "), lines
    assert "unrecovered read error" in failed, lines
    assert "after 3 retries" in failed, lines
    assert spurious == "spurious [0, 0]"
    assert late == "time-outs [0, 0]"
    evidence = ROOT / "build" / "evidence"  # what `gids status` reports; a selftest has no drive
    evidence.mkdir(parents=True, exist_ok=True)
    record = {"results": [{"name": "storage: nvme", "passed": True}]}
    (evidence / "selftest-standin-nvme.json").write_text(json.dumps(record))
