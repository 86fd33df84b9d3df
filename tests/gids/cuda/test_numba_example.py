"""The documented numba-cuda example changes every batch through the hook transform=, under numba's simulator."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gids.generate import communities

ROOT = Path(__file__).resolve().parents[3]


def test_example_under_the_simulator(tmp_path):
    pytest.importorskip("numba", reason="numba-cuda is not installed (tests/requirements.txt brings it)")
    communities(tmp_path / "g", num_nodes=300, degree=4, dim=5, train=0.2)
    command = [sys.executable, ROOT / "docs" / "examples" / "transform_numba.py", tmp_path / "g"]
    environment = os.environ | {"NUMBA_ENABLE_CUDASIM": "1"}
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr[-3000:]
    assert "largest difference from torch" in result.stdout
