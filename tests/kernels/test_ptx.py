"""Runs the kernel tests again in their own process on the PTX that NVRTC emits: the same bits, and no race."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("cuda.core", reason="cuda-core is not installed (tests/requirements.txt brings it)")

from ptx_build import ROOT, build
from ptx_machine import PtxMachine

HERE = Path(__file__).resolve().parent


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.skipif("GIDS_SIMT_PTX" in os.environ or "GIDS_SIMT_SANITIZE" in os.environ, reason="this is an inner run")
def test_every_entry_point_gives_the_bits_of_the_cpu():
    build()
    record = ROOT / "build" / "evidence" / "lanes-ptx-main.json"
    record.unlink(missing_ok=True)
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist", str(HERE)]
    command += ["--ignore", str(HERE / "test_tsan.py"), "--ignore", str(HERE / "test_weak.py"), "--timeout=280"]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_XDIST")}
    environment |= {"GIDS_SIMT_PTX": "1", "OMP_NUM_THREADS": "1"}
    result = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, f"{result.stdout[-6000:]}\n{result.stderr[-3000:]}"
    launched = set(json.loads(record.read_text()))
    names = {name for name in PtxMachine().names if not name.startswith("probe_")}
    assert len(names) >= 64
    assert names <= launched, f"no kernel test launches {sorted(names - launched)}"
