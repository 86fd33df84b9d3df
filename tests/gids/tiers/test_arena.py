"""Groups that share an arena: slots come back row by row, and rows are right however groups overlap in it."""

import numpy as np
import pytest
import torch

from gids.errors import ConfigError, GidsError
from gids.tiers import FeatureStore
from gids.tiers.arena import RowArena

from .conftest import MemoryReader, make_table


def test_slots_are_given_once_and_used_ones_first():
    arena = RowArena(4, 3, torch.float16)
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
@pytest.mark.parametrize("piece_rows", [1, 7, 1000])
def test_groups_that_overlap_in_the_arena_give_the_right_rows(batches_of, cache_rows, policy, piece_rows):
    """As the pipeline does it: a piece of the next group is read as soon as gathering made room for it."""
    table, values = make_table(400, 5)
    batches = batches_of(24, 50, 400)
    store = FeatureStore(
        table, MemoryReader(values), cache_rows=cache_rows, policy=policy, arena_rows=160, piece_rows=piece_rows
    )
    groups = [batches[at : at + 4] for at in range(0, len(batches), 4)]
    plans = [store.plan_group(group, batches[4 * n + 4 : 4 * n + 8]) for n, group in enumerate(groups)]
    assert all(len(plan.disk_rows) <= 160 for plan in plans)
    pending = [store.begin(plan) for plan in plans]
    used, overlapped = 0, 0

    def read_what_fits(number):
        nonlocal used
        if number == len(pending):
            return
        group = pending[number]
        while group.next_piece < len(group.pieces):
            first, last = group.pieces[group.next_piece]
            if used + last - first > 160:
                return
            store.read(group)
            used += last - first

    for number, group in enumerate(groups):
        read_what_fits(number)
        for i, batch in enumerate(group):
            assert torch.equal(store.gather(pending[number], i), values[batch])
            used -= pending[number].freed_rows(i)
            read_what_fits(number + 1)
            overlapped += number + 1 < len(pending) and i < len(group) - 1 and pending[number + 1].next_piece > 0
            assert store.arena.in_use == used
    assert used == 0
    assert overlapped or piece_rows == 1000
    assert store.arena.nbytes <= 160 * table.row_bytes


def test_a_group_larger_than_the_arena_is_read_at_once_and_one_beyond_its_reserve_has_its_own_memory(batches_of):
    table, values = make_table(400, 5)
    for arena_rows, in_arena in ((100, True), (60, False)):
        store = FeatureStore(table, MemoryReader(values), arena_rows=arena_rows, piece_rows=1)
        pending = store.begin(store.plan_group([torch.arange(90), torch.arange(30, 180)]))
        assert len(pending.pieces) == 1
        assert (pending.slots is not None) == in_arena
        store.read(pending)
        assert torch.equal(store.gather(pending, 0), values[:90])
        assert torch.equal(store.gather(pending, 1), values[30:180])
        assert [pending.freed_rows(i) for i in range(2)] == ([30, 150] if in_arena else [0, 180])
        assert store.arena.in_use == 0


def test_a_group_that_was_not_read_to_its_end_cannot_be_gathered():
    table, values = make_table(100, 5)
    store = FeatureStore(table, MemoryReader(values), arena_rows=100, piece_rows=1)
    pending = store.begin(store.plan_group([torch.arange(32)]))
    store.read(pending)
    with pytest.raises(GidsError, match="only 1 of 16 pieces"):
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
    store = FeatureStore(table, MemoryReader(values), arena_rows=100, piece_rows=50)
    pending = store.begin(store.plan_group([torch.arange(100)]))
    early, late = Read(), Read()
    pending.started(early)
    pending.cancel()
    pending.started(late)
    assert (early.cancelled, late.cancelled) == (1, 1)


def test_slots_are_checked():
    from gids._native import note_last_use, place_rows

    location = np.array([0, 5, 3], np.int64)
    place_rows(location, 3, np.array([7, 8, 9], np.int32))
    assert location.tolist() == [0, 3 + 9, 3 + 7]
    last = np.zeros(3, np.int16)
    note_last_use(np.array([1, 4, 5], np.int64), 3, 6, last)
    assert last.tolist() == [0, 6, 6]
    with pytest.raises(ConfigError, match=r"location must be in \[0, 6\) \(got 6\)"):
        place_rows(np.array([6], np.int64), 3, np.zeros(3, np.int32))
    with pytest.raises(ConfigError, match=r"location must be in \[0, 6\) \(got 9\)"):
        note_last_use(np.array([9], np.int64), 3, 0, last)
