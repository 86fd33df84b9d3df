"""``gids bench nvme`` runs small and prints what it promises."""

import json

from gids.cli import main


def test_quick_run(capsys):
    assert main(["bench", "nvme", "--quick", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    names = [entry["name"] for entry in report["results"]["rates"]]
    assert names == ["1 thread", "2 threads, a pair each", "2 threads, one pair", "1 thread, doorbell per command"]
    assert all(entry["median"] > 0 and entry["rounds"] == 5 for entry in report["results"]["rates"])
    assert {bar["name"] for bar in report["bars"]} == {
        "commands per second, one thread",
        "two threads against one, a pair each",
    }
