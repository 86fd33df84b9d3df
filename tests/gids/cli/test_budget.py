"""``gids budget``: what the loader itself would choose, in words and as JSON; fixed numbers are kept; too little is refused."""

import json
import re

import pytest

import gids
from gids import generate
from gids.cli import main
from gids.storage import write_probe


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("budget") / "g"
    generate.rmat(path, num_nodes=5000, degree=8, dim=64, seed=1)
    return str(path)


def arguments(path, budget, *more):
    return ["budget", path, "--budget", budget, "--batch-size", "50", "--fanouts", "4", "4", *more]


def printed_division(capsys, *command):
    assert main([*command, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_says_what_and_why(path, capsys):
    assert main(arguments(path, "4MiB")) == 0
    printed = capsys.readouterr().out
    for word in ("4.0 MiB", "batches a group", "window", "groups share reads", "prefetch", "host buffer"):
        assert word in printed


@pytest.mark.parametrize("rank", ["pagerank", "degree", "counted"])
def test_it_prints_what_the_loader_chooses(path, capsys, rank):
    printed = printed_division(capsys, *arguments(path, "4MiB", "--window", "2", "--host-rank", rank))
    memory = gids.MemoryOptions(host_rank=rank)
    chosen = {"fanouts": [4, 4], "batch_size": 50, "budget": "4MiB", "memory": memory}
    with gids.Loader(path, "train", **chosen, pipeline=gids.PipelineOptions(window=2)) as loader:
        loader.prepare()
        division = loader.division
    assert printed == json.loads(json.dumps(division.as_dict()))
    assert printed["window"] == 2


def test_fixed_memory_is_kept(path, capsys):
    printed = printed_division(capsys, *arguments(path, "4MiB", "--host-buffer", "0", "--cache", "64KiB"))
    parts = printed["allotment"]
    assert parts["host_buffer"] == 0
    assert 0 < parts["cache"] <= 64 << 10


def test_too_little_says_the_minimum_that_then_works(path, capsys):
    assert main(arguments(path, "512KiB")) == 1
    said = capsys.readouterr().err
    assert "budget must be at least" in said
    least = re.search(r"\((\d+) bytes\)", said)[1]
    assert main(arguments(path, least)) == 0


def test_unknown_split(path, capsys):
    assert main(arguments(path, "4MiB", "--seeds", "nothing")) == 1
    assert "seeds must be one of the splits" in capsys.readouterr().err


def test_the_papers_setting_fits_a_device_of_40_gb(capsys):
    described = ["budget", "--rows", "269M", "--dim", "1024", "--batch-rows", "1M", "--cache", "8GiB"]
    printed = printed_division(capsys, *described, "--budget", "64GiB", "--device-memory", "40GB")
    assert printed["allotment"]["cache"] == pytest.approx(8 << 30, rel=0.01)
    assert printed["allotment"]["budget"] <= 40_000_000_000


def test_rows_that_are_spilled(path, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(write_probe, "WRITTEN_BYTES", 4 << 20)
    asked = arguments(path, "4MiB", "--spill", "100MiB", "--spill-dir", str(tmp_path), "--spill-batches", "5")
    printed = printed_division(capsys, *asked)
    spill = gids.SpillOptions("100MiB", tmp_path, batches=5)
    with gids.Loader(path, "train", fanouts=[4, 4], batch_size=50, budget="4MiB", spill=spill) as loader:
        loader.prepare()
        division = loader.division.as_dict()
    for measured in (printed, division):  # the disk is probed by each
        measured["spill"].pop("seconds")
        measured.pop("seconds")
        measured.pop("reasons")
    assert printed == json.loads(json.dumps(division))
    assert printed["spill"]["batches"] == 5
    assert printed["spill"]["disk_bytes"] == 100 << 20
    assert main(asked) == 0
    assert "rows are spilled: " in capsys.readouterr().out
    assert main(arguments(path, "4MiB", "--spill", "100MiB", "--spill-dir", str(tmp_path))) == 0
    assert "rows are not spilled: " in capsys.readouterr().out
    assert main(arguments(path, "4MiB", "--spill-batches", "5")) == 1
    assert "spill must be given with --spill-dir and --spill-batches" in capsys.readouterr().err
    assert main(["budget", "--rows", "1M", "--dim", "16", "--batch-rows", "1k", "--spill", "1GiB"]) == 1
    assert "spill needs a dataset" in capsys.readouterr().err
