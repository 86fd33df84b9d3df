"""The lane-by-lane machine: it counts, meets and interleaves as CUDA does, and reports planted faults."""

import numpy as np
import pytest
from simt_runner import LaunchError

SHAPES = [(1, 32), (3, 64), (2, 48), (5, 1), (4, 256)]


@pytest.mark.parametrize(("grid", "block"), [((2, 3, 2), (4, 2, 3)), ((7,), (33,)), ((1, 1, 5), (1, 1, 64))])
def test_every_lane_knows_its_place(simt, grid, block):
    lanes = int(np.prod(block))
    out = np.zeros((int(np.prod(grid)), lanes), np.uint32)
    simt.launch("probe_ids", grid, block, out)
    assert (out == np.arange(out.shape[0])[:, None] * 10000 + np.arange(lanes)).all()


@pytest.mark.parametrize("seed", range(5))
def test_shared_memory_and_barriers(simt, seed):
    values = np.random.default_rng(seed).integers(-1000, 1000, (6, 64))
    out = np.zeros(6, np.int64)
    simt.launch("probe_block_sum", 6, 64, values, out, seed=seed)
    assert (out == values.sum(1)).all()


@pytest.mark.parametrize("seed", range(5))
def test_votes_and_shuffles(simt, seed):
    values = np.random.default_rng(seed).integers(0, 100, 192).astype(np.uint32)
    ballots, broadcast, sums = (np.zeros(192, np.uint32) for _ in range(3))
    simt.launch("probe_warp", 3, 64, values, ballots, broadcast, sums, seed=seed)
    bits = ((values.reshape(-1, 8) & 1) << np.arange(8, dtype=np.uint32)).sum(1)
    assert (ballots.reshape(-1, 8) == bits[:, None]).all()
    assert (broadcast.reshape(-1, 8) == values.reshape(-1, 8)[:, 3:4]).all()
    assert (sums.reshape(-1, 32) == values.reshape(-1, 32).sum(1)[:, None]).all()


def test_lanes_interleave_by_seed_and_repeat_by_seed(simt):
    orders = set()
    for seed in range(20):
        runs = []
        for _ in range(2):
            counter, ticket = np.zeros(1, np.uint32), np.zeros(128, np.uint32)
            simt.launch("probe_tickets", 2, 64, counter, ticket, seed=seed)
            assert sorted(ticket) == list(range(128))
            runs.append(tuple(ticket))
        assert runs[0] == runs[1]
        orders.add(runs[0])
        blocks = np.argsort(ticket) // 64
        assert (blocks[1:] != blocks[:-1]).sum() > 5  # two blocks run at once, not one after the other
    assert len(orders) == 20


def test_published_data_arrives(simt):
    data, flag, out = np.zeros(4, np.uint32), np.zeros(4, np.uint32), np.zeros(128, np.uint32)
    simt.launch("probe_publish", 2, 64, data, flag, out, np.int32(1), seed=3)
    expected = np.repeat(np.arange(4, dtype=np.uint32) + 7, 32)
    expected[::32] = 0
    assert (out == expected).all()


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (1, "__syncthreads"),
        (2, "lanes of one mask must call the same collective"),
        (3, "which is not in its mask"),
        (4, "deadlock|left the kernel"),
    ],
)
def test_misuse_of_collectives_is_an_error_and_the_machine_goes_on(simt, fault, message):
    out = np.zeros(64, np.uint32)
    with pytest.raises(LaunchError, match=message):
        simt.launch("probe_misuse", 1, 64, np.int32(fault), out, seed=fault)
    simt.launch("probe_misuse", 1, 64, np.int32(0), out, seed=fault)


def test_a_write_outside_an_array_is_an_error(simt):
    with pytest.raises(LaunchError, match="wrote outside"):
        simt.launch("probe_ids", 1, 64, np.zeros(60, np.uint32))


def test_wrong_names_counts_and_sizes_are_errors(simt):
    with pytest.raises(LaunchError, match="no kernel is called nothing"):
        simt.launch("nothing", 1, 1)
    with pytest.raises(LaunchError, match="takes 1 arguments"):
        simt.launch("probe_ids", 1, 1)
    with pytest.raises(LaunchError, match="has 4 bytes"):
        simt.launch("probe_misuse", 1, 32, np.int64(0), np.zeros(32, np.uint32))
    with pytest.raises(LaunchError, match="1 to 1024 threads"):
        simt.launch("probe_ids", 1, 2048, np.zeros(2048, np.uint32))
