"""``gids bench doors --quick`` runs every door that can be opened here, checks rows, and says what is missing."""

import argparse

import pytest

from gids.bench.doors import bars_of, doors, larger_before, run


@pytest.mark.long
def test_every_door_is_measured(tmp_path):
    args = argparse.Namespace(quick=True, data=tmp_path / "g", rounds=None, batches=None, budget="64MiB")
    report = run(args)
    found, missing = doors()
    assert [m.name for m in report.measurements] == found
    assert all(rate > 0 for m in report.measurements for rate in m.rates)
    assert set(report.extra["not_run"]) == set(missing)
    assert len(report.extra["start"]["loader_s"]) == len(report.extra["epochs"]["second_s"]) == 1


def test_bars_of_memory_say_whose_it_is():
    mib = 1 << 20
    rate = {"gids": 100.0, "dgl, our sampler": 96.0, "pyg": 90.0}
    before = {"gids": 200 * mib, "dgl, our sampler": 250 * mib, "pyg": 350 * mib}
    resident = {"gids": 1700 * mib, "dgl, our sampler": 1760 * mib, "pyg": 1850 * mib}
    dgl = list(bars_of("dgl, our sampler", rate, resident, before))
    assert [bar.holds for bar in dgl] == [True, True, True]
    assert [bar.reachable for bar in dgl] == [True, True, True]
    pyg = list(bars_of("pyg", rate, resident, before))
    assert [bar.holds for bar in pyg] == [False, False, True]
    # 150 MiB of imports are more than 5 % of 1700, but nothing proves that a loader could not add less: a plain miss.
    assert all(bar.reachable for bar in pyg)
    assert [round(bar.value, 4) for bar in pyg] == [0.9, 1.0882, 1.0]
    assert larger_before("dgl, our sampler", resident, before) == ""
    assert "150.0 MiB more before there is a loader" in larger_before("pyg", resident, before)
