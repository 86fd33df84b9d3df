"""``gids bench cluster --quick``: ranks on loopback and, where there can be, on hosts of their own; conversion on Ray."""

import json

import pytest

from gids.bench.hosts import refusal
from gids.cli import main


@pytest.mark.long
def test_ranks_are_measured(tmp_path, capsys):
    options = ["--quick", "--json", "--no-fail", "--rounds", "1", "--data", str(tmp_path / "graph")]
    options += ["--only", "rate", "hosts", "convert"]
    assert main(["bench", "cluster", *options]) == 0
    report = json.loads(capsys.readouterr().out)
    results = report["results"]
    rates = {rate["name"]: rate["median"] for rate in results["rates"]}
    assert all(rate > 0 for rate in rates.values())
    for answer in results["sharded"]:
        assert 0 < answer["exchange"]["rows_asked"] < answer["rows"]
    assert all(answer["exchange"] == {} for answer in results["replicated"])
    expected = {"replicated", "sharded"}
    if reason := refusal():
        assert results["not_run"]["hosts"] == reason
    else:
        expected |= {"look-ahead", "ask and wait", "slow link"}
        assert results["model"]["measured_rows_per_s"] > 0
    if "convert" not in results["not_run"]:  # Ray and pyarrow are extras
        expected |= {"one process", "Ray"}
    assert set(rates) == expected
    assert len(report["bars"]) == len(expected) // 2
