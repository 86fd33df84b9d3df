"""Groups that share an arena: slots come back row by row, and rows are right however groups overlap in it."""

import numpy as np
import pytest
import torch

from gids._native import Sweep, place_rows
from gids.errors import ConfigError, GidsError
from gids.tiers import FeatureStore
from gids.tiers.arena import RowArena

from .conftest import MemoryReader, make_table


def test_slots_are_given_once_and_used_ones_first():
    arena = RowArena(8, 3, torch.float16)
    assert arena.values.shape == (8, 3)
    first, second = arena.take(3), arena.take(2)
    assert sorted([*first, *second]) == [0, 1, 2, 3, 4]
    assert (arena.in_use, arena.nbytes) == (5, 5 * 3 * 2)
    arena.give(first)
    assert set(arena.take(4)) == {*first, 5}, "what was touched before, then fresh memory"
    with pytest.raises(GidsError, match="must have 3 free \\(has 2\\)"):
        arena.take(3)
    arena.reset()
    assert (arena.in_use, sorted(arena.take(8))) == (0, list(range(8)))


def test_an_arena_has_rows():
    with pytest.raises(ConfigError, match="at least 1"):
        RowArena(0, 3, torch.float32)


@pytest.mark.parametrize("cache_rows", [0, 40])
@pytest.mark.parametrize("policy", ["window", "lru", "random"])
@pytest.mark.parametrize(("regions", "batches_of_a_group"), [(1, 1), (2, 3), (6, 1), (6, 2), (400, 1), (1000, 2)])
def test_groups_that_share_reads_give_the_right_rows(batches_of, cache_rows, policy, regions, batches_of_a_group):
    """As the pipeline does it: a group begins when it fits, and is gathered when it was read and its turn has come."""
    table, values = make_table(400, 5)
    batches = batches_of(24, 50, 400)
    reader = MemoryReader(values)
    store = FeatureStore(table, reader, cache_rows=cache_rows, policy=policy, arena_rows=200, regions=regions)
    size = batches_of_a_group
    groups = [batches[at : at + size] for at in range(0, len(batches), size)]
    begun, delivered, at_once = [], [], 0

    def step():
        store.step()
        assert store.arena.in_use <= 200
        while begun and begun[0].underway:
            pending = begun.pop(0)
            delivered.extend(store.gather(pending, i) for i in range(size))

    for number, group in enumerate(groups):
        plan = store.plan_group(group, batches[size * (number + 1) : size * (number + 1) + 4])
        while begun and not store.fits(plan):
            step()
        begun.append(store.begin(plan))
        at_once = max(at_once, len(begun))
        step()
    while begun:
        step()
    assert all(torch.equal(rows, values[batch]) for rows, batch in zip(delivered, batches, strict=True))
    assert store.arena.in_use == 0
    assert store.counters.requests == sum(len(batch) for batch in batches)
    assert store.counters.disk == reader.rows_read
    assert at_once == 1 if regions == 1 else at_once > 1


def test_a_row_that_several_groups_wait_for_is_read_once():
    table, values = make_table(100, 5)
    reader = MemoryReader(values)
    store = FeatureStore(table, reader, arena_rows=100, regions=4)
    first = store.begin(store.plan_group([torch.tensor([3, 30, 90])]))
    store.step()  # 3
    second = store.begin(store.plan_group([torch.tensor([3, 30, 60])]))
    store.step()  # 30
    store.step()  # 60
    third = store.begin(store.plan_group([torch.tensor([30, 60])]))
    assert (first.underway, second.underway, third.underway) == (False, True, True)
    assert reader.rows_read == 3
    store.step()  # 90
    for pending, rows, freed in ((first, [3, 30, 90], 1), (second, [3, 30, 60], 1), (third, [30, 60], 2)):
        assert torch.equal(store.gather(pending, 0), values[rows])
        assert pending.freed_rows == freed
    assert (reader.rows_read, store.counters.disk, store.counters.duplicates) == (4, 4, 4)


