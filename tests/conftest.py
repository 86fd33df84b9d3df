"""For every test: a cache directory of its own; files with slow tests first, so that no worker ends alone with one."""

import itertools
import os
import random
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

_RUN = "GIDS_TEST_RUN"  # the directory of the run, made by the first process and inherited by xdist's workers
_numbers = itertools.count()


def pytest_configure(config: pytest.Config) -> None:
    """Make the directory of the run. What only costs time to make anew stays where it was."""
    if _RUN in os.environ:
        return
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    os.environ.setdefault("CCACHE_DIR", str(home / "ccache"))
    os.environ.setdefault("MPLCONFIGDIR", str(home / "matplotlib"))
    run = tempfile.mkdtemp(prefix="gids-tests-")
    os.environ[_RUN] = run
    os.environ["XDG_CACHE_HOME"] = str(Path(run) / "shared")  # of fixtures that outlive a test
    config.add_cleanup(lambda: shutil.rmtree(run, ignore_errors=True))
    config.add_cleanup(lambda: os.environ.pop(_RUN, None))


@pytest.fixture(autouse=True)
def own_cache() -> Iterator[None]:
    """Let each test measure, keep and find curves and other cached files of its own.

    Without monkeypatch: an autouse fixture that asks for it would make it the last to be undone in every test.
    """
    worker, before = os.environ.get("PYTEST_XDIST_WORKER", "main"), os.environ["XDG_CACHE_HOME"]
    os.environ["XDG_CACHE_HOME"] = str(Path(os.environ[_RUN]) / f"{worker}-{os.getpid()}-{next(_numbers)}")
    yield
    os.environ["XDG_CACHE_HOME"] = before


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Move files with slow tests to the front; or keep the files' order and shuffle each (tests/flaky.py)."""
    if seed := os.environ.get("GIDS_TEST_ORDER"):
        files = {path: number for number, path in enumerate(dict.fromkeys(item.path for item in items))}
        random.Random(int(seed)).shuffle(items)
        items.sort(key=lambda item: files[item.path])
        return
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)
