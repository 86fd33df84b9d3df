"""split_pool: keeps to its pool, keeps what the user fixed, says its reasons, and chooses what is better."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from gids import ConfigError
from gids.budget import Pool, Request, TableProfile, split_pool
from gids.budget.parts import cache_bytes, host_bytes, rows_within
from gids.budget.trial import DiskModel, Profile, Trial
from gids.storage.curve import DEFAULT_CURVE, ReadCost, modelled_curve
from gids.tiers import EdgeScores, HostBuffer, RowScores, TableStore, top_rows
from tests.gids.tiers.conftest import MemoryReader, make_table

DISK = DiskModel.of(DEFAULT_CURVE)
MIB = 1 << 20


def split_of(budget, profiles, curve=DEFAULT_CURVE, *, sample_bytes=0, popularity=None, **fixed):
    """Split one pool of host memory, with what the user fixed."""
    request = Request(**{RENAMED.get(name, name): value for name, value in fixed.items()})
    return split_pool(Pool(budget), profiles, curve, request, sample_bytes=sample_bytes, popularity=popularity)


RENAMED = {"host": "host_buffer", "group": "groups"}


def total_of(split, profiles):
    shares = split.tables.items()
    rows = sum(s.cache_bytes(profiles[k].table) + s.host_bytes(profiles[k].table) + s.group_bytes for k, s in shares)
    return rows + split.staging_bytes + split.waiting_bytes


def skewed(count, size, num_rows, seed=0, power=1.0):
    generator = torch.Generator().manual_seed(seed)
    weights = torch.arange(1, num_rows + 1, dtype=torch.float64) ** -power
    return [torch.multinomial(weights, size, generator=generator) for _ in range(count)]


@pytest.fixture(scope="module")
def profile():
    table, _ = make_table(20_000, 64)
    return TableProfile(table, skewed(32, 1000, 20_000))


def test_memory_of_a_store_is_what_the_split_counts():
    table, values = make_table(5_000, 8)
    store = TableStore(table, MemoryReader(values), cache_rows=1000, policy="lru")
    assert store.nbytes == cache_bytes(1000, table.row_bytes)
    host = HostBuffer.load(table, MemoryReader(values), torch.arange(700))
    assert host.nbytes == host_bytes(700, table.row_bytes)
    rows = rows_within(100_000, 32, 5_000)
    assert cache_bytes(rows, 32) <= 100_000 < cache_bytes(rows + 1, 32)
    assert rows_within(0, 32, 5_000) == 0
    assert rows_within(1 << 40, 32, 5_000) == 5_000


@pytest.mark.parametrize("budget", [2 * MIB, 4 * MIB, 16 * MIB])
def test_keeps_to_the_budget_and_explains(profile, budget):
    split = split_of(budget, {"x": profile})
    assert total_of(split, {"x": profile}) <= budget
    share = split.tables["x"]
    assert share.group_bytes >= 1000 * profile.table.row_bytes
    assert 0 < share.cache_rows + share.host_rows <= 20_000
    text = "\n".join(split.reasons)
    for word in ("window", "group", "host buffer", "staging", "cache"):
        assert word in text


def test_everything_fits_is_seen(profile):
    share = split_of(64 * MIB, {"x": profile}).tables["x"]
    assert share.cache_rows + share.host_rows == 20_000


def test_users_numbers_win(profile):
    split = split_of(16 * MIB, {"x": profile}, cache=2 * MIB, host=MIB, group=3 * MIB, staging=MIB, window=3)
    share = split.tables["x"]
    row_bytes = profile.table.row_bytes
    assert share.cache_rows == rows_within(2 * MIB, row_bytes, 20_000)
    assert share.host_rows == rows_within(MIB, row_bytes, 20_000, host_bytes)
    assert (share.group_bytes, split.staging_bytes, split.window) == (3 * MIB, MIB, 3)
    assert any("fixed by the user" in reason for reason in split.reasons)
    only_host = split_of(16 * MIB, {"x": profile}, host=0)
    assert only_host.tables["x"].host_rows == 0 < only_host.tables["x"].cache_rows


def test_a_window_beyond_the_profile_gets_a_cache_and_no_host_buffer(profile):
    """The profile's few batches, from an empty cache, cannot show what it is worth to know so many."""
    near, far = (split_of(8 * MIB, {"x": profile}, window=window, spill_bytes=1 << 30) for window in (32, 33))
    assert near.tables["x"].host_rows > far.tables["x"].host_rows == 0
    assert far.tables["x"].cache_rows > near.tables["x"].cache_rows
    assert any("a window of 33 batches is for the cache (32 profiled)" in reason for reason in far.reasons)
    assert split_of(8 * MIB, {"x": profile}, window=33, host=MIB).tables["x"].host_rows > 0


