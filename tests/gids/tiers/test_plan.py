"""Plans with literal traces: locations, reads, admissions, counters; and what a planner refuses."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gids import ConfigError
from gids.tiers import Counters, HostRows, Planner, Source


def rows(*values):
    return torch.tensor(values, dtype=torch.int64)


def test_first_batch_is_read_and_admitted_into_free_slots():
    plan = Planner(100, 2, "lru").plan_group([rows(7, 3, 9)])
    assert plan.disk_rows.tolist() == [3, 7, 9]
    assert plan.batches[0].location.tolist() == [2 + 1, 2 + 0, 2 + 2]
    assert plan.batches[0].admit_positions.tolist() == [0, 1]
    assert plan.batches[0].admit_slots.tolist() == [0, 1]
    assert plan.counters == Counters(requests=3, disk=3)


def test_second_batch_hits_what_the_first_left():
    planner = Planner(100, 2, "lru")
    planner.plan_group([rows(7, 3)])
    plan = planner.plan_group([rows(3, 4)])
    assert plan.batches[0].location.tolist() == [0, 2]
    assert plan.sources(0) == [Source.CACHE, Source.DISK]
    assert plan.disk_rows.tolist() == [4]
    assert plan.batches[0].admit_slots.tolist() == [1]  # 7 was used longest ago
    assert planner.resident_rows().tolist() == [3, 4]


def test_a_group_reads_a_row_once_and_hands_a_slot_over_after_its_last_use():
    planner = Planner(100, 1, "window(1)")
    planner.plan_group([rows(5)], [rows(5, 6)])
    plan = planner.plan_group([rows(5, 6), rows(6), rows(5, 8)], [rows(8)])
    assert plan.disk_rows.tolist() == [6, 8]
    assert [b.location.tolist() for b in plan.batches] == [[0, 1], [1], [0, 2]]
    assert [b.counters for b in plan.batches] == [
        Counters(2, cache=1, disk=1),
        Counters(1, duplicates=1),
        Counters(2, cache=1, disk=1),
    ]
    assert [b.admit_slots.tolist() for b in plan.batches] == [[], [], [0]]  # batch 2 still reads 5 from slot 0
    assert planner.resident_rows().tolist() == [8]


def test_window_bypasses_rows_it_will_not_need():
    planner = Planner(100, 1, "window(2)")
    a, b, c, d = rows(1), rows(2), rows(1), rows(3)
    planner.plan_group([a], [b, c, d])
    plan = planner.plan_group([b], [c, d])
    assert plan.batches[0].admit_slots.tolist() == []
    assert planner.plan_group([c], [d]).counters == Counters(1, cache=1)


def test_host_rows_are_never_read_or_admitted():
    planner = Planner(100, 4, "lru", host=HostRows(rows(50, 60)))
    plan = planner.plan_group([rows(60, 1, 50)])
    assert plan.batches[0].location.tolist() == [4 + 1, 4 + 2 + 0, 4 + 0]
    assert plan.sources(0) == [Source.HOST, Source.DISK, Source.HOST]
    assert plan.counters == Counters(3, host=2, disk=1)
    assert 50 not in planner.resident_rows().tolist()


def test_capacity_zero_reads_everything():
    planner = Planner(10, 0, "window")
    assert planner.plan_group([rows(1)], [rows(1)]).counters == Counters(1, disk=1)
    assert planner.plan_group([rows(1)]).counters == Counters(1, disk=1)


@pytest.mark.parametrize("policy", ["window", "lru"])
@pytest.mark.parametrize("bad", [-1, 10, 2**62])
def test_rows_out_of_range_are_refused_and_change_nothing(policy, bad):
    planner = Planner(10, 2, policy)
    planner.plan_group([rows(4)])
    with pytest.raises(ConfigError, match=rf"\[0, 10\) \(got {bad}\)"):
        planner.plan_group([rows(1, 2), rows(bad)])
    assert planner.resident_rows().tolist() == [4, -1]
    assert planner.plan_group([rows(4)]).counters == Counters(1, cache=1)


@pytest.mark.parametrize("bad", [torch.tensor([1], dtype=torch.int32), torch.tensor([[1]])])
def test_wrong_tensors_are_refused(bad):
    with pytest.raises(ConfigError, match="int64"):
        Planner(10, 2).plan_group([bad])


def test_empty_groups_and_batches():
    planner = Planner(10, 2)
    assert planner.plan_group([]).counters == Counters()
    plan = planner.plan_group([rows(), rows(1)], [rows()])
    assert plan.counters == Counters(1, disk=1)


traces = st.lists(st.sets(st.integers(0, 11), max_size=5).map(sorted), min_size=1, max_size=9)


def run(trace, capacity, policy, group=1, ahead=None, fresh=False, host=None, num_rows=12):
    """All plans of a trace; with ``fresh`` every call gets new tensors, so nothing of the window is reused."""
    batches = [rows(*batch) for batch in trace]
    planner = Planner(num_rows, capacity, policy, host=host)
    plans = []
    for begin in range(0, len(batches), group):
        now, later = batches[begin : begin + group], batches[begin + group :][:ahead]
        if fresh:
            now, later = [t.clone() for t in now], [t.clone() for t in later]
        plans.append(planner.plan_group(now, later))
    return plans, planner


POLICIES = ["random", "lru", "sieve", "gids(2)", "window(0)", "window(2)", "belady"]


@given(traces, st.integers(0, 12), st.sampled_from(POLICIES), st.integers(1, 3))
@settings(max_examples=150, deadline=None)
def test_locations_always_point_at_the_row(trace, capacity, policy, group):
    """Replays the plans on row numbers instead of features."""
    host = HostRows(rows(2, 9))
    plans, planner = run(trace, capacity, policy, group, host=host)
    cache = [-1] * planner.capacity
    wanted = iter(trace)
    for plan in plans:
        assert plan.disk_rows.tolist() == sorted(set(plan.disk_rows.tolist()))
        for batch in plan.batches:
            space = [*cache, 2, 9, *plan.disk_rows.tolist()]
            assert [space[at] for at in batch.location.tolist()] == list(next(wanted))
            for position, slot in zip(batch.admit_positions.tolist(), batch.admit_slots.tolist(), strict=True):
                cache[slot] = int(plan.disk_rows[position])
            c = batch.counters
            assert c.requests == c.cache + c.host + c.disk + c.duplicates == len(batch.location)
        assert plan.counters.disk == len(plan.disk_rows)
    assert cache == planner.resident_rows().tolist()


@given(traces, st.integers(0, 6), st.sampled_from(POLICIES), st.integers(1, 3))
@settings(max_examples=60, deadline=None)
def test_reusing_the_window_changes_no_plan(trace, capacity, policy, group):
    for kept, fresh in zip(
        run(trace, capacity, policy, group)[0], run(trace, capacity, policy, group, fresh=True)[0], strict=True
    ):
        assert kept.disk_rows.tolist() == fresh.disk_rows.tolist()
        for a, b in zip(kept.batches, fresh.batches, strict=True):
            assert a.location.tolist() == b.location.tolist()
            assert a.admit_slots.tolist() == b.admit_slots.tolist()
            assert a.admit_positions.tolist() == b.admit_positions.tolist()