def test_what_fits_is_what_unfinished_groups_will_hold_at_once():
    table, values = make_table(100, 5)
    store = FeatureStore(table, MemoryReader(values), arena_rows=30, regions=10)
    plans = [store.plan_group([torch.arange(start, 100, 5)]) for start in range(3)]  # two rows of 20 in each region
    store.begin(plans[0])
    assert not store.fits(plans[1]), "both would have 20 rows at the end of the round"
    for _ in range(5):
        store.step()
    assert store.fits(plans[1]), "20 of the first and 10 of the second, when the first is complete"
    store.begin(plans[1])
    assert not store.fits(plans[2])


def test_a_group_larger_than_the_arena_has_memory_of_its_own_and_is_read_at_once():
    table, values = make_table(400, 5)
    store = FeatureStore(table, MemoryReader(values), arena_rows=60, regions=4)
    small = store.begin(store.plan_group([torch.arange(50)]))
    plan = store.plan_group([torch.arange(90), torch.arange(30, 180)])
    assert not store.fits(plan)
    large = store.begin(plan)
    assert store.step_bytes() == (50 + 180) * table.row_bytes
    store.step()
    assert large.underway
    assert torch.equal(store.gather(small, 0), values[:50])
    assert torch.equal(store.gather(large, 0), values[:90])
    assert torch.equal(store.gather(large, 1), values[30:180])
    assert large.freed_rows == 180
    assert store.arena.in_use == 0


def test_a_group_that_was_not_read_to_its_end_cannot_be_gathered():
    table, values = make_table(100, 5)
    store = FeatureStore(table, MemoryReader(values), arena_rows=100, regions=16)
    pending = store.begin(store.plan_group([torch.arange(32)]))
    store.step()
    with pytest.raises(GidsError, match="read to its end"):
        store.gather(pending, 0)
    store.reset()
    assert store.arena.in_use == 0
    assert torch.equal(store.gather(store.start(store.plan_group([torch.arange(5, 9)])), 0), values[5:9])


def test_reads_are_cancelled_with_their_group_and_after_it():
    class Read:
        cancelled = 0

        def cancel(self):
            self.cancelled += 1

    table, values = make_table(100, 5)
    store = FeatureStore(table, MemoryReader(values), arena_rows=100)
    pending = store.begin(store.plan_group([torch.arange(100)]))
    early, late = Read(), Read()
    pending.started(early)
    pending.cancel()
    pending.started(late)
    assert (early.cancelled, late.cancelled) == (1, 1)


def test_slots_are_checked():
    location = np.array([0, 5, 3], np.int64)
    place_rows(location, 3, np.array([7, 8, 9], np.int32))
    assert location.tolist() == [0, 3 + 9, 3 + 7]
    with pytest.raises(ConfigError, match=r"location must be in \[0, 6\) \(got 6\)"):
        place_rows(np.array([6], np.int64), 3, np.zeros(3, np.int32))


def test_a_sweep_checks_what_it_is_given():
    sweep = Sweep(10, 3)
    with pytest.raises(ConfigError, match="sorted and unique \\(got 2 after 2\\)"):
        sweep.admit(np.array([2, 2]))
    with pytest.raises(ConfigError, match="in \\[0, 10\\) \\(got 10\\)"):
        sweep.admit(np.array([2, 10]))
    with pytest.raises(ConfigError, match="regions must be at least 1"):
        Sweep(10, 0)
    assert sweep.admit(np.array([2, 9])) == (3, 2)
    with pytest.raises(ConfigError, match="rows that are due, 1 \\(got 0\\)"):
        sweep.step(np.empty(0, np.int32))
    with pytest.raises(ConfigError, match="read to its end"):
        sweep.release()
    with pytest.raises(ConfigError, match="must have been read \\(got 2\\)"):
        sweep.find(np.array([2]), np.empty(1, np.int32))
