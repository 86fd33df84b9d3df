"""gids bench infer in small: contenders run, and what does not depend on the machine's speed holds."""

import json

import pytest

from gids.cli import main


@pytest.mark.slow
def test_the_benchmark_runs(tmp_path, capsys):
    pytest.importorskip("dgl")
    command = ["bench", "infer", "--quick", "--json", "--no-fail", "--no-limit", "--rounds", "1"]
    command += ["--directory", str(tmp_path)]
    assert main(command) == 0
    report = json.loads(capsys.readouterr().out)
    bars = {bar["name"]: bar for bar in report["bars"]}
    assert bars["bytes read / least, relabelled by partition"]["value"] >= 0.99
    # The whole process, Python and torch included: of the worker itself, however large the process of the tests has grown.
    assert 0.1 < bars["peak resident memory / limit"]["value"] < 0.75
    assert bars["growth of the process / (1.05 x budget + 32 MiB)"]["holds"]
    assert report["results"]["planned"]["bytes_written"] > 0
