"""Runs standin/case_*.py in a process whose CUDA driver is the stand-in: the real Python path, with no GPU."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.resources import DEADLINE_S

pytest.importorskip("cuda.core", reason="cuda-core is not installed (tests/requirements.txt brings it)")

ROOT = Path(__file__).resolve().parents[3]
CASES = sorted((Path(__file__).parent / "standin").glob("case_*.py"))
#: Cases that take long, or leave another device current than they found; the others share a process.
ALONE = ("case_counts", "case_cufile", "case_doors", "case_loader", "case_misuse", "case_slots", "case_strict")
PROCESSES = {path.stem: [path] for path in CASES if path.stem in ALONE}
PROCESSES["others"] = [path for path in CASES if path.stem not in ALONE]


def load(path):
    spec = importlib.util.spec_from_file_location(f"{path.parent.name}_{path.stem}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def environment():
    """Build the stand-in and the lane-by-lane kernels, and say so to a process."""
    standin = load(ROOT / "tests" / "standin" / "build.py").build()
    kernels = load(ROOT / "tests" / "kernels" / "simt" / "runner.py").build()
    # Cases run alone in their process, whoever runs this: pytest-benchmark measures nothing in a worker of xdist.
    alone = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_XDIST")}
    return alone | {
        "LD_LIBRARY_PATH": f"{standin}:{os.environ.get('LD_LIBRARY_PATH', '')}",
        "GIDS_STANDIN_KERNELS": str(kernels),
        "GIDS_CACHE_DIR": str(ROOT / "build" / "cache"),
    }


def run(environment, *command, **more):
    return subprocess.run(
        command, env=environment | more, cwd=ROOT, capture_output=True, text=True, check=False, timeout=DEADLINE_S
    )


def told(result):
    """What failed, and first what the stand-in said of it: the reason, which the end of a long output has not."""
    said = [line for line in result.stdout.splitlines() if line.startswith("gids stand-in for libcuda")]
    return "\n".join([*dict.fromkeys(said), result.stdout[-6000:], result.stderr[-3000:]])


@pytest.mark.slow
@pytest.mark.xdist_group("standin")
@pytest.mark.parametrize("name", PROCESSES)
def test_cases(environment, name):
    result = run(
        environment, sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-o", "python_files=case_*.py",
        f"--timeout={DEADLINE_S}", "-m", "not long", *map(str, PROCESSES[name]),
    )  # fmt: skip
    assert result.returncode == 0, told(result)
    assert " passed" in result.stdout


LOAD = """
import sys, gids
from gids.generate import communities
dataset = communities(sys.argv[1], num_nodes=200, dim=4, train=0.5)
try:
    list(gids.Loader(dataset, "train", fanouts=[2], device="cuda"))
except gids.DeviceError as error:
    print("DeviceError:", error)
"""


def test_a_driver_without_a_device(environment, tmp_path):
    result = run(environment, sys.executable, "-c", LOAD, str(tmp_path / "g"), GIDS_STANDIN_DEVICES="0")
    assert "DeviceError: device='cuda:0' needs a GPU and its driver" in result.stdout, result.stderr[-2000:]
    assert "gids doctor" in result.stdout


def test_no_driver(tmp_path):
    result = run(dict(os.environ), sys.executable, "-c", LOAD, str(tmp_path / "g"))
    assert "DeviceError: device='cuda:0' needs a GPU and its driver" in result.stdout, result.stderr[-2000:]


FILL = """
import numpy as np
from gids.cuda.passes import full
from gids.cuda.session import CudaSession, open_device
session, other = CudaSession(open_device()), CudaSession(open_device())
array = session.empty(4, np.int64)
session.launch("set_values", 4, np.int64(7), np.int64(4), array)
other.wait_event(session.record())
print(other.download(array).tolist(), session.download_later([full(session, 2, 9)]).wait()[0].tolist())
array.__dlpack__(stream=other.stream_handle)
"""

TOUCH = """
import ctypes, faulthandler
faulthandler.enable()
from gids.cuda.passes import full
from gids.cuda.session import CudaSession, open_device
session = CudaSession(open_device())
array = full(session, 8, 3)
session.synchronize()
print(hex(array.pointer), flush=True)
ctypes.string_at(array.pointer, 8)
"""


def test_device_memory_touched_by_host_code(environment):
    result = run(environment, sys.executable, "-c", TOUCH)
    assert result.returncode == -11, result.stderr[-2000:]
    assert f"host code touched device memory at {result.stdout.strip()} (byte 256 of device 0)" in result.stderr
    assert "in string_at" in result.stderr  # and Python says where


def test_an_integrated_device_shares_its_memory(environment):
    result = run(environment, sys.executable, "-c", TOUCH, GIDS_STANDIN_FORGIVE="integrated")
    assert result.returncode == 0, result.stderr[-2000:]


SPIN = """
import numpy as np
from gids._native import NvmeStubDrive
from gids.cuda.pages import RegisteredPages
from gids.cuda.session import CudaSession, open_device
from gids.cuda.nvme_queues import READ, zeros
session = CudaSession(open_device())
stub = NvmeStubDrive(64, 40, 1 << 20)
pages = [RegisteredPages(session.device, address, size) for address, size in stub.regions()]
stub.stop()  # nobody answers any more
reads = np.zeros(4, READ)
reads["blocks"], reads["bytes"], reads["nsid"] = 1, 512, 1
results, outcome = zeros(session, 4), zeros(session, 4)
arguments = (session.upload(reads.view(np.uint8)), results, None, np.uint32(4), np.uint64(600e9))
session.launch("nvme_submit", 1, np.uint64(stub.refs), *arguments, lanes=32)
session.launch("nvme_poll", 2, np.uint64(stub.refs), np.uint32(1), *arguments, outcome, lanes=32)
try:
    session.synchronize()
