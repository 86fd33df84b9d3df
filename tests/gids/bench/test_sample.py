"""`gids bench sample --quick` runs, reports every promise once, and counts edges that were really sampled."""

import importlib.util
import json

import pytest

from gids.bench.power_law import power_law_graph
from gids.cli import main
from tests.packages import NO_DGL


@pytest.mark.slow
def test_quick_run_reports_every_bar(capsys, tmp_path):
    assert main(["bench", "sample", "--quick", "--json", "--directory", str(tmp_path)]) == 0
    report = json.loads(capsys.readouterr().out)
    names = [bar["name"] for bar in report["bars"]]
    without_dgl = importlib.util.find_spec("dgl") is None
    assert report["results"].get("dgl") == ("not installed: no comparison" if without_dgl else None)
    times_dgl = 0 if without_dgl else 4
    assert len(names) == len(set(names)) == 13 + times_dgl
    assert sum("times DGL" in name for name in names) == times_dgl
    assert sum("2 threads over 1" in name for name in names) == 2
    assert sum(name.startswith("disk") for name in names) == 7
    assert sum(name.startswith(("labor", "serve")) for name in names) == 4
    rates = {rate["name"]: rate for rate in report["results"]["rates"]}
    assert all(rate["median"] > 0 for rate in rates.values())
    assert report["results"]["disk"]["errors"] == 0
    assert report["results"]["disk"]["hot_lists"] > 0
    for latency in report["results"]["latency_us"].values():
        assert 0 < latency["p50"] <= latency["p99"]
    assert not list(tmp_path.iterdir())
    if without_dgl:
        pytest.skip(f"all but the comparison with DGL was checked: {NO_DGL}")


def test_power_law_graph():
    indptr, indices = power_law_graph(5000, 100_000)
    degrees = indptr[1:] - indptr[:-1]
    assert abs(len(indices) - 100_000) < 5000
    assert 0 <= indices.min() <= indices.max() < 5000
    assert degrees.max() > 20 * degrees.mean()
