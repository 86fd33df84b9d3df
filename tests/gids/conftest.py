"""For every part: the check that nothing of a loader is left behind."""

import gc
import time
from multiprocessing import resource_tracker

import pytest

from tests.resources import gids_threads, open_files


@pytest.fixture
def nothing_left():
    """Fail when a test leaves a thread or an open file of gids behind."""
    resource_tracker.ensure_running()  # multiprocessing keeps it, and its pipe, for the life of the process
    gc.collect()
    files = open_files()
    yield
    gc.collect()
    deadline = time.monotonic() + 30
    while (gids_threads() or open_files() > files) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert gids_threads() == []
    assert open_files() <= files
