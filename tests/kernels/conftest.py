"""Fixtures for running device code lane by lane on the CPU."""

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent / "simt"))
sys.modules["simt_runner"] = runner = __import__("runner")

UNDER_TSAN = "GIDS_SIMT_SANITIZE" in os.environ


@pytest.fixture(scope="session")
def simt():
    """Give the entry points, built plain, or with the sanitizer named by GIDS_SIMT_SANITIZE in its own process."""
    return runner.Simt(runner.build(os.environ.get("GIDS_SIMT_SANITIZE", "")))


#: Threads of a block, and the seed of the interleaving. Blocks below a warp and odd ones are legal, too.
SHAPES = [(32, 1), (64, 2)] if UNDER_TSAN else [(32, 1), (64, 2), (256, 3), (64, 4), (96, 5)]


@pytest.fixture(params=SHAPES, ids=lambda shape: f"block{shape[0]}-seed{shape[1]}")
def session(simt, request):
    """Give a device session that runs kernels lane by lane."""
    from session import SimtSession

    threads, seed = request.param
    return SimtSession(simt, threads, seed)
