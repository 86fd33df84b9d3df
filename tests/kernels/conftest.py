"""Fixtures for running device code lane by lane on the CPU."""

import importlib.util
import os
import sys
from pathlib import Path

import pytest

_SPEC = importlib.util.spec_from_file_location("simt_runner", Path(__file__).parent / "simt" / "runner.py")
runner = sys.modules["simt_runner"] = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(runner)


@pytest.fixture(scope="session")
def simt():
    """Give the entry points, built plain, or with the sanitizer named by GIDS_SIMT_SANITIZE in its own process."""
    return runner.Simt(runner.build(os.environ.get("GIDS_SIMT_SANITIZE", "")))
