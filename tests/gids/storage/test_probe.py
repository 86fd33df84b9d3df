"""gids probe: measures, stores and finds the curve again; a missing or damaged one gives defaults, never a failure."""

import json

import numpy as np
import pytest
from storage_tables import make_table

from gids import ConfigError
from gids.cli import main
from gids.storage import DeviceCurve, RowReader, StorageOptions, load_curve
from gids.storage.curve import DEFAULT_CURVE, curve_path, save_curve
from gids.storage.probe import BLOCKS, DEPTHS, probe, probe_file

CURVE = DeviceCurve(
    depths=(1, 4, 16),
    iops_at_depth=(10e3, 40e3, 100e3),
    block_bytes=4096,
    blocks=(4096, 65536),
    iops_at_block=(100e3, 25e3),
    bandwidth=1.6e9,
    latency_us=100.0,
    source="probe",
)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def test_curve_between_points():
    assert CURVE.iops(1) == 10e3
    assert CURVE.iops(2) == pytest.approx(25e3)  # halfway in log2
    assert CURVE.iops(1000) == 100e3
    assert CURVE.iops(16, 65536) == pytest.approx(25e3)
    assert CURVE.iops(16, 16384) == pytest.approx(62.5e3)
    assert CURVE.merge_gap_bytes == 15872  # 1.6e9 / 100e3 = 16000, in whole sectors
    assert (CURVE.best_depth, CURVE.peak_iops) == (16, 100e3)


def test_stored_curve_is_found_and_used(tmp_path):
    table, _ = make_table(tmp_path)
    save_curve(tmp_path, CURVE)
    assert load_curve(tmp_path) == CURVE
    assert load_curve(tmp_path / "not" / "yet" / "there") == CURVE
    with RowReader(table, StorageOptions(engine="pread")) as reader:
        assert reader.queue_depth == 16
        assert reader.limits.merge_gap_bytes == 15872


@pytest.mark.parametrize(
    "text",
    [
        None,
        "",
        "{",
        "[]",
        '{"version": 99, "curve": {}}',
        '{"version": 1}',
        '{"version": 1, "curve": {"depths": [1]}}',
        '{"version": 1, "curve": 3}',
        json.dumps({"version": 1, "curve": {**CURVE.__dict__, "bandwidth": 0}}),
        json.dumps({"version": 1, "curve": {**CURVE.__dict__, "depths": [4, 1, 16]}}),
        json.dumps({"version": 1, "curve": {**CURVE.__dict__, "iops_at_depth": ["a", "b", "c"]}}),
        json.dumps({"version": 1, "curve": {**CURVE.__dict__, "latency_us": float("nan")}}),
    ],
)
def test_wrong_curve_gives_defaults(tmp_path, text):
    if text is not None:
        path = curve_path(tmp_path)
        path.parent.mkdir(parents=True)
        path.write_text(text)
    assert load_curve(tmp_path) == DEFAULT_CURVE


def test_probe_measures_every_point(tmp_path):
    file = tmp_path / "data"
    file.write_bytes(np.random.default_rng(0).bytes(16 << 20))
    lines = []
    curve = probe(file, seconds=0.3, progress=lines.append)
    assert (curve.depths, curve.blocks, curve.source) == (DEPTHS, BLOCKS, "probe")
    assert len(lines) == len(DEPTHS) + len(BLOCKS)
    assert all(rate > 0 for rate in curve.iops_at_depth + curve.iops_at_block)


def test_probe_of_a_directory_uses_its_largest_file_or_a_scratch_file(tmp_path):
    place = tmp_path / "place"
    place.mkdir()
    with probe_file(place, scratch_bytes=4 << 20) as scratch:
        assert scratch.stat().st_size == 4 << 20
    assert list(place.iterdir()) == []
    (place / "small").write_bytes(b"x")
    (place / "large").write_bytes(bytes(2 << 20))
    with probe_file(place, scratch_bytes=4 << 20) as chosen:
        assert chosen == place / "large"


def test_probe_refuses(tmp_path):
    with pytest.raises(ConfigError, match="must exist"):
        probe(tmp_path / "none")
    (tmp_path / "tiny").write_bytes(b"x")
    with pytest.raises(ConfigError, match="at least 16777216 bytes"):
        probe(tmp_path / "tiny")


def test_command(tmp_path, capsys):
    file = tmp_path / "data"
    file.write_bytes(bytes(16 << 20))
    assert main(["probe", str(file), "--seconds", "0.2", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["stored"] == str(curve_path(file))
    assert load_curve(file).iops_at_depth == tuple(printed["curve"]["iops_at_depth"])
    assert main(["probe", str(file), "--seconds", "0.2", "--no-save"]) == 0
    shown = capsys.readouterr().out
    assert "merge gap" in shown
    assert "█" in shown
    assert main(["probe", str(tmp_path / "none")]) == 1
    assert "must exist" in capsys.readouterr().err
