"""gids probe: measures, stores and finds the curve again; a missing or damaged one gives defaults, never a failure."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
from storage_tables import make_table

from gids import ConfigError, RowTable, Stripe
from gids.cli import main
from gids.storage import DeviceCurve, PlanLimits, RowReader, StorageOptions, load_curve, plan_reads
from gids.storage import probe as probing
from gids.storage.curve import DEFAULT_CURVE, ReadCost, curve_path, expected_reads, modelled_curve, save_curve
from gids.storage.probe import BLOCKS, DEPTHS, fewest_threads, probe, probe_file, thread_counts

CURVE = DeviceCurve(
    depths=(1, 4, 16),
    iops_at_depth=(10e3, 40e3, 100e3),
    block_bytes=4096,
    blocks=(4096, 65536),
    iops_at_block=(100e3, 25e3),
    bandwidth=1.6e9,
    latency_us=100.0,
    source="probe",
    threads=2,
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
    assert (CURVE.best_depth, CURVE.peak_iops) == (16, 100e3)


def test_cost_is_the_line_through_the_times():
    # 10 us for 4 KiB and 40 us for 64 KiB: 0.5 us per KiB and 8 us for the read itself, as much as 16 KiB.
    assert CURVE.cost == pytest.approx((8e-6, 0.5e-6 / 1024))
    assert CURVE.merge_gap_bytes == 16384
    assert CURVE.cost.seconds(reads=3, read_bytes=2048) == pytest.approx(25e-6)
    noisy = dataclasses.replace(CURVE, blocks=(4096, 8192, 65536), iops_at_block=(100e3, 120e3, 25e3))
    assert 8192 < noisy.merge_gap_bytes < 24576


@pytest.mark.parametrize(("blocks", "rates"), [((4096,), (100e3,)), ((4096, 65536), (100e3, 100e3))])
def test_cost_without_a_slope_comes_from_bandwidth(blocks, rates):
    flat = dataclasses.replace(CURVE, blocks=blocks, iops_at_block=rates)
    assert flat.cost == pytest.approx((1e-5 - 4096 / 1.6e9, 1 / 1.6e9))


@pytest.mark.parametrize("coverage", [0.004, 0.03, 0.1, 0.33, 0.9, 1.0])
@pytest.mark.parametrize("dim", [256, 25])
def test_expected_reads_are_what_the_planner_plans(dim, coverage):
    table = RowTable("t", "float32", dim, 200_000, 4 * dim, (Stripe(Path("f"), 0, 200_000),), 200_000)
    rows = np.random.default_rng(1).choice(200_000, int(200_000 * coverage), replace=False)
    limits = PlanLimits(merge_gap_bytes=6144, max_io_bytes=128 << 10)
    plan = plan_reads(table, rows, limits)
    reads, read_bytes = expected_reads(4 * dim, coverage, merge_gap_bytes=6144, max_io_bytes=128 << 10, block_bytes=512)
    # Long runs are cut at whole rows and end at random, which the formula takes for exponential.
    assert reads * len(rows) == pytest.approx(plan.num_reads, rel=0.1)
    assert read_bytes * len(rows) == pytest.approx(plan.total_bytes, rel=0.05)


def test_rows_per_second():
    # Far apart: one read of 8 us and 0.5 us a row. All of them: 1 KiB each, and one read in 128 rows.
    assert CURVE.rows_per_second(1024, 1e-9) == pytest.approx(1 / 8.5e-6, rel=1e-3)
    assert CURVE.rows_per_second(1024, 1.0) == pytest.approx(1 / (0.5e-6 + 8e-6 / 128), rel=1e-3)
    assert CURVE.rows_per_second(1024, 0.3, merge_gap_bytes=0) < CURVE.rows_per_second(1024, 0.3)
    for coverage in (0.0, 1.5):
        with pytest.raises(ConfigError, match="coverage must be in"):
            CURVE.rows_per_second(1024, coverage)
    with pytest.raises(ConfigError, match="row_bytes must be positive"):
        CURVE.rows_per_second(0, 0.5)


# Costs of drives by their data sheets: IOPS of 4 KiB reads and bandwidth.
@pytest.mark.parametrize(
    ("iops", "bandwidth"),
    [(1e6, 7e9), (350e3, 3.3e9), (205e3, 3.4e9), (64e3, 1e9)],
    ids=["nvme4", "nvme3", "vm", "ebs"],
)
def test_default_gap_suits_common_drives(iops, bandwidth):
    drive = modelled_curve(ReadCost(1 / iops - 4096 / bandwidth, 1 / bandwidth), 80.0)
    for coverage in (0.01, 0.03, 0.1, 0.2, 0.33, 0.6):
        best = max(drive.rows_per_second(1024, coverage, merge_gap_bytes=gap) for gap in range(0, 40_000, 1024))
        used = drive.rows_per_second(1024, coverage, merge_gap_bytes=DEFAULT_CURVE.merge_gap_bytes)
        assert used > 0.85 * best
        _, read_bytes = expected_reads(
            1024, coverage, merge_gap_bytes=DEFAULT_CURVE.merge_gap_bytes, max_io_bytes=128 << 10, block_bytes=512
        )
        assert read_bytes < 2.8 * 1024


def test_stored_curve_is_found_and_used(tmp_path):
    table, _ = make_table(tmp_path)
    save_curve(tmp_path, CURVE)
    assert load_curve(tmp_path) == CURVE
    assert load_curve(tmp_path / "not" / "yet" / "there") == CURVE
    with RowReader(table, StorageOptions(engine="pread")) as reader:
        assert (reader.queue_depth, reader.threads) == (16, 2)
        assert reader.limits.merge_gap_bytes == 16384
        assert reader.curve.source == "probe"
    for engine, staging, threads in (("memory", 16 << 20, 1), ("pread", 1 << 20, 1)):
        with RowReader(table, StorageOptions(engine=engine, staging_bytes=staging)) as reader:
            assert reader.threads == threads


@pytest.mark.parametrize(
    "text",
    [
        None,
        "",
        "{",
        "[]",
        '{"version": 99, "curve": {}}',
        '{"version": 2}',
        '{"version": 2, "curve": {"depths": [1]}}',
        '{"version": 2, "curve": 3}',
        json.dumps({"version": 1, "curve": CURVE.__dict__}),
        json.dumps({"version": 2, "curve": {**CURVE.__dict__, "bandwidth": 0}}),
        json.dumps({"version": 2, "curve": {**CURVE.__dict__, "depths": [4, 1, 16]}}),
        json.dumps({"version": 2, "curve": {**CURVE.__dict__, "iops_at_depth": ["a", "b", "c"]}}),
        json.dumps({"version": 2, "curve": {**CURVE.__dict__, "latency_us": float("nan")}}),
        json.dumps({"version": 2, "curve": {**CURVE.__dict__, "threads": 0}}),
    ],
)
def test_wrong_curve_gives_defaults(tmp_path, text):
    if text is not None:
        path = curve_path(tmp_path)
        path.parent.mkdir(parents=True)
        path.write_text(text)
    assert load_curve(tmp_path) == DEFAULT_CURVE
    assert DEFAULT_CURVE.merge_gap_bytes == 6144
    assert DEFAULT_CURVE.best_depth == 128


def test_probe_measures_every_point(tmp_path):
    file = tmp_path / "data"
    file.write_bytes(np.random.default_rng(0).bytes(16 << 20))
    lines = []
    curve = probe(file, seconds=0.3, progress=lines.append)
    assert (curve.depths, curve.blocks, curve.source) == (DEPTHS, BLOCKS, "probe")
    assert len(lines) == len(thread_counts()) + len(DEPTHS) + len(BLOCKS)
    assert curve.threads in thread_counts()
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
    with (place / "holes").open("wb") as file:
        file.truncate(64 << 20)
    with probe_file(place, scratch_bytes=4 << 20) as chosen:
        assert chosen == place / "large"  # holes are read without the device


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
    assert "rows per second to expect" in shown
    assert "█" in shown
    assert main(["probe", str(tmp_path), "--seconds", "0.2", "--scratch", "16MiB", "--no-writes", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["curve"]["write_bandwidth"] is None
    assert main(["probe", str(tmp_path / "none")]) == 1
    assert "must exist" in capsys.readouterr().err


@pytest.mark.parametrize(("block", "depth"), [(512, 64), (4096, 64), (65536, 4)])
def test_a_probed_read_is_a_block_of_which_only_the_ends_are_rows(tmp_path, monkeypatch, block, depth):
    file = tmp_path / "data"
    file.write_bytes(bytes(16 << 20))
    closed = []

    class Recorded(RowReader):
        def close(self):
            closed.append(self.stats())
            super().close()

    monkeypatch.setattr(probing, "RowReader", Recorded)
    assert probing._rate(file, 16 << 20, block, depth, 1, 0.01, "pread") > 0
    (stats,) = closed
    assert stats["bytes_read"] == 512 * stats["unique_rows"] * (1 if block == 512 else block // 1024)
    if block > 512:  # neighbouring sectors may become one read; longer blocks never do
        assert stats["bytes_read"] == block * stats["reads"]


def test_a_further_thread_must_bring_more_than_noise():
    assert fewest_threads({1: [100e3], 2: [109e3]}) == 1
    assert fewest_threads({1: [100e3] * 5, 2: [111e3] * 5, 4: [115e3] * 5}) == 2
    assert fewest_threads({2: [100e3], 1: [120e3]}) == 1
    # A better median is not enough where it does not show in three of four trials.
    assert fewest_threads({1: [100e3] * 5, 2: [90e3, 95e3, 130e3, 130e3, 130e3]}) == 1
    assert fewest_threads({1: [100e3] * 5, 2: [90e3, 120e3, 130e3, 130e3, 130e3]}) == 2
