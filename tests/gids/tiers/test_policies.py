"""Policies against plain models of them, and how they are named."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gids import ConfigError
from gids.tiers import Planner, parse_policy, popularity_levels
from gids.tiers.policies import POLICIES, Gids, Window
from tests.gids.tiers.test_plan import rows, run, traces


def sieve_model(trace, capacity):
    """SIEVE as its authors wrote it: a list with a hand, one object at a time; hits of a batch are marked first."""
    queue, visited, hand, hits = [], set(), None, []  # queue: newest first
    for batch in trace:
        found = [row for row in batch if row in queue]
        visited.update(found)
        hits.append(found)
        missed = sorted(set(batch) - set(queue))[:capacity]
        new = missed[: max(capacity - len(queue), 0)]
        for _ in missed[len(new) :]:
            at = queue.index(hand) if hand is not None else len(queue) - 1
            while queue[at] in visited:
                visited.remove(queue[at])
                at = at - 1 if at > 0 else len(queue) - 1
            hand = queue[at - 1] if at > 0 else None
            del queue[at]
        queue = missed[::-1] + queue if capacity else []
    return hits


@given(traces, st.integers(0, 6))
@settings(max_examples=200, deadline=None)
def test_sieve_is_sieve(trace, capacity):
    plans, planner = run(trace, capacity, "sieve")
    hits = [
        [row for row, at in zip(batch, plan.batches[0].location.tolist(), strict=True) if at < planner.capacity]
        for batch, plan in zip(trace, plans, strict=True)
    ]
    assert hits == sieve_model(trace, capacity)


@given(traces, st.integers(0, 6))
@settings(max_examples=100, deadline=None)
def test_lru_keeps_the_most_recent_batches(trace, capacity):
    """Whatever is evicted was used no later than anything kept."""
    last = {row: number for number, batch in enumerate(trace) for row in batch}
    _, planner = run(trace, capacity, "lru")
    kept = [row for row in planner.resident_rows().tolist() if row >= 0]
    dropped = set(last) - set(kept)
    assert len(kept) == min(capacity, len(last))
    assert max((last[row] for row in dropped), default=-1) <= min((last[row] for row in kept), default=10**9)


def test_gids_keeps_what_the_window_reuses_and_admits_what_there_is_room_for():
    planner_plans, planner = run([[0, 1, 2], [3, 4], [0, 1]], 3, "gids(2)")
    assert planner_plans[1].batches[0].admit_slots.tolist() == [2]  # 0 and 1 are in USE, 2 is safe to evict
    assert planner_plans[2].counters.cache == 2
    assert sorted(planner.resident_rows().tolist()) == [0, 1, 3]


def test_gids_with_every_line_in_use_caches_nothing_and_does_not_wait():
    plans, _ = run([[0, 1], [2, 3], [0, 1]], 2, "gids(3)")
    assert plans[1].batches[0].admit_slots.tolist() == []
    assert plans[2].counters.cache == 2


def test_popular_rows_stay_where_the_window_is_silent():
    """Row 7 is expected twice as often as row 5, row 9 less than both; what is counted does not matter then."""
    scores = np.zeros(10)
    scores[[5, 7, 9]] = 4, 8, 1
    planner = Planner(10, 1, "window(1)", popularity=popularity_levels(scores))
    residents = []
    for batch in ([5], [5], [7], [9], [2]):
        planner.plan_group([rows(*batch)])
        residents.append(planner.resident_rows().item())
    assert residents == [5, 5, 7, 7, 7]
    counted = Planner(10, 1, "window(1)")
    for batch in ([5], [5], [7]):
        counted.plan_group([rows(*batch)])
    assert counted.resident_rows().item() == 5
    planner.plan_group([rows(2)], [rows(2)])
    assert planner.resident_rows().item() == 2  # the window knows better


def test_popularity_levels():
    assert popularity_levels(np.array([0, 1024, 1023, 512, 511, 256, 1])).tolist() == [0, 123, 122, 119, 118, 115, 83]
    assert popularity_levels(np.array([1e-30, 1.0])).tolist() == [1, 123]
    assert popularity_levels(np.zeros(3)).tolist() == [0, 0, 0]
    with pytest.raises(ConfigError, match="one level per row, 9"):
        Planner(9, 1, popularity=np.zeros(3, np.uint8))
    with pytest.raises(ConfigError, match="below 128"):
        Planner(3, 1, popularity=np.full(3, 200, np.uint8))


def test_random_evicts_every_slot_sooner_or_later_and_repeats():
    def victims(seed):
        planner = Planner(1000, 8, "random", seed=seed)
        planner.plan_group([torch.arange(8)])
        return [planner.plan_group([rows(100 + i)]).batches[0].admit_slots.item() for i in range(200)]

    drawn = victims(1)
    assert victims(1) == drawn != victims(2)
    assert min(drawn.count(slot) for slot in range(8)) >= 10  # 25 expected


def test_names():
    assert parse_policy("window") == Window(16)
    assert parse_policy("window", 3) == Window(3)
    assert parse_policy(" gids(4) ") == Gids(4)
    assert str(parse_policy("window(3)")) == "window(3)"
    assert [str(parse_policy(name, 2)) for name in POLICIES] == [
        "random",
        "lru",
        "sieve",
        "gids(2)",
        "window(2)",
        "belady",
    ]
    for bad in ("fifo", "lru(3)", "window(-1)", ""):
        with pytest.raises(ConfigError, match="policy"):
            parse_policy(bad)
    with pytest.raises(ConfigError, match="window"):
        Window(-1)
