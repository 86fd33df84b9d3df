"""Runs standin/case_*.py in a process whose CUDA driver is the stand-in: the real Python path, with no GPU."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("cuda.core", reason="cuda-core is not installed (tests/requirements.txt brings it)")

ROOT = Path(__file__).resolve().parents[3]
CASES = sorted((Path(__file__).parent / "standin").glob("case_*.py"))


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
    return os.environ | {
        "LD_LIBRARY_PATH": f"{standin}:{os.environ.get('LD_LIBRARY_PATH', '')}",
        "GIDS_STANDIN_KERNELS": str(kernels),
        "GIDS_CACHE_DIR": str(ROOT / "build" / "cache"),
    }


def run(environment, *command, **more):
    return subprocess.run(
        command, env=environment | more, cwd=ROOT, capture_output=True, text=True, check=False, timeout=280
    )


@pytest.mark.slow
@pytest.mark.xdist_group("standin")
@pytest.mark.parametrize("case", CASES, ids=lambda path: path.stem)
def test_case(environment, case):
    result = run(
        environment, sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-o", "python_files=case_*.py",
        "--timeout=120", str(case),
    )  # fmt: skip
    assert result.returncode == 0, f"{result.stdout[-6000:]}\n{result.stderr[-3000:]}"
    assert " passed" in result.stdout


LOAD = """
import sys, gids
from gids.generate import communities
dataset = communities(sys.argv[1], num_nodes=200, dim=4, train=0.5)
try:
    list(gids.Loader(dataset, split="train", fanouts=[2], device="cuda"))
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


def test_the_stand_in_sees_a_write_outside_an_allocation(environment):
    code = """
import numpy as np
from gids.cuda.session import CudaSession, open_device
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
