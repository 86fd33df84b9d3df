"""Dividing the budget and sizing groups, with literal numbers."""

import pytest
import torch

from gids.errors import ConfigError
from gids.loader.grouping import AccumulatedGroups
from gids.loader.memory import Fixed, TableDemand, allot, available_bytes, held_batches
from gids.loader.pipeline import Work
from gids.tiers import AccessModel, Accumulator, Counters

ONE = {"feat": TableDemand(rows=100, row_bytes=10, out_row_bytes=20, num_rows=10_000, slot_overhead_bytes=0)}
FORESIGHT = {"ahead": 11, "planned": 4, "held": 8, "prefetch": 1}
UNSET = {"cache_bytes": None, "host_bytes": None, "group_bytes": None}
# 3 batches in delivery of 100 x 20 bytes; 11 samples of 30 bytes and 4 x 100 rows x 60 bytes of the planner; 500 fixed.
NEEDED = 3 * 2000 + 11 * 30 + 4 * 100 * 60 + 500
FIXED = Fixed(topology_bytes=300, labels_bytes=100, staging_bytes=100, sample_bytes=30)


def test_the_parts_are_what_they_are_said_to_be():
    got = allot(NEEDED + 4000, FIXED, ONE, **FORESIGHT, **UNSET)
    assert (got.topology, got.labels, got.staging, got.outputs) == (300, 100, 100, 6000)
    assert (got.groups, got.cache, got.host_buffer) == (3000, 1000, 0)
    assert got.total == got.budget


def test_the_least_budget_holds_one_batch_and_no_cache():
    got = allot(NEEDED + 1000, FIXED, ONE, **FORESIGHT, **UNSET)
    assert (got.groups, got.cache) == (1000, 0)
    with pytest.raises(ConfigError, match=rf"budget must be at least .* \({NEEDED + 1000} bytes\).*topology 300 B"):
        allot(NEEDED + 999, FIXED, ONE, **FORESIGHT, **UNSET)


def test_explicit_numbers_win():
    fixed = {"cache_bytes": 1500, "host_bytes": 700, "group_bytes": 1200}
    got = allot(NEEDED + 9000, FIXED, ONE, **FORESIGHT, **fixed)
    assert (got.cache, got.host_buffer, got.groups) == (1500, 700, 1200)
    with pytest.raises(ConfigError, match=r"cache 1\.5 KiB"):
        allot(NEEDED + 3000, FIXED, ONE, **FORESIGHT, **fixed)


def test_plenty_of_memory_takes_no_more_than_can_be_used():
    got = allot(10**9, FIXED, ONE, **FORESIGHT, **UNSET)
    assert got.groups == 2 * 4 * 1000
    assert got.cache == 10_000 * 10


def test_half_of_the_batches_that_share_each_read_are_held_and_two_besides():
    assert [held_batches(together) for together in (1, 2, 8, 9, 32)] == [1, 3, 6, 6, 18]


def test_available_memory_is_positive_and_no_more_than_the_machine_has():
    assert 1 << 20 < available_bytes() < 1 << 50


def works(*sizes):
    return [Work(None, {"feat": torch.arange(size)}) for size in sizes]


def groups_of(limits, **options):
    model = AccessModel(peak_iops=1000, overhead_s=1e-3)
    return AccumulatedGroups(Accumulator(model, limits, **{"least_batches": 12, "max_batches": 12} | options))


def test_groups_grow_with_what_was_learned():
    groups = groups_of({"feat": (10, 4000)})
    waiting = works(*[100] * 12)
    assert groups.size(waiting) == 4, "at first every row may have to be read"
    groups.learn("feat", Counters(requests=400, disk=0, cache=400))
    assert groups.size(waiting) == 7, "0.9 x 4000 bytes, 500 a batch"
    for _ in range(20):
        groups.learn("feat", Counters(requests=400, disk=0, cache=400))
    assert groups.size(waiting) == 12
    groups.forget("feat")
    assert groups.size(waiting) == 4


def test_groups_begin_with_what_a_profile_expects():
    groups = groups_of({"feat": (10, 4000)}, expected={"feat": 0.5})
    assert groups.size(works(*[100] * 12)) == 7
    groups.learn("feat", Counters(requests=400, disk=400))
    groups.forget("feat")
    assert groups.size(works(*[100] * 12)) == 7


def test_a_batch_that_is_too_large_goes_alone():
    assert groups_of({"feat": (10, 5)}).size(works(100, 1)) == 1
    assert groups_of({}).size([Work(None, {}), Work(None, {})]) == 2


def test_the_tightest_table_decides():
    groups = groups_of({"a": (10, 4000), "b": (10, 2000)})
    both = [Work(None, {"a": torch.arange(100), "b": torch.arange(100)}) for _ in range(5)]
    assert groups.size(both) == 2
    assert groups.size([Work(None, {"a": torch.arange(100)}) for _ in range(5)]) == 4
