"""Frameworks are imported by those who use them, and a missing one says what to install."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.resources import DEADLINE_S

ROOT = Path(__file__).resolve().parents[3]

SCRIPT = """
import sys
import gids, gids.cli
assert not {"dgl", "torch_geometric", "matplotlib"} & set(sys.modules)
sys.modules["dgl"] = sys.modules["torch_geometric"] = None
for module, extra in (("gids.dgl", "gids[dgl]"), ("gids.pyg", "gids[pyg]")):
    try:
        __import__(module)
    except ImportError as error:
        assert extra in str(error), error
    else:
        raise AssertionError(module)
print("done")
"""


def test_frameworks_stay_outside() -> None:
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", SCRIPT]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert result.stdout == "done\n", result.stderr
