"""What ``gids pack --plan`` says: sizes are counted, times come from a trial that leaves nothing behind."""

import json

import pytest

import gids
from gids.cli import main
from gids.dataset.packed import POSITIONS
from gids.pack import forecast as forecasts
from gids.pack.forecast import Forecast, forecast
from gids.storage import write_probe

pytestmark = pytest.mark.usefixtures("nothing_left")


@pytest.fixture(autouse=True)
def small_trials(monkeypatch):
    monkeypatch.setattr(write_probe, "WRITTEN_BYTES", 4 << 20)
    monkeypatch.setattr(forecasts, "TRIAL_BYTES", 100_000)


def test_sizes_are_those_of_the_packed_epochs(graph, tmp_path):
    arguments = {"seeds": "train", "fanouts": [4, 4], "batch_size": 64, "epochs": 2, "hot": "16KiB"}
    found = forecast(graph, tmp_path / "packed", budget="64MiB", **arguments)
    assert list(tmp_path.iterdir()) == [], "the trial leaves nothing"
    packed = gids.pack(graph, tmp_path / "packed", **arguments)
    assert found.batches == packed.batches == 7
    assert found.disk_bytes == pytest.approx(packed.size_bytes, rel=0.25)
    entry = next(iter(packed.tables.values()))
    assert found.hot_bytes == entry.hot_rows * entry.table.row_bytes > 0
    assert found.rows_bytes == pytest.approx(entry.table.total_bytes, rel=1e-6), "every batch was looked at"
    stored = packed.facts["samples_bytes"] + (tmp_path / "packed" / POSITIONS).stat().st_size
    assert found.samples_bytes == pytest.approx(stored, rel=0.25)
    assert min(found.packing_s, found.packed_epoch_s, found.online_epoch_s, found.packed_bytes_per_s) > 0


def test_a_look_that_ends_early(graph, tmp_path, monkeypatch):
    """Hot rows are then chosen by every other batch that was looked at, and counted in the others."""
    arguments = {"seeds": "train", "fanouts": [4, 4], "batch_size": 64, "epochs": 3, "hot": "16KiB", "budget": "64MiB"}
    whole = forecast(graph, tmp_path / "packed", **arguments)
    monkeypatch.setattr(forecasts, "LOOKED_AT_IDS", 2000)
    monkeypatch.setattr(forecasts, "TRIAL_HOT_BYTES", 1000)
    found = forecast(graph, tmp_path / "packed", **arguments)
    assert found.batches == whole.batches
    assert 0 < found.hot_share < whole.hot_share, "what was not looked at cannot be known"
    assert found.hot_bytes <= 16 << 10


def test_the_command(graph, tmp_path, capsys):
    command = ["pack", str(graph.path), str(tmp_path / "packed"), "--fanouts", "3", "--batch-size", "100", "--plan"]
    assert main([*command, "--budget", "64MiB", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["epochs"] == 1
    assert main([*command, "--budget", "64MiB", "--disk", "4x"]) == 0
    text = capsys.readouterr().out
    assert "packing pays" in text
    assert "an epoch takes" in text
    assert main([*command[:2], str(tmp_path / "none" / "packed"), *command[3:]]) == 1
    assert "must be a directory" in capsys.readouterr().err


def test_lines_say_when_it_pays():
    values = dict.fromkeys(Forecast.__dataclass_fields__, 1)
    pays = Forecast(**(values | {"online_epoch_s": 3.0, "breaks_even": 4}))
    assert "packing pays after 4 epochs" in pays.lines()
    never = Forecast(**(values | {"online_epoch_s": 0.5, "breaks_even": None}))
    assert "packing pays never: reading online is as fast" in never.lines()
