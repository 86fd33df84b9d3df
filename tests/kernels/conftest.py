"""Fixtures for running device code lane by lane on the CPU."""

import json
import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent / "simt"))
sys.modules["simt_runner"] = runner = __import__("runner")
sys.path.insert(0, str(Path(__file__).parents[1] / "ptx"))

UNDER_TSAN = "GIDS_SIMT_SANITIZE" in os.environ
#: The same tests on the machine that runs NVRTC's PTX; test_ptx.py starts that process.
ON_PTX = "GIDS_SIMT_PTX" in os.environ


@pytest.fixture(scope="session")
def simt(request):
    """Return the entry points: g++'s, plain or with the sanitizer of GIDS_SIMT_SANITIZE, or with GIDS_SIMT_PTX NVRTC's."""
    sanitize = os.environ.get("GIDS_SIMT_SANITIZE", "")
    if ON_PTX:
        from ptx_machine import PtxMachine

        machine = PtxMachine(races=True)
    else:
        machine = runner.Simt(runner.build(sanitize), weak=not sanitize)
    yield machine
    if not request.session.testsfailed:  # what `gids status` reports as run lane by lane
        worker = os.environ.get("PYTEST_XDIST_WORKER", "main")
        build = "ptx" if ON_PTX else sanitize or "plain"
        record = runner.ROOT / "build" / "evidence" / f"lanes-{build}-{worker}.json"
        record.parent.mkdir(parents=True, exist_ok=True)
        record.write_text(json.dumps(sorted(machine.launched)))


#: Threads of a block, and the seed of the interleaving. Blocks below a warp and odd ones are legal, too.
#: Under TSan one shape: two warps a block have every pair that can race: lanes of a warp, of two warps, of two blocks.
MORE = () if UNDER_TSAN or ON_PTX else ((96, 4),)
LONG = () if UNDER_TSAN or ON_PTX else ((32, 1), (256, 3))
SHAPES = [(64, 2), *MORE, *(pytest.param(shape, marks=pytest.mark.long) for shape in LONG)]


@pytest.fixture(params=SHAPES, ids=lambda shape: f"block{shape[0]}-seed{shape[1]}")
def session(simt, request):
    """Return a device session that runs kernels lane by lane."""
    from session import SimtSession

    threads, seed = request.param
    return SimtSession(simt, threads, seed)
