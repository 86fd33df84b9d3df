"""Options that no other test gives: what they change, and what they say where they cannot."""

import json

import pytest

import gids
from gids.cli import main
from gids.storage import engine_availability


def generate(path, *words):
    assert main(["generate", "communities", str(path), "--nodes", "400", "--dim", "4", "--quiet", *words]) == 0
    return gids.open(path)


def test_generate_shares_signal_and_seed(tmp_path):
    first = generate(tmp_path / "a", "--train", "0.5", "--val", "0.25", "--test", "0.1", "--signal", "2", "--seed", "7")
    assert [len(first.split(name)) for name in ("train", "val", "test")] == [200, 100, 40]
    assert (first.attributes["signal"], first.attributes["seed"]) == (2.0, 7)
    again = generate(tmp_path / "b", "--train", "0.5", "--val", "0.25", "--test", "0.1", "--signal", "2", "--seed", "7")
    other = generate(tmp_path / "c", "--train", "0.5", "--val", "0.25", "--test", "0.1", "--signal", "2", "--seed", "8")
    louder = generate(
        tmp_path / "d", "--train", "0.5", "--val", "0.25", "--test", "0.1", "--signal", "3", "--seed", "7"
    )
    assert first.id == again.id
    assert len({first.id, other.id, louder.id}) == 3


@pytest.mark.parametrize(
    "engine", [n for n, why in engine_availability().items() if not why and n in ("pread", "mmap")]
)
def test_probe_with_an_engine(tmp_path, engine, capsys):
    (tmp_path / "file").write_bytes(bytes(16 << 20))
    words = ["probe", str(tmp_path / "file"), "--engine", engine, "--seconds", "0.2", "--json", "--no-save"]
    assert main(words) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["engine"], said["engine_reason"], said["stored"]) == (engine, "asked for", None)


def test_nvme_map_of_a_file_that_may_move(tmp_path, capsys):
    (tmp_path / "file").write_bytes(bytes(4096))
    assert main(["nvme", "map", str(tmp_path / "file"), "--out", str(tmp_path / "map.json")]) == 1
    assert "must be" in capsys.readouterr().err
    assert not (tmp_path / "map.json").exists()
