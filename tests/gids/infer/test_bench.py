"""gids bench infer in small: contenders run, and what does not depend on the machine's speed holds."""

import json
from dataclasses import replace

import pytest

import gids
from gids.bench.infer import QUICK, graphs
from gids.cli import main
from gids.errors import ConfigError


@pytest.mark.slow
def test_the_benchmark_runs(tmp_path, capsys, monkeypatch):
    pytest.importorskip("dgl")
    monkeypatch.setenv("DGLDEFAULTDIR", str(tmp_path / "dgl"))  # a machine on which DGL was never imported
    command = ["bench", "infer", "--quick", "--json", "--no-fail", "--no-limit", "--rounds", "1"]
    command += ["--directory", str(tmp_path)]
    assert main(command) == 0
    report = json.loads(capsys.readouterr().out)
    bars = {bar["name"]: bar for bar in report["bars"]}
    assert bars["bytes of rows read / least, relabelled by partition"]["value"] >= 0.99
    # The whole process, Python and torch included: of the worker itself, however large the process of the tests has grown.
    assert 0.1 < bars["peak resident memory / limit"]["value"] < 0.75
    assert bars["growth of the process / (1.05 x budget + 32 MiB)"]["holds"]
    assert report["results"]["planned"]["bytes_written"] > 0
    # The in-edges are read twice by each of two layers: to see what they need, and to compute.
    edges = gids.open(tmp_path / "local").indices_table().total_bytes
    assert report["results"]["edge_bytes_read"] == 4 * edges
    assert sorted(path.name for path in tmp_path.iterdir()) == ["blocks", "local"]  # no results stay


def test_graphs_of_another_size_are_not_measured(tmp_path):
    graphs(tmp_path, replace(QUICK, nodes=2000, blocks=20, parts=10))
    with pytest.raises(
        ConfigError, match=r"must hold graphs of 20000 nodes and 32 values .*got 2000 and 32 in .*blocks"
    ):
        graphs(tmp_path, QUICK)
