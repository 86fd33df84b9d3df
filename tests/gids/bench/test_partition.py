"""`gids bench partition --quick` runs and reports every promise once."""

import importlib.util
import json

import pytest

from gids.cli import main
from tests.gids.partition.graphs import bipartite


@pytest.mark.slow
def test_quick_run_reports_every_bar(capsys, tmp_path):
    other = bipartite(tmp_path / "other")
    options = ["--quick", "--json", "--directory", str(tmp_path), "--dataset", str(other.path)]
    assert main(["bench", "partition", *options]) == 0
    report = json.loads(capsys.readouterr().out)
    bars = {bar["name"]: bar["value"] for bar in report["bars"]}
    metis = importlib.util.find_spec("pymetis") is not None
    assert len(bars) == len(report["bars"]) == 9 + 2 * metis
    assert all(value >= 0 for value in bars.values())
    assert bars["demo: rows requested with history of 20 % of nodes"] < 1
    assert bars["redundancy ratio, by parts over by chance"] < 0.9
    results = report["results"]
    for name in ("blocks", "rmat", "other"):
        ratios = [*results[f"{name}: redundancy ratio"].values()]
        assert 1 <= ratios[0] <= ratios[1] * 1.05
        assert ratios[1] <= ratios[2] * 1.05
        assert ratios[2] <= ratios[3] * 1.05
    assert results["rows per seed"]["by part"] < results["rows per seed"]["neither"]
    assert [path.name for path in tmp_path.iterdir()] == ["other"]
