"""gids bench epoch, small: it runs, verifies its bytes, and reports what it promises."""

import json
import os
import subprocess
import sys
from argparse import Namespace
from pathlib import Path

import pytest

from gids.bench.epoch import run
from gids.errors import ConfigError
from tests.packages import NO_DGL


def test_without_dgl_it_says_so_at_once(monkeypatch):
    monkeypatch.setitem(sys.modules, "dgl", None)
    with pytest.raises(ConfigError, match=r"Python 3\.10, 3\.11: pip install 'gids\[dgl\]'"):
        run(Namespace(quick=True, data=None))


@pytest.mark.long
def test_quick_run():
    pytest.importorskip("dgl", reason=NO_DGL)
    writable = any(os.access(path, os.W_OK) for path in ("/sys/fs/cgroup/memory", "/sys/fs/cgroup/cgroup.procs"))
    command = [
        sys.executable,
        "-m",
        "gids",
        "bench",
        "epoch",
        "--quick",
        "--json",
        *([] if writable else ["--no-limit"]),
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            out, errors = process.communicate(timeout=250)
        finally:
            process.kill()
    assert process.returncode == 0, errors[-3000:]
    report = json.loads(out)
    rates = {rate["name"]: rate["median"] for rate in report["results"]["rates"]}
    assert set(rates) == {"gids", "dgl-mmap-random"}
    assert all(rate > 0 for rate in rates.values())
    bars = {bar["name"]: bar["holds"] for bar in report["bars"]}
    assert bars == {"peak resident memory / limit": True, "growth of the process / (1.05 x budget + 32 MiB)": True}
    results = report["results"]
    assert 0 < results["share_of_ceiling"] <= results["share_of_ceiling_with_merged_gaps"]
    assert results["bytes_verified"]
    (overlap,) = results["overlap"]
    assert overlap["both_s"] > 0.5 * max(overlap["data_s"], overlap["compute_s"])
    assert not list(Path("/sys/fs/cgroup").glob(f"**/gids-bench-{process.pid}-*"))  # another bench may have its own
