"""`gids bench sample --quick` runs, reports every promise once, and counts edges that were really sampled."""

import importlib.util
import json
from types import SimpleNamespace

import pytest

from gids.bench.power_law import power_law_graph
from gids.bench.sample import FULL, QUICK
from gids.bench.sample_limits import ChildEndedError, times_where_one_ended
from gids.bench.sample_ring import what_is_missing
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
    ring = 0 if what_is_missing() else 1
    assert len(names) == len(set(names)) == 13 + ring + times_dgl
    assert sum("times DGL" in name for name in names) == times_dgl
    assert sum("2 threads over 1" in name for name in names) == 2
    assert sum(name.startswith("disk") for name in names) == 6 + ring
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


def test_a_whole_run_has_more_limits_and_threads_than_a_quick_one():
    assert [floor for _, floor in FULL.limits_mib] == [4.0, 1.0, 1.0]
    assert (len(FULL.ring_mib), FULL.ring_threads) == (2, (1, 2))
    assert {*QUICK.limits_mib} < {*FULL.limits_mib}
    assert {*QUICK.ring_mib} < {*FULL.ring_mib}


@pytest.mark.parametrize(("kind", "times"), [("gids, 2 thread(s)", 0.0), ("mapped file", None)])
def test_a_contender_without_enough_memory_has_lost_and_ends_nothing(kind, times):
    child = SimpleNamespace(name=f"{kind}, 1 MiB", kind=kind)
    assert times_where_one_ended(ChildEndedError(child, -9)) == times


def test_power_law_graph():
    indptr, indices = power_law_graph(5000, 100_000)
    degrees = indptr[1:] - indptr[:-1]
    assert abs(len(indices) - 100_000) < 5000
    assert 0 <= indices.min() <= indices.max() < 5000
    assert degrees.max() > 20 * degrees.mean()
