"""belady against an optimum found by trying every resident set; window(W) tends to it."""

import itertools

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gids.tiers.plan import Planner
from tests.gids.tiers.test_plan import run, traces


def best_hits(trace, capacity):
    """The most hits that any cache of this size can have: all reachable resident sets, with no rule at all."""
    reachable = {frozenset(): 0}
    for batch in map(frozenset, trace):
        after = {}
        for resident, hits in reachable.items():
            hits += len(resident & batch)
            candidates = sorted(resident | batch)
            for kept in itertools.combinations(candidates, min(capacity, len(candidates))):
                key = frozenset(kept)
                after[key] = max(after.get(key, 0), hits)
        reachable = after
    return max(reachable.values())


small_traces = st.lists(st.sets(st.integers(0, 6), max_size=4).map(sorted), min_size=1, max_size=7)


@given(small_traces, st.integers(0, 4))
@settings(max_examples=200, deadline=None)
def test_belady_is_the_optimum(trace, capacity):
    plans, _ = run(trace, capacity, "belady")
    assert sum(plan.counters.cache for plan in plans) == best_hits(trace, capacity)


@given(small_traces, st.integers(0, 4), st.integers(2, 3))
@settings(max_examples=100, deadline=None)
def test_belady_reads_least_for_any_grouping(trace, capacity, group):
    """A group's rows are read once whatever happens, so the optimum treats the group as one request."""
    unions = [sorted(set().union(*trace[i : i + group])) for i in range(0, len(trace), group)]
    plans, _ = run(trace, capacity, "belady", group)
    least = sum(map(len, unions)) - best_hits(unions, capacity)
    assert sum(len(plan.disk_rows) for plan in plans) == least


@given(small_traces, st.integers(0, 4))
@settings(max_examples=60, deadline=None)
def test_a_window_over_everything_is_belady(trace, capacity):
    whole, _ = run(trace, capacity, f"window({len(trace)})")
    belady, _ = run(trace, capacity, "belady")
    assert [p.batches[0].location.tolist() for p in whole] == [p.batches[0].location.tolist() for p in belady]


@given(traces, st.integers(1, 6), st.sampled_from(["belady", "window(2)"]), st.integers(1, 3))
@settings(max_examples=60, deadline=None)
def test_how_a_window_finds_its_rows_changes_no_plan(trace, capacity, policy, group):
    """Of a small table the planner has a list of all rows, of a large one a map of the window's."""
    small, large = (run(trace, capacity, policy, group, num_rows=n)[0] for n in (12, 1 << 40))
    for a, b in zip(small, large, strict=True):
        assert a.disk_rows.tolist() == b.disk_rows.tolist()
        assert [x.location.tolist() for x in a.batches] == [x.location.tolist() for x in b.batches]
        assert [x.admit_slots.tolist() for x in a.batches] == [x.admit_slots.tolist() for x in b.batches]


def test_a_long_window_takes_no_more_than_a_list_of_the_table():
    planner, batches = Planner(10_000, 10, "belady"), list(torch.arange(10_000).reshape(10, 1000)) * 3
    planner.plan_group(batches[:1], batches[1:])
    assert planner.memory_bytes < 8 * 10_000 + 4 * 30_000 + 4000  # and a next use for every row of every batch
