"""gids bench disk: runs small, verifies its bytes, reports every promise; fio's absence is said, not hidden."""

import json
import shutil

import numpy as np
import pytest
import torch

from gids import DatasetError, StorageError
from gids.bench.disk_common import bench_file, settle, verify
from gids.bench.fio import run_fio
from gids.cli import main


def test_verify_notices_one_wrong_row(tmp_path):
    with bench_file(tmp_path, 1 << 20, keep=False) as path:
        table = torch.from_numpy(np.fromfile(path, np.int32).reshape(-1, 256))
    assert not path.exists()
    rows = np.array([5, 0, 1000])
    out = table[rows]
    verify(rows, out)
    out[2, 17] += 1
    with pytest.raises(DatasetError, match="bytes read"):
        verify(rows, out)


def test_waits_for_a_disk_that_speeds_up():
    rates = iter([36.0, 60.0, 150.0, 170.0, 165.0, 168.0, 1.0])
    assert settle(lambda: next(rates)) == [36.0, 60.0, 150.0, 170.0, 165.0, 168.0]


def test_does_not_wait_for_ever_for_a_steady_disk():
    rates = iter([1.0, 2.0] * 100)
    assert len(settle(lambda: next(rates), most=8)) == 8


def test_says_what_fio_said(tmp_path, monkeypatch):
    """Where its buffers cannot be locked, fio complains on its standard output, ahead of the JSON."""
    fio = tmp_path / "fio"
    fio.write_text('#!/bin/sh\necho "fio: func=io_queue_init, error=Cannot allocate memory"; echo "{}"; exit 1\n')
    fio.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    with pytest.raises(StorageError, match=r"fio failed: fio: func=io_queue_init, error=Cannot allocate memory \["):
        run_fio(tmp_path / "table", "read", 4096, depth=1, jobs=1, seconds=0.1)


def test_needs_fio(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert main(["bench", "disk", "--quick", "--dir", str(tmp_path)]) == 1
    assert "fio must be installed" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("fio") is None, reason="fio is not installed")
def test_quick_run_reports_every_promise(tmp_path, capsys):
    assert main(["bench", "disk", "--quick", "--json", "--dir", str(tmp_path)]) == 0
    report = json.loads(capsys.readouterr().out)
    random, groups, rest = [0.95, 1.3] * 3, [0.95, 0.95, 2.5, 0.95, 4.0, 0.95], [0.95, 0.9]
    assert [bar["floor"] for bar in report["bars"]] == random + groups + rest
    assert all(bar["value"] > 0 for bar in report["bars"])
    assert report["provenance"]["settings"]["engine"] in ("uring", "pread")
    assert list(tmp_path.iterdir()) == []
