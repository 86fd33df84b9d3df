"""Runs the kernel tests again in their own process under ThreadSanitizer, and shows that it sees planted races."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from simt_runner import ROOT, build

HERE = Path(__file__).resolve().parent
PLANTED = """
import sys
sys.path.insert(0, {here!r})
import numpy as np
from runner import Simt, build
simt = Simt(build("thread"))
publish, exchange = {publish}, {exchange}
cells = [np.zeros(n, np.uint32) for n in (4, 4, 128, 128)]
simt.launch("probe_publish", 2, 64, *cells[:3], np.int32(publish), seed=3)
simt.launch("probe_exchange", 2, 64, cells[3], np.int32(exchange), seed=3)
"""


def run_under_tsan(command: list[str]) -> subprocess.CompletedProcess[str]:
    build("thread")
    runtime = subprocess.run(["g++", "-print-file-name=libtsan.so"], capture_output=True, text=True, check=True)
    environment = os.environ | {
        "LD_PRELOAD": runtime.stdout.strip(),
        "TSAN_OPTIONS": "exitcode=66",
        "GIDS_SIMT_SANITIZE": "thread",
        "OMP_NUM_THREADS": "1",
    }
    return subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.slow
@pytest.mark.xdist_group("simt-tsan")
@pytest.mark.skipif("GIDS_SIMT_SANITIZE" in os.environ, reason="this is the inner run")
class TestUnderThreadSanitizer:
    @pytest.mark.parametrize(
        ("publish", "exchange", "line"),
        [(1, 1, None), (0, 1, "probe_publish"), (1, 0, "probe_exchange"), (1, 2, "probe_exchange")],
    )
    def test_planted_races_are_seen_and_their_absence_too(self, publish, exchange, line):
        code = PLANTED.format(here=str(HERE / "simt"), publish=publish, exchange=exchange)
        result = run_under_tsan([sys.executable, "-c", code])
        assert result.returncode == (66 if line else 0), result.stderr[-4000:]
        assert ("ThreadSanitizer: data race" in result.stderr) == bool(line)
        assert line is None or f"in {line}" in result.stderr

    @pytest.mark.long
    @pytest.mark.timeout(900)
    def test_every_entry_point_runs_without_a_report(self):
        command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", str(HERE)]
        command += ["-k", "not misuse and not outside and not UnderThreadSanitizer"]
        result = run_under_tsan(command)
        assert result.returncode == 0, f"{result.stdout[-4000:]}\n{result.stderr[-4000:]}"
        assert "ThreadSanitizer" not in result.stderr + result.stdout
        assert " passed" in result.stdout