except Exception as error:
    print(type(error).__name__, error)
"""


def test_a_host_that_waits_for_a_kernel_which_spins_for_it(environment):
    result = run(environment, sys.executable, "-c", SPIN, GIDS_STANDIN_PATIENCE_MS="300")
    assert "DeviceError" in result.stdout, result.stderr[-2000:]
    assert "LAUNCH_TIMEOUT" in result.stdout
    assert (
        "cuStreamSynchronize waits on the host for a stream on which kernel nvme_poll has been running for more than "
        "300 ms" in result.stderr
    )


def test_a_driver_that_is_too_old(environment, tmp_path):
    result = run(environment, sys.executable, "-c", LOAD, str(tmp_path / "g"), GIDS_STANDIN_DRIVER="12040")
    assert "DeviceError: NVIDIA's driver must be for CUDA 13 or later (it is for CUDA 12.4)" in result.stdout
    assert "gids[cuda12]" in result.stdout


FLOOR = Path(os.environ.get("GIDS_FLOOR") or Path(sys.prefix) / "floor")
WHICH = "import cuda.core, runpy, sys; print('cuda.core', cuda.core.__version__); runpy.run_path(sys.argv[1], run_name='__main__')"


def test_the_promised_floor_is_the_one_that_is_tested():
    (pinned,) = re.findall(
        r"^cuda-core==([\d.]+)$", (ROOT / "tests" / "requirements-floor.txt").read_text(), re.MULTILINE
    )
    promised = re.findall(r"cuda-core>=([\d.]+)", (ROOT / "pyproject.toml").read_text())
    assert len(promised) == 2
    assert all(f"{floor}.0" == pinned for floor in promised)


@pytest.mark.skipif(not FLOOR.is_dir(), reason=f"{FLOOR} (or GIDS_FLOOR) has no cuda-core; make test installs it")
@pytest.mark.xdist_group("standin")
def test_kernels_run_with_the_oldest_cuda_core(environment, tmp_path):
    """With PYTHONPATH, because the one of the tests is there too."""
    script = tmp_path / "fill.py"
    script.write_text(FILL)
    result = run(environment, sys.executable, "-c", WHICH, str(script), PYTHONPATH=str(FLOOR))
    (pinned,) = re.findall(r"==([\d.]+)", (ROOT / "tests" / "requirements-floor.txt").read_text())
    assert f"cuda.core {pinned}" in result.stdout, result.stderr[-2000:]
    assert "[7, 7, 7, 7] [9, 9]" in result.stdout, result.stderr[-2000:]


@pytest.mark.long
@pytest.mark.xdist_group("standin")
@pytest.mark.parametrize("seed", range(1, 6))
def test_any_order_that_streams_and_events_allow(environment, seed):
    """Every test of the loader, the long ones too."""
    case = Path(__file__).parent / "standin" / "case_loader.py"
    result = run(
        environment, sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-o", "python_files=case_*.py",
        str(case), GIDS_STANDIN_SEED=str(seed), GIDS_CASES_POOLED=str(seed % 2),
    )  # fmt: skip
    assert result.returncode == 0, told(result)


def test_the_stand_in_sees_a_write_outside_an_allocation(environment):
    code = """
import numpy as np
from gids.cuda.blocks import BlockPool
from gids.cuda.session import CudaSession, open_device
BlockPool.keeps = False
session = CudaSession(open_device())
array = session.empty(8, np.int64)
session.launch("set_values", 9, np.int64(1), np.int64(9), array)
session.synchronize()
del array
try:
    session.synchronize()
except Exception as error:
    print(type(error).__name__, error)
"""
    result = run(environment, sys.executable, "-c", code)
    assert "DeviceError" in result.stdout, result.stderr[-2000:]
    assert "gids stand-in for libcuda: something was written outside an allocation of 64 bytes" in result.stderr
