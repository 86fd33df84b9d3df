"""split_budget: keeps to the budget, keeps what the user fixed, says its reasons, and chooses what is better."""

import numpy as np
import pytest
import torch

from gids import ConfigError
from gids.tiers import AccessModel, FeatureStore, HostBuffer, TableProfile, split_budget, top_rows
from gids.tiers.budget import cache_bytes, host_bytes, rows_within
from gids.tiers.profile import Profile, Trial
from tests.gids.tiers.conftest import MemoryReader, make_table

MODEL = AccessModel(200e3, 60e-6)
MIB = 1 << 20


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
    store = FeatureStore(table, MemoryReader(values), cache_rows=1000, policy="lru")
    assert store.nbytes == cache_bytes(1000, table.row_bytes)
    host = HostBuffer.load(table, MemoryReader(values), torch.arange(700))
    assert host.nbytes == host_bytes(700, table.row_bytes)
    rows = rows_within(100_000, 32, 5_000)
    assert cache_bytes(rows, 32) <= 100_000 < cache_bytes(rows + 1, 32)
    assert rows_within(0, 32, 5_000) == 0
    assert rows_within(1 << 40, 32, 5_000) == 5_000


@pytest.mark.parametrize("budget", [2 * MIB, 4 * MIB, 16 * MIB])
def test_keeps_to_the_budget_and_explains(profile, budget):
    split = split_budget(budget, {"x": profile}, MODEL)
    assert split.total <= budget
    share = split.tables["x"]
    assert share.group_bytes >= 1000 * profile.table.row_bytes
    assert 0 < share.cache_rows + share.host_rows <= 20_000
    text = str(split)
    for word in ("window", "group", "host buffer", "staging", "cache"):
        assert word in text


def test_everything_fits_is_seen(profile):
    share = split_budget(64 * MIB, {"x": profile}, MODEL).tables["x"]
    assert share.cache_rows + share.host_rows == 20_000


def test_users_numbers_win(profile):
    split = split_budget(16 * MIB, {"x": profile}, MODEL, cache=2 * MIB, host=MIB, group=3 * MIB, staging=MIB, window=3)
    share = split.tables["x"]
    row_bytes = profile.table.row_bytes
    assert share.cache_rows == rows_within(2 * MIB, row_bytes, 20_000)
    assert share.host_rows == rows_within(MIB, row_bytes, 20_000, host_bytes)
    assert (share.group_bytes, split.staging_bytes, split.window) == (3 * MIB, MIB, 3)
    assert "fixed by the user" in str(split)
    only_host = split_budget(16 * MIB, {"x": profile}, MODEL, host=0)
    assert only_host.tables["x"].host_rows == 0 < only_host.tables["x"].cache_rows


def test_too_small_says_the_minimum(profile):
    with pytest.raises(ConfigError, match=r"budget must be at least .* \((\d+) bytes\)") as caught:
        split_budget(MIB, {"x": profile}, MODEL)
    least = int(str(caught.value).split("(")[1].split(" ")[0])
    assert split_budget(least, {"x": profile}, MODEL).total <= least
    with pytest.raises(ConfigError, match="at least"):
        split_budget(least - 1, {"x": profile}, MODEL)
    with pytest.raises(ConfigError, match="cache"):
        split_budget(4 * MIB, {"x": profile}, MODEL, cache=8 * MIB)
    with pytest.raises(ConfigError, match="group"):
        split_budget(4 * MIB, {"x": profile}, MODEL, group=100)


def test_memory_goes_to_the_table_that_reuses_its_rows():
    """One table is asked for the same rows again and again, the other never twice."""
    hot, _ = make_table(20_000, 64)
    cold, _ = make_table(200_000, 64)
    profiles = {
        "hot": TableProfile(hot, skewed(16, 500, 20_000, power=1.3)),
        "cold": TableProfile(cold, [torch.arange(500) + 500 * i for i in range(16)]),
    }
    split = split_budget(6 * MIB, profiles, MODEL)
    hot_share, cold_share = split.tables["hot"], split.tables["cold"]
    assert hot_share.cache_rows + hot_share.host_rows > 4 * (cold_share.cache_rows + cold_share.host_rows)
    assert split.total <= 6 * MIB
    assert "tables:" in str(split)


def test_dims_and_dtypes_may_differ():
    wide, _ = make_table(5_000, 256)
    narrow, _ = make_table(5_000, 4, "float16")
    batches = skewed(16, 300, 5_000)
    split = split_budget(6 * MIB, {"w": TableProfile(wide, batches), "n": TableProfile(narrow, batches)}, MODEL)
    assert split.total <= 6 * MIB
    # The same rows of the narrow table take a fraction of the bytes and save as many accesses.
    assert split.tables["n"].cache_rows + split.tables["n"].host_rows > 0
    assert split.tables["w"].cache_rows + split.tables["w"].host_rows > 0


def test_sampling_rows_finds_the_same_hit_ratio(monkeypatch):
    batches = skewed(12, 40_000, 400_000, power=0.8)
    trial = Trial(20_000, 10_000, 4, 1)
    sampled = Profile(400_000, batches)
    assert sampled.scale == 9
    monkeypatch.setattr("gids.tiers.profile.SAMPLED_ROWS", 1 << 30)
    whole = Profile(400_000, batches)
    assert whole.scale == 1
    assert sampled.disk_rows(trial) == pytest.approx(whole.disk_rows(trial), rel=0.05)


def test_given_scores_decide_the_host_buffer():
    batches = skewed(8, 500, 20_000)
    good, useless = np.zeros(20_000), np.zeros(20_000)
    good[:2000], useless[-2000:] = 1, 1
    trial = Trial(0, 2000, 0, 1)
    assert Profile(20_000, batches, good).disk_rows(trial) < 0.6 * Profile(20_000, batches, useless).disk_rows(trial)
    assert len(top_rows(good, 2000)) == 2000


def test_profiles_are_checked(profile):
    with pytest.raises(ConfigError, match="two batches"):
        split_budget(MIB, {}, MODEL)
    with pytest.raises(ConfigError, match="equally many"):
        split_budget(MIB, {"a": profile, "b": TableProfile(profile.table, profile.batches[:4])}, MODEL)
