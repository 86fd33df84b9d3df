"""``gids budget``: a split with its reasons, in words and as JSON; fixed numbers are kept; too little is refused."""

import json

import pytest

from gids import generate
from gids.cli import main


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("budget") / "g"
    generate.rmat(path, num_nodes=5000, degree=8, dim=64, seed=1)
    return str(path)


def arguments(path, budget, *more):
    return ["budget", path, "--budget", budget, "--batch-size", "50", "--fanouts", "4", "4", "--batches", "16", *more]


def test_says_what_and_why(path, capsys):
    assert main(arguments(path, "3MiB")) == 0
    printed = capsys.readouterr().out
    for word in ("budget 3.0 MiB", "batches in a group", "batches of window", "host buffer", "gids.Loader(..., cache="):
        assert word in printed


@pytest.mark.parametrize("rank", ["pagerank", "degree", "counted"])
def test_json_and_fixed_numbers(path, capsys, rank):
    assert main(arguments(path, "3MiB", "--json", "--window", "2", "--host", "0", "--rank", rank)) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["total"] <= result["budget"] == 3 << 20
    assert result["loader"]["window"] == 2
    assert result["loader"]["host_buffer"] == 0
    assert result["tables"]["_N feat"]["cache_rows"] > 0


def test_too_little_says_the_minimum(path, capsys):
    assert main(arguments(path, "1MiB")) == 1
    assert "budget must be at least" in capsys.readouterr().err


def test_unknown_split(path, capsys):
    assert main(arguments(path, "3MiB", "--split", "nothing")) == 1
    assert "split" in capsys.readouterr().err
