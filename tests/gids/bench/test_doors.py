"""``gids bench doors --quick`` runs every door that can be opened here, checks rows, and says what is missing."""

import argparse

import pytest

from gids.bench.doors import doors, run


@pytest.mark.long
def test_every_door_is_measured(tmp_path):
    args = argparse.Namespace(quick=True, data=tmp_path / "g", rounds=None, batches=None, budget="64MiB")
    report = run(args)
    found, missing = doors()
    assert [m.name for m in report.measurements] == found
    assert all(rate > 0 for m in report.measurements for rate in m.rates)
    assert set(report.extra["not_run"]) == set(missing)
    assert len(report.extra["start"]["loader_s"]) == len(report.extra["epochs"]["second_s"]) == 1
