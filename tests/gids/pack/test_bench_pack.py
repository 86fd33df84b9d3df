"""``gids bench pack --quick``: every contender runs, batches are the same, and the report has the promised form."""

import json

import pytest

from gids.cli import main


@pytest.mark.long
def test_quick(tmp_path, capsys):
    pytest.importorskip("dgl")
    assert main(["bench", "pack", "--quick", "--json", "--no-limit", "--data", str(tmp_path)]) == 0
    report = json.loads(capsys.readouterr().out)
    assert {rate["name"] for rate in report["results"]["rates"]} == {
        "dense online",
        "dense packed",
        "dense rolling",
        "dense mapped",
        "dense packed, disk 3x",
        "sparse online",
        "sparse packed",
        "sparse rolling",
    }
    assert [bar["holds"] for bar in report["bars"]] == [True, True], "equal to the bit in both regimes"
    assert report["results"]["dense"]["bytes read / bytes of rows from disk"] < 1.6
    assert sorted(file.name for file in tmp_path.iterdir()) == ["dense-30k", "sparse-60k"], "nothing else is kept"
