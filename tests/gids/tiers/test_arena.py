"""Groups that share an arena: slots come back row by row, and rows are right however groups overlap in it."""

import numpy as np
import pytest
import torch

from gids._native import Sweep, place_rows
from gids.errors import ConfigError, GidsError
from gids.tiers import TableStore
from gids.tiers.arena import RowArena

from .conftest import MemoryReader, begun, make_table


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
    store = TableStore(table, reader, cache_rows=cache_rows, policy=policy, arena_rows=200, regions=regions)
    size = batches_of_a_group
    groups = [batches[at : at + size] for at in range(0, len(batches), size)]
    active, delivered, at_once = [], [], 0

    def step():
        store.advance()
        assert store.arena.in_use <= 200
        assert store.group_account.used == store.arena.in_use * table.row_bytes
        while active and active[0].underway:
            ticket = active.pop(0)
            delivered.extend(store.gather(ticket, i) for i in range(size))

    for number, group in enumerate(groups):
        ticket = store.plan(group, batches[size * (number + 1) : size * (number + 1) + 4])
        while active and not ticket.fits:
            step()
        ticket.begin()
        active.append(ticket)
        at_once = max(at_once, len(active))
        step()
    while active:
        step()
    assert all(torch.equal(rows, values[batch]) for rows, batch in zip(delivered, batches, strict=True))
    assert store.arena.in_use == 0
    counts = store.counts()
    assert counts["requests"] == sum(len(batch) for batch in batches)
    assert counts["disk"] == reader.rows_read
    assert at_once == 1 if regions == 1 else at_once > 1


def test_a_row_that_several_groups_wait_for_is_read_once():
    table, values = make_table(100, 5)
    reader = MemoryReader(values)
    store = TableStore(table, reader, arena_rows=100, regions=4)
    first, second, third = (store.plan([torch.tensor(rows)], []) for rows in ([3, 30, 90], [3, 30, 60], [30, 60]))
    first.begin()
    store.advance()  # 3
    second.begin()
    store.advance()  # 30
    store.advance()  # 60
    third.begin()
    assert (first.underway, second.underway, third.underway) == (False, True, True)
    assert reader.rows_read == 3
    store.advance()  # 90
    for ticket, rows, left in ((first, [3, 30, 90], 3), (second, [3, 30, 60], 2), (third, [30, 60], 0)):
        assert torch.equal(store.gather(ticket, 0), values[rows])
        assert store.group_account.used == left * table.row_bytes, "what another group waits for stays"
    counts = store.counts()
    assert (reader.rows_read, counts["disk"], counts["duplicates"]) == (4, 4, 4)


def test_what_fits_is_what_unfinished_groups_will_hold_at_once():
    table, values = make_table(100, 5)
    store = TableStore(table, MemoryReader(values), arena_rows=30, regions=10)
    tickets = [store.plan([torch.arange(start, 100, 5)], []) for start in range(3)]  # two rows of 20 in each region
    tickets[0].begin()
    assert not tickets[1].fits, "both would have 20 rows at the end of the round"
    for _ in range(5):
        store.advance()
    assert tickets[1].fits, "20 of the first and 10 of the second, when the first is complete"
    tickets[1].begin()
    assert not tickets[2].fits


def test_a_group_larger_than_the_arena_has_memory_of_its_own_and_is_read_at_once():
    table, values = make_table(400, 5)
    store = TableStore(table, MemoryReader(values), arena_rows=60, regions=4)
    small, large = store.plan([torch.arange(50)], []), store.plan([torch.arange(90), torch.arange(30, 180)], [])
    small.begin()
    assert not large.fits
    large.begin()
    store.advance()
    assert store.group_account.used == (50 + 180) * table.row_bytes
    assert large.underway
    assert torch.equal(store.gather(small, 0), values[:50])
    assert torch.equal(store.gather(large, 0), values[:90])
    assert torch.equal(store.gather(large, 1), values[30:180])
    assert store.group_account.used == 0
    assert store.arena.in_use == 0


def test_a_group_that_was_not_read_to_its_end_cannot_be_gathered():
    table, values = make_table(100, 5)
    store = TableStore(table, MemoryReader(values), arena_rows=100, regions=16)
    ticket = store.plan([torch.arange(32)], [])
    ticket.begin()
    store.advance()
    with pytest.raises(GidsError, match="read to its end"):
        store.gather(ticket, 0)
    store.reset()
    assert store.arena.in_use == store.group_account.used == 0
    assert torch.equal(store.gather(begun(store, [torch.arange(5, 9)]), 0), values[5:9])


def test_reads_are_cancelled_with_their_group_and_after_it():
    class Read:
        cancelled = 0

        def cancel(self):
            self.cancelled += 1

    table, values = make_table(100, 5)
    store = TableStore(table, MemoryReader(values), arena_rows=100)
    ticket = store.plan([torch.arange(100)], [])
    ticket.begin()
    early, late = Read(), Read()
    ticket.read_begun(early)
    ticket.cancel()
    ticket.read_begun(late)
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
