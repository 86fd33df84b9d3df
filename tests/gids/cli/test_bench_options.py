"""Options that every benchmark has: what ``gids bench NAME`` prints and exits with, whatever was measured."""

import importlib
import json

import pytest

from gids.bench.harness import Bar, Report
from gids.cli import main
from gids.cli.bench import BENCHMARKS

NAMES = [
    "cache", "cluster", "cuda", "disk", "doors", "epoch", "infer", "kg", "nvme", "pack", "partition", "sample", "train",
]  # fmt: skip


def test_these_are_all_benchmarks():
    assert sorted(BENCHMARKS) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_a_missed_promise_is_the_exit_code_unless_told_otherwise(name, monkeypatch, capsys):
    report = Report(name)
    report.bars += [Bar("kept", 2.0, 1.0), Bar("missed", 0.5, 1.0)]
    monkeypatch.setattr(importlib.import_module(f"gids.bench.{name}"), "run", lambda args: report)
    assert main(["bench", name, "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert [bar["holds"] for bar in told["bars"]] == [True, False]
    assert main(["bench", name, "--json", "--no-fail"]) == 0
    assert json.loads(capsys.readouterr().out)["bars"] == told["bars"]
    assert main(["bench", name]) == 1
    assert "missed" in capsys.readouterr().out


def test_commands_per_doorbell(capsys):
    assert main(["bench", "nvme", "--quick", "--json", "--batch", "7"]) == 0
    assert json.loads(capsys.readouterr().out)["provenance"]["settings"]["batch"] == 7
