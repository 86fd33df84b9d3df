"""Paths for tests of the PTX machine."""

import sys
from pathlib import Path

import pytest

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "kernels" / "simt")]

pytest.importorskip("cuda.core", reason="cuda-core is not installed (tests/requirements.txt brings it)")
