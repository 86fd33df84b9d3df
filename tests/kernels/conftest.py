"""Fixtures for running device code lane by lane on the CPU."""

import json
import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent / "simt"))
sys.modules["simt_runner"] = runner = __import__("runner")

UNDER_TSAN = "GIDS_SIMT_SANITIZE" in os.environ


@pytest.fixture(scope="session")
def simt(request):
    """Give the entry points, built plain, or with the sanitizer named by GIDS_SIMT_SANITIZE in its own process."""
    sanitize = os.environ.get("GIDS_SIMT_SANITIZE", "")
    machine = runner.Simt(runner.build(sanitize))
    yield machine
    if not request.session.testsfailed:  # what `gids status` reports as run lane by lane
        worker = os.environ.get("PYTEST_XDIST_WORKER", "main")
        record = runner.ROOT / "build" / "evidence" / f"lanes-{sanitize or 'plain'}-{worker}.json"
        record.parent.mkdir(parents=True, exist_ok=True)
        record.write_text(json.dumps(sorted(machine.launched)))


#: Threads of a block, and the seed of the interleaving. Blocks below a warp and odd ones are legal, too.
#: Under TSan one shape: two warps a block have every pair that can race: lanes of a warp, of two warps, of two blocks.
SHAPES = [(64, 2)] if UNDER_TSAN else [(32, 1), (64, 2), (256, 3), (96, 4)]


@pytest.fixture(params=SHAPES, ids=lambda shape: f"block{shape[0]}-seed{shape[1]}")
def session(simt, request):
    """Give a device session that runs kernels lane by lane."""
    from session import SimtSession

    threads, seed = request.param
    return SimtSession(simt, threads, seed)
