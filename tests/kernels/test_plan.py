"""Cache planning, lane by lane, bit for bit against the CPU planner, for every policy."""

import numpy as np
import pytest
import torch
from session import SimtSession

from gids.cuda.planner import CudaPlanner, plan_to_host
from gids.errors import ConfigError
from gids.tiers import popularity_levels
from gids.tiers.host_buffer import HostRows
from gids.tiers.plan import Planner

ROWS = 400
SCORES = np.random.default_rng(6).random(ROWS) ** 5
POLICIES = ["window(6)", "belady", "gids(4)", "lru", "sieve", "random"]


def skewed_batches(seed, count=14):
    rng = np.random.default_rng(seed)
    return [
        np.unique((ROWS * rng.random(rng.integers(0, 90)) ** 2).astype(np.int64))[:: rng.choice([1, -1])].copy()
        for _ in range(count)
    ]


def group_sizes(seed, count):
    rng, sizes = np.random.default_rng(seed + 1), []
    while sum(sizes) < count:
        sizes.append(int(min(rng.integers(1, 5), count - sum(sizes))))
    return sizes


def assert_same_plan(got, plan):
    assert np.array_equal(got["disk_rows"], plan.disk_rows.numpy())
    assert len(got["batches"]) == len(plan.batches)
    for mine, theirs in zip(got["batches"], plan.batches, strict=True):
        for field in ("location", "admit_positions", "admit_slots"):
            assert np.array_equal(mine[field], getattr(theirs, field).numpy()), field
        assert mine["counters"] == theirs.counters


@pytest.mark.parametrize(
    ("policy", "popularity"), [*((policy, None) for policy in POLICIES), ("window(6)", popularity_levels(SCORES))]
)
@pytest.mark.parametrize(("capacity", "hosted"), [(48, 30), (0, 20), (ROWS + 9, 0)])
def test_plans_equal_the_cpu_planners(session, policy, popularity, capacity, hosted):
    seed = session.block_threads + capacity
    host = HostRows(torch.from_numpy(np.random.default_rng(2).permutation(ROWS)[:hosted])) if hosted else None
    cpu = Planner(ROWS, capacity, policy, host=host, popularity=popularity, seed=2**35 + 5)
    device = CudaPlanner(session, ROWS, capacity, policy, host=host, popularity=popularity, seed=2**35 + 5)
    rows = skewed_batches(seed)
    tensors, arrays = [torch.from_numpy(r) for r in rows], [session.upload(r) for r in rows]
    at = 0
    for size in group_sizes(seed, len(rows)):
        expected = cpu.plan_group(tensors[at : at + size], tensors[at + size :])
        got = device.plan_group(arrays[at : at + size], arrays[at + size :])
        assert_same_plan(plan_to_host(session, got), expected)
        assert np.array_equal(device.resident_rows(), cpu.resident_rows().numpy())
        at += size
    device.close()


def test_another_future_and_a_reset_are_followed(simt):
    session = SimtSession(simt, 64, 3)
    cpu, device = Planner(ROWS, 20, "window(3)"), CudaPlanner(session, ROWS, 20, "window(3)")
    rows = skewed_batches(4, 8)
    tensors, arrays = [torch.from_numpy(r) for r in rows], [session.upload(r) for r in rows]
    for order in ([0, 1, 2, 3], [4, 5, 6, 7], [7, 0, 1]):
        expected = cpu.plan_group([tensors[order[0]]], [tensors[i] for i in order[1:]])
        got = device.plan_group([arrays[order[0]]], [arrays[i] for i in order[1:]])
        assert_same_plan(plan_to_host(session, got), expected)
    cpu.reset()
    device.reset()
    assert device.generation == cpu.generation == 1
    expected, got = cpu.plan_group(tensors[:2], tensors[2:]), device.plan_group(arrays[:2], arrays[2:])
    assert_same_plan(plan_to_host(session, got), expected)


def test_rows_out_of_range_are_refused_and_planning_goes_on(simt):
    session = SimtSession(simt, 64, 3)
    device, cpu = CudaPlanner(session, ROWS, 20, "lru"), Planner(ROWS, 20, "lru")
    with pytest.raises(ConfigError, match=r"must be in \[0, 400\)"):
        device.plan_group([session.upload(np.array([1, ROWS]))])
    with pytest.raises(ConfigError, match="1-dimensional int64"):
        device.plan_group([session.upload(np.array([1.0]))])
    rows = np.arange(30)
    assert_same_plan(
        plan_to_host(session, device.plan_group([session.upload(rows)])), cpu.plan_group([torch.from_numpy(rows)])
    )


def test_a_map_that_is_cleared_has_no_row(session):
    entries = session.upload(np.arange(80))
    session.launch("map_clear", 40, entries, np.int64(40))
    assert (session.download(entries) == -1).all()
