"""Cases that run in a process whose libcuda.so.1 is the stand-in, strict, and whose torch.cuda is tests/standin's fake.

test_standin.py starts that process. ``@pytest.mark.forgive("rule", reason=...)`` lets one rule pass for one test; every
such rule is a known defect of docs/standin.md.
"""

import ctypes
import gc
import os
import sys
from pathlib import Path

import pytest

from gids.cuda.blocks import BlockPool
from gids.generate import communities

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "standin"))
import fake_torch

FAKE = fake_torch.install()
POOLED = os.environ.get("GIDS_CASES_POOLED", "1") == "1"


def pytest_configure(config):
    """Declare the marks of these cases."""
    config.addinivalue_line("markers", "forgive(rule, reason): let the stand-in forgive a rule; see docs/standin.md")
    config.addinivalue_line(
        "markers",
        "pooled(always=False): sessions keep freed memory, as they do for users; always: whatever the environment says",
    )
    config.addinivalue_line("markers", "no_context: the test calls the driver with no current context on purpose")


@pytest.fixture
def fake():
    """Return what was asked of torch.cuda, from here on."""
    FAKE.handed.clear(), FAKE.recorded.clear(), FAKE.moved.clear()
    return FAKE


@pytest.fixture(autouse=True)
def forgive(request):
    """Let the rules pass that the test is marked with."""
    library = ctypes.CDLL("libcuda.so.1")
    rules = [mark.args[0].encode() for mark in request.node.iter_markers("forgive")]
    for rule in rules:
        library.gids_standin_forgive(rule, 1)
    yield
    for rule in rules:
        library.gids_standin_forgive(rule, 0)


@pytest.fixture(autouse=True)
def pooled(request, monkeypatch):
    """Return freed memory to the driver at once, which sees every later use; marked tests keep it, as users do.

    What goes back at once waits for the streams of its consumers: a test of what does not wait for them must keep it.
    """
    mark = request.node.get_closest_marker("pooled")
    monkeypatch.setattr(BlockPool, "keeps", mark is not None and (POOLED or mark.kwargs.get("always", False)))


@pytest.fixture(autouse=True)
def driver_calls_have_a_context(request, capfd):
    """Fail a test in which a driver call was made with no current context: it did not happen."""
    yield
    refused = [line for line in capfd.readouterr().err.splitlines() if "with no current context" in line]
    expected = request.node.get_closest_marker("no_context")
    assert expected or not refused, "; ".join(sorted(set(refused)))


@pytest.fixture(scope="session")
def dataset(tmp_path_factory):
    """Return a graph of 1500 nodes with 20 float32 features."""
    return communities(tmp_path_factory.mktemp("graph") / "g", num_nodes=1500, degree=8, dim=20, train=0.15)


class Live:
    """What the stand-in has given out and not got back."""

    def __init__(self):
        self._library = ctypes.CDLL("libcuda.so.1")

    def __call__(self):
        gc.collect()
        for device in (0, 1):
            with fake_torch.Device(device):
                self._library.cuCtxSynchronize()
        values = [ctypes.c_size_t() for _ in range(4)]
        self._library.gids_standin_live(*(ctypes.byref(value) for value in values))
        return dict(zip(("bytes", "pieces", "pinned", "mapped"), (value.value for value in values), strict=True))


@pytest.fixture
def live():
    """Count device allocations, pinned buffers and registered ranges."""
    return Live()


@pytest.fixture
def fault(monkeypatch):
    """Make driver calls fail: ``fault("cuLaunchKernel", 3, 719)`` is the third launch from now on."""
    library = ctypes.CDLL("libcuda.so.1")

    def inject(call, count, error):
        library.gids_standin_forget_calls()
        set_environment(f"{call}:{count}:{error}")

    def set_environment(value):
        ctypes.CDLL(None).setenv(b"GIDS_STANDIN_FAIL", value.encode(), 1)

    yield inject
    set_environment("")
    library.gids_standin_recover()
