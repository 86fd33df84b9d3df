"""The demo in small: accuracy as from memory, within its budget, with a report; used again without generating."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gids.cli import main
from gids.demo import Settings
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
