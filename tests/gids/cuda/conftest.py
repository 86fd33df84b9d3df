"""Fixtures of the CUDA backend: kernels are compiled once per checkout, into build/cache."""

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(autouse=True, scope="session")
def cubin_cache():
    """Keep compiled kernels in the build directory."""
    before = os.environ.get("GIDS_CACHE_DIR")
    os.environ["GIDS_CACHE_DIR"] = str(ROOT / "build" / "cache")
    yield ROOT / "build" / "cache" / "cubin"
    if before is None:
        del os.environ["GIDS_CACHE_DIR"]
    else:
        os.environ["GIDS_CACHE_DIR"] = before
