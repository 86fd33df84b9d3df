"""The demo in small: accuracy as from memory, within its budget, with a report; used again without generating."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gids.cli import main
from gids.demo import Settings, memory
from gids.errors import ConfigError


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    path = tmp_path_factory.mktemp("demo")
    import contextlib
    import io

    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        assert main(["demo", "--quick", "--dir", str(path), "--json"]) == 0
    return path, json.loads(out.getvalue())


@pytest.mark.slow
def test_from_disk_is_as_from_memory(demo: tuple[Path, dict[str, Any]]) -> None:
    results = demo[1]["results"]
    assert results["losses_identical"] is True
    assert results["accuracy"]["disk"] == results["accuracy"]["memory"]
    assert results["accuracy"]["disk"] > results["accuracy"]["without_graph"] + 0.1


def test_every_promise_is_reported_and_holds(demo: tuple[Path, dict[str, Any]]) -> None:
    bars = demo[1]["bars"]
    assert len(bars) == 5
    assert all(bar["holds"] for bar in bars), bars


def test_rows_add_up(demo: tuple[Path, dict[str, Any]]) -> None:
    record = demo[1]
    epochs = [epoch for epoch in record["epochs"] if epoch["trainer"] == "from disk"]
    totals = record["results"]["rows_by_source"]
    assert {name: sum(epoch["rows"][name] for epoch in epochs) for name in totals} == totals
    assert totals["disk"] > 0
    assert totals["cache"] > 0
    assert record["memory"]["peak_bytes"] <= record["memory"]["budget_bytes"]
    assert record["memory"]["table_bytes"] >= 4 * record["memory"]["budget_bytes"]


def test_the_report_is_a_page_with_plots_and_a_timeline(demo: tuple[Path, dict[str, Any]]) -> None:
    page = Path(demo[1]["report"])
    assert page == (demo[0] / "report.html").resolve()
    text = page.read_text()
    for figure in ("learning", "tiers", "memory", "throughput", "timeline"):
        assert f'<svg id="{figure}"' in text
    assert "gids-sample" in text


def test_a_second_run_uses_the_dataset_again(
    demo: tuple[Path, dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    manifest = demo[0] / "graph" / "manifest.json"
    before = manifest.stat().st_mtime_ns
    assert main(["demo", "--quick", "--dir", str(demo[0]), "--epochs", "1"]) == 0
    assert manifest.stat().st_mtime_ns == before
    out = capsys.readouterr().out
    assert "identical to the last bit" in out
    assert str(demo[0] / "report.html") in out


def test_a_budget_that_shows_nothing_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--quick", "--dir", str(tmp_path), "--budget", "40MiB"]) == 1
    assert "budget must be at most a quarter of the feature table" in capsys.readouterr().err
    with pytest.raises(ConfigError, match="at most a quarter"):
        Settings(budget_bytes=1 << 40)


METERED = """
import mmap, sys, time
sys.path.insert(0, sys.argv[1])
from memory import MemoryMeter
parts = [bytearray(b"x") * (100 << 10) for _ in range(1000)]
above = bytearray(b"x") * (100 << 10)  # so that the C library cannot give the parts back by itself
del parts
with MemoryMeter() as meter:
    block = bytearray(b"x") * (64 << 20)  # fits where the parts were
print(meter.growth_bytes)
with MemoryMeter() as meter:
    passing = mmap.mmap(-1, 64 << 20)
    passing.write(b"x" * len(passing))
    deadline = time.monotonic() + 120  # on a busy machine the meter's thread may wait long for its turn
    while meter.growth_bytes < 60 << 20 and time.monotonic() < deadline:
        time.sleep(0.01)
    passing.close()
print(meter.growth_bytes)
"""


def test_the_memory_meter_sees_growth_into_free_memory_and_a_peak_that_is_gone_at_the_end() -> None:
    # In a process of its own: what other tests left may free memory while this one measures.
    command = [sys.executable, "-c", METERED, str(Path(memory.__file__).parent)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=True)
    into_free, passing = map(int, done.stdout.split())
    assert 60 << 20 < into_free < 70 << 20
    assert 60 << 20 < passing < 140 << 20
