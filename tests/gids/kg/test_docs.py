"""docs/knowledge_graphs.md does what it says: its commands and snippets run one after the other."""

import re
import shlex
from pathlib import Path

import pytest

from gids.cli import main

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "knowledge_graphs.md").read_text()


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, flags=re.DOTALL | re.MULTILINE)


def test_commands_and_snippets_run(tmp_path, monkeypatch, capsys):
    pytest.importorskip("torch_geometric")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIDS_SCRATCH", str(tmp_path / "scratch"))
    for line in "".join(blocks("sh")).splitlines():
        assert main(shlex.split(line)[1:]) == 0
    assert "redundancy δ_R" in capsys.readouterr().out
    snippets = blocks("python")
    assert len(snippets) == 2
    for snippet in snippets:
        exec(compile(snippet, "docs/knowledge_graphs.md", "exec"), {})
    assert "SlicingFigures" in capsys.readouterr().out
    assert main(["verify", "slices"]) == 0


def test_slicing_continues_and_prints_json(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["generate", "kg", "graph", "--entities", "300", "--train", "0.2", "--reverse", "--quiet"]) == 0
    common = ["slice", "graph", "--hops", "2", "--path", "slices", "--both-ends", "--json", "--quiet"]
    capsys.readouterr()
    assert main([*common, "--limit", "10"]) == 0
    assert '"sliced_now": ' in capsys.readouterr().out
    assert main(common) == 0
    capsys.readouterr()
    assert main(common) == 0
    assert '"sliced_now": 0' in capsys.readouterr().out
    assert main(["slice", "graph", "--split", "nope"]) == 1
    assert "split must be one of" in capsys.readouterr().err
