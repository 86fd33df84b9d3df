"""Every entry point's outputs are compared by a test: without it, one fails. What `gids status` calls equal to the CPU."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.long
@pytest.mark.timeout(1500)
@pytest.mark.skipif("GIDS_SIMT_PTX" in os.environ or "GIDS_SIMT_SANITIZE" in os.environ, reason="this is an inner run")
def test_a_kernel_that_does_nothing_fails_a_test():
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")} | {"OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(Path(__file__).parent / "left_out.py")]
    result = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, f"{result.stdout[-4000:]}\n{result.stderr[-2000:]}"
