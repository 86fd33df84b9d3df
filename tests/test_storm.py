"""Whole suites under a signal every millisecond: every system call that one interrupts is made again."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
# Left out: what counts signals or the time itself.
SUITES = {
    "storage": ["tests/gids/storage", "--deselect=tests/gids/storage/test_bench_disk.py", "-k", "not interrupt"],
    "nvme": ["tests/nvme/test_drive.py", "tests/nvme/test_engine.py", "-k", "not many_random_reads"],
    "loader": ["tests/gids/loader/test_loader.py", "tests/gids/tiers/test_shared.py"],
}


def test_every_suite_is_there():
    named = [word.removeprefix("--deselect=") for suite in SUITES.values() for word in suite if "tests/" in word]
    assert len(named) >= len(SUITES)
    assert not [path for path in named if not (ROOT / path).exists()]


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("suite", SUITES)
def test_suite_under_signals(suite):
    # pytest-timeout's own way uses the same signal.
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "tests.storm",
        "-o",
        "timeout_method=thread",
        "-m",
        "not long",
    ]
    result = subprocess.run(
        [*command, *SUITES[suite]], cwd=ROOT, capture_output=True, text=True, check=False, timeout=3500
    )
    assert result.returncode == 0, result.stdout[-6000:]
