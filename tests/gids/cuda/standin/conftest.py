"""Cases that run in a process whose libcuda.so.1 is the stand-in; test_standin.py starts that process."""

import ctypes
import gc

import pytest

from gids.generate import communities


@pytest.fixture(scope="session")
def dataset(tmp_path_factory):
    """Give a graph of 1500 nodes with 20 float32 features."""
    return communities(tmp_path_factory.mktemp("graph") / "g", num_nodes=1500, degree=8, dim=20, train=0.15)


class Live:
    """What the stand-in has given out and not got back."""

    def __init__(self):
        self._library = ctypes.CDLL("libcuda.so.1")

    def __call__(self):
        gc.collect()
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
