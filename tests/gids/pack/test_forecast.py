"""What ``gids pack --plan`` says: sizes are counted, times come from a trial that leaves nothing behind."""

import json
import subprocess
import sys

import numpy as np
import pytest

import gids
from gids.cli import main
from gids.dataset.packed import POSITIONS
from gids.errors import ConfigError
from gids.pack import forecast as forecasts
from gids.pack import scratch
from gids.pack.forecast import Forecast, forecast
from gids.pack.maker import Trial
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


def test_what_a_killed_plan_left_is_removed(graph, tmp_path):
    """By the next plan or packing beside it; not what another one is using."""
    script = f"""
import os, signal
from gids.pack import forecast
forecast._try_packed = lambda recipe, path, *rest: (path.mkdir(), os.kill(os.getpid(), signal.SIGKILL))
forecast.forecast({str(graph.path)!r}, {str(tmp_path / "packed")!r}, "train", fanouts=[2], batch_size=64)
"""
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == -9
    (left,) = tmp_path.iterdir()
    assert left.name.startswith(scratch.PREFIX)
    with scratch.trial_directory(tmp_path) as used:
        gids.pack(graph, tmp_path / "packed", "train", fanouts=[2], batch_size=64)
        assert set(tmp_path.iterdir()) == {used, tmp_path / "packed"}
    assert list(tmp_path.iterdir()) == [tmp_path / "packed"]


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


def test_a_limit_of_the_disk_is_planned_as_packing_keeps_it(graph, tmp_path):
    arguments = {"seeds": "train", "fanouts": [4, 4], "batch_size": 32, "epochs": 2, "hot": "4KiB"}
    packed = gids.pack(graph, tmp_path / "packed", disk="6x", **arguments)
    assert 1 < packed.segment_batches < 26, "several segments, each of several batches"
    found = forecast(graph, tmp_path / "plan", budget="64MiB", disk="6x", **arguments)
    assert found.segment_batches == packed.segment_batches
    assert found.read_amplification == pytest.approx(np.mean(packed.facts["read_amplification"]), rel=0.1)
    assert found.disk_bytes == pytest.approx(packed.size_bytes, rel=0.1)
    free = forecast(graph, tmp_path / "plan", budget="64MiB", **arguments)
    assert (free.segment_batches, free.disk_bytes > found.disk_bytes) == (1, True)
    assert free.read_amplification < found.read_amplification


def test_too_small_a_disk_is_refused_with_the_minimum_of_packing(graph, tmp_path):
    arguments = {"seeds": "train", "fanouts": [4, 4], "batch_size": 32, "epochs": 2, "hot": "4KiB", "disk": "3x"}
    with pytest.raises(ConfigError, match=r"disk must be at least .* one segment of all 26 batches") as planned:
        forecast(graph, tmp_path / "packed", budget="64MiB", **arguments)
    with pytest.raises(ConfigError) as refused:
        gids.pack(graph, tmp_path / "packed", **arguments)
    assert str(planned.value) == str(refused.value)
    assert list(tmp_path.iterdir()) == []


def test_segments_longer_than_the_look(graph, tmp_path, monkeypatch):
    """What a segment takes is then estimated from what the looked at batches share, and the trial packs a whole one."""
    monkeypatch.setattr(forecasts, "LOOKED_AT_IDS", 2000)
    tried = []
    monkeypatch.setattr(forecasts, "Trial", lambda *values: tried.append(Trial(*values)) or tried[0])
    arguments = {"seeds": "train", "fanouts": [4, 4], "batch_size": 32, "epochs": 2, "hot": "4KiB"}
    found = forecast(graph, tmp_path / "packed", budget="64MiB", disk="5x", **arguments)
    packed = gids.pack(graph, tmp_path / "packed", disk="5x", **arguments)
    assert found.segment_batches == pytest.approx(packed.segment_batches, rel=0.4)
    assert tried[0].batches % found.segment_batches == 0
    assert found.disk_bytes == pytest.approx(packed.size_bytes, rel=0.3)


def test_epochs_of_several_ranks(graph, tmp_path):
    arguments = {"seeds": "train", "fanouts": [3], "batch_size": 64, "budget": "64MiB", "hot": "4KiB"}
    alone = forecast(graph, tmp_path / "packed", **arguments)
    both = forecast(graph, tmp_path / "packed", order=gids.OrderOptions(rank=0, world_size=2), **arguments)
    assert (alone.batches, both.batches) == (7, 8), "of an epoch over all ranks"


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
    few = Forecast(**(values | {"online_epoch_s": 3.0, "breaks_even": None, "epochs": 7}))
    assert "packing pays never: 7 epochs save less than packing takes" in few.lines()
    never = Forecast(**(values | {"online_epoch_s": 0.5, "breaks_even": None}))
    assert "packing pays never: reading online is as fast" in never.lines()
