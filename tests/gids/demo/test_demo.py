"""The demo in small: accuracy as from memory, within its budget, with a report; used again without generating."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gids.cli import main
from gids.demo import Settings, print_table
from gids.errors import ConfigError
from gids.report import figures, load_run, write_page


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
    # With every neighbour rather than those that were drawn: another number, and not far from it.
    assert abs(results["accuracy"]["exact"] - results["accuracy"]["disk"]) < 0.1


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
    assert all(sum(epoch["rows"].values()) > 0 for epoch in epochs)  # a cache only once the profile is done
    assert record["memory"]["peak_bytes"] <= record["memory"]["budget_bytes"]
    assert record["memory"]["table_bytes"] >= 4 * record["memory"]["budget_bytes"]


def test_the_report_is_a_page_with_plots_and_a_timeline(demo: tuple[Path, dict[str, Any]]) -> None:
    page = Path(demo[1]["report"])
    assert page == (demo[0] / "report.html").resolve()
    text = page.read_text()
    for figure in ("loss", "accuracy", "tiers", "memory", "throughput", "timeline"):
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
    assert "(exact: every neighbour)" in out
    assert str(demo[0] / "report.html") in out
    assert "gids[report]" not in out


def test_without_matplotlib_results_are_printed_and_the_page_has_tables(
    demo: tuple[Path, dict[str, Any]], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(figures.importlib.util, "find_spec", lambda name: None)
    record = load_run(demo[0])
    print_table(record, write_page(record, demo[0] / "plain.html"))
    out = capsys.readouterr().out
    assert "identical to the last bit" in out
    assert "tables only: pip install 'gids[report]'" in out
    assert "<svg" not in (demo[0] / "plain.html").read_text()


def test_a_budget_that_shows_nothing_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--quick", "--dir", str(tmp_path), "--budget", "40MiB"]) == 1
    assert "budget must be at most a quarter of the feature table" in capsys.readouterr().err
    with pytest.raises(ConfigError, match="at most a quarter"):
        Settings(budget_bytes=1 << 40)