def test_too_small_a_pool_has_no_split(profile):
    """Whoever divides by rule then says the minimum, see test_division.py."""
    row_bytes = 1000 * profile.table.row_bytes
    assert split_of(MIB // 4, {"x": profile}) is None
    assert split_of(4 * MIB, {"x": profile}, cache=8 * MIB) is None
    smallest = MIB + 1000 * (60 + 36) + row_bytes
    assert split_of(smallest, {"x": profile}, staging=MIB, window=0) is not None


def test_memory_goes_to_the_table_that_reuses_its_rows():
    """One table is asked for the same rows again and again, the other never twice."""
    hot, _ = make_table(20_000, 64)
    cold, _ = make_table(200_000, 64)
    profiles = {
        "hot": TableProfile(hot, skewed(16, 500, 20_000, power=1.3)),
        "cold": TableProfile(cold, [torch.arange(500) + 500 * i for i in range(16)]),
    }
    split = split_of(6 * MIB, profiles)
    hot_share, cold_share = split.tables["hot"], split.tables["cold"]
    assert hot_share.cache_rows + hot_share.host_rows > 4 * (cold_share.cache_rows + cold_share.host_rows)
    assert total_of(split, profiles) <= 6 * MIB
    assert any(reason.startswith("tables:") for reason in split.reasons)


def test_dims_and_dtypes_may_differ():
    wide, _ = make_table(5_000, 256)
    narrow, _ = make_table(5_000, 4, "float16")
    batches = skewed(16, 300, 5_000)
    profiles = {"w": TableProfile(wide, batches), "n": TableProfile(narrow, batches)}
    split = split_of(6 * MIB, profiles)
    assert total_of(split, profiles) <= 6 * MIB
    # The same rows of the narrow table take a fraction of the bytes and save as many accesses.
    assert split.tables["n"].cache_rows + split.tables["n"].host_rows > 0
    assert split.tables["w"].cache_rows + split.tables["w"].host_rows > 0


def test_sampling_rows_finds_the_same_rows_and_time(monkeypatch):
    table, _ = make_table(400_000, 1)
    table = replace(table, dim=256, row_stride=1024)  # it is not read
    batches = skewed(8, 20_000, 400_000, power=0.3)
    trial = Trial(20_000, 10_000, 4, 2)
    monkeypatch.setattr("gids.budget.trial.PIECE_BYTES", 64 << 10)
    sampled = Profile(table, batches, DISK)
    assert sampled.scale == pytest.approx(19, rel=0.1)
    monkeypatch.setattr("gids.budget.trial.SAMPLED_ROWS", 1 << 30)
    whole = Profile(table, batches, DISK)
    assert whole.scale == 1
    for name in ("disk_rows", "group_rows", "seconds"):
        assert getattr(sampled.run(trial), name) == pytest.approx(getattr(whole.run(trial), name), rel=0.07), name
    assert sampled.union_rows(2) == pytest.approx(whole.union_rows(2), rel=0.05)


def test_a_sample_has_enough_pieces_of_the_table_to_stand_for_it():
    """A batch of a fourteenth of a small table: planned whole, every trial took a quarter of a second."""
    table, _ = make_table(1_000_000, 1)
    table = replace(table, dim=256, row_stride=1024)
    profile = Profile(table, skewed(4, 70_000, 1_000_000, power=0.3), DISK)
    assert 20 < profile.scale < 40
    few, _ = make_table(20_000, 1)
    assert Profile(replace(few, dim=256, row_stride=1024), skewed(4, 9_000, 20_000, power=0.3), DISK).scale == 1


def test_disk_time_counts_merged_reads():
    """Of 64 rows of 1 KiB: far apart, 64 accesses; in a row, one access of 64 KiB."""
    table, _ = make_table(100_000, 1)
    table = replace(table, dim=256, row_stride=1024)
    cost = DEFAULT_CURVE.cost
    assert DISK.seconds(table, np.arange(64) * 1000) == pytest.approx(cost.seconds(64, 64 << 10))
    assert DISK.seconds(table, np.arange(64)) == pytest.approx(cost.seconds(1, 64 << 10))
    assert DISK.seconds(table, np.arange(32) * 2) == pytest.approx(cost.seconds(1, 63 << 10))


@pytest.mark.parametrize("power", [0.0, 0.8])
def test_no_other_size_of_groups_is_faster(power):
    """Whatever memory for groups a user might fix, the profile predicts no less disk time than for the one chosen."""
    table, _ = make_table(50_000, 1)
    table = replace(table, dim=256, row_stride=1024)
    profiles = {"x": TableProfile(table, skewed(16, 1000, 50_000, power=power))}
    chosen = split_of(12 * MIB, profiles)
    for group in (2, 5, 8):
        assert chosen.seconds <= 1.03 * split_of(12 * MIB, profiles, group=group * MIB).seconds


def test_groups_grow_where_neighbours_merge():
    """Reads that cost nothing but their number: more batches in a group make fewer of them, and a cache would not."""
    table, _ = make_table(20_000, 1)
    table = replace(table, dim=64, row_stride=256)
    generator = torch.Generator().manual_seed(0)
    profiles = {"x": TableProfile(table, [torch.randperm(20_000, generator=generator)[:1000] for _ in range(12)])}
    per_read = modelled_curve(ReadCost(1e-3, 1e-12), latency_us=80.0)
    per_byte = modelled_curve(ReadCost(1e-9, 1e-8), latency_us=80.0)
    groups = [split_of(3 * MIB, profiles, curve).sweep_batches for curve in (per_read, per_byte)]
    assert groups[0] > groups[1]


def test_waiting_samples_are_counted(profile):
    lean = split_of(16 * MIB, {"x": profile}, window=4)
    fat = split_of(16 * MIB, {"x": profile}, window=4, sample_bytes=MIB)
    assert fat.waiting_bytes == 5 * (MIB + 1000 * 60) + fat.sweep_batches * (MIB + 1000 * 36)
    assert total_of(fat, {"x": profile}) <= 16 * MIB
    assert lean.waiting_bytes == 5 * 1000 * 60 + lean.sweep_batches * 1000 * 36


def test_given_scores_decide_the_host_buffer():
    table, _ = make_table(20_000, 64)
    batches = skewed(8, 500, 20_000)
    good, useless = np.zeros(20_000), np.zeros(20_000)
    good[:2000], useless[-2000:] = 1, 1
    trial = Trial(0, 2000, 0, 1)
    rows = [Profile(table, batches, DISK, RowScores(s)).run(trial).disk_rows for s in (good, useless)]
    assert rows[0] < 0.6 * rows[1]
    assert len(top_rows(good, 2000)) == 2000


def test_popularity_is_counted_and_explained():
    """One byte a row: taken where it is a sixteenth of the cache, refused where it is more, forced where it is asked for."""
    table, _ = make_table(20_000, 64)
    profile = TableProfile(table, skewed(32, 1000, 20_000), RowScores(np.arange(20_000)[::-1]))
    options = {"host": 0, "group": 3 * MIB, "window": 4}

    def split(cache, profile=profile, **more):
        return split_of(8 * MIB, {"x": profile}, cache=cache, **options, **more)

    roomy, tight = split(MIB), split(200_000)
    assert (roomy.tables["x"].popular, tight.tables["x"].popular) == (True, False)
    assert "popularity of rows beyond the window is known, 19.5 KiB" in "\n".join(roomy.reasons)
    assert "is not known, 19.5 KiB is more than 6.2% of a cache of" in "\n".join(tight.reasons)
    share = roomy.tables["x"]
    assert share.cache_bytes(table) == cache_bytes(share.cache_rows, table.row_bytes) + 20_000 <= MIB
    assert share.cache_rows < split(MIB, popularity={"x": False}).tables["x"].cache_rows
    assert roomy.disk_rows < split(MIB, popularity={"x": False}).disk_rows
    assert split(200_000, popularity={"x": True}).tables["x"].popular
    assert not split(20_000, popularity={"x": True}).tables["x"].popular, "nothing would be left for rows"
    assert not split(MIB, replace(profile, hot=None)).tables["x"].popular, "nobody knows it"
    store = TableStore(
        table, MemoryReader(torch.zeros(20_000, 64)), cache_rows=share.cache_rows, popularity=profile.hot.levels()
    )
    assert store.nbytes == share.cache_bytes(table)


def test_levels_of_rows_and_edges_agree():
    scores = np.array([8, 4, 0, 1])
    assert RowScores(scores).levels().tolist() == [123, 119, 0, 111]
    assert RowScores(scores).levels(np.array([1, 3])).tolist() == [123, 115]
    edges = EdgeScores(scores, np.array([0, 2, 3, 3, 5]))
    assert edges.levels().tolist() == [123, 123, 123, 111, 111]
    assert edges.levels(np.array([4, 0])).tolist() == [111, 123]


def test_places_agree_with_top():
    """A row is among the first n exactly if n is above its place, where scores differ."""
    scores = np.random.default_rng(0).permutation(1000)
    rows = RowScores(scores)
    for count in (1, 10, 500, 999):
        assert np.flatnonzero(rows.places(np.arange(1000)) < count).tolist() == rows.top(count).tolist()
    indptr = np.concatenate([[0], np.cumsum(np.random.default_rng(1).integers(0, 9, 1000))])
    edges = EdgeScores(scores, indptr)
    places = edges.places(np.arange(indptr[-1]))
    for count in (5, 100, 2000):
        top = edges.top(count)
        assert len(top) <= count < len(top) + 9 + 9
        assert set(top.tolist()) <= set(np.flatnonzero(places < count).tolist())
        assert (places < count).sum() <= len(top) + 9


def test_profiles_are_checked(profile):
    with pytest.raises(ConfigError, match="two batches"):
        split_of(MIB, {})
    with pytest.raises(ConfigError, match="equally many"):
        split_of(MIB, {"a": profile, "b": TableProfile(profile.table, profile.batches[:4])})
