"""Reverse PageRank, lane by lane, bit for bit against the CPU backend."""

import numpy as np
import pytest

from gids._native import ThreadPool, damp_ranks, push_ranks

UNIT = 1 << 62


@pytest.mark.parametrize("index_dtype", [np.int32, np.int64])
@pytest.mark.parametrize(("nodes", "first"), [(300, 0), (40, 100), (1, 0)])
def test_two_rounds_equal_the_cpu(session, nodes, first, index_dtype):
    if session.block_threads % 32:
        pytest.skip("a block holds whole warps")
    rng = np.random.default_rng(nodes)
    indptr = np.concatenate([[0], np.cumsum(rng.integers(0, 20, nodes) + 600 * (np.arange(nodes) == nodes // 2))])
    sources = rng.integers(0, nodes, indptr[-1] - first).astype(index_dtype)
    restart = rng.integers(0, UNIT // (10 * nodes), nodes).astype(np.uint64)
    rank, received = np.full(nodes, UNIT // nodes, np.uint64), np.zeros(nodes, np.uint64)
    device = [session.upload(values) for values in (indptr, rank, sources, restart, received)]
    d_indptr, d_rank, d_sources, d_restart, d_received = device
    for _ in range(2):
        push_ranks(ThreadPool(1), indptr, rank, sources, first, 3, received)
        session.launch(
            f"push_ranks_{8 * sources.itemsize}", -(-len(sources) // 512), d_indptr, np.int64(nodes), d_rank,
            d_sources, np.int64(first), np.int64(len(sources)), np.uint64(3), d_received, lanes=32,
        )  # fmt: skip
        assert np.array_equal(session.download(d_received), received)
        damp_ranks(ThreadPool(1), received, restart, 55705, rank)
        session.launch("damp_ranks", nodes, d_received, d_restart, np.uint32(55705), np.int64(nodes), d_rank)
        assert np.array_equal(session.download(d_rank), rank)
        assert not session.download(d_received).any()
    assert rank.any()
