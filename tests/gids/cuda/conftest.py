"""Fixtures of the CUDA backend: kernels are compiled once per checkout, into build/cache."""

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
# Cases of the stand-in replace parts of torch.cuda, from their conftest on: they are collected in processes of their own.
collect_ignore = [] if "GIDS_STANDIN_KERNELS" in os.environ else ["standin"]


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
