"""Weighted choices against an independent race in plain Python, and their corner cases."""

import math

import numpy as np
import pytest

from gids import ConfigError, DatasetError
from gids._native import ThreadPool
from gids.sampling import NeighborSampler, SampleKey, Topology

E = ("_N", "_E", "_N")


@pytest.fixture(scope="module")
def weights(homogeneous):
    drawn = np.random.default_rng(8).exponential(size=len(homogeneous[1])).astype(np.float32)
    drawn[::7] = 0
    return drawn


def races(oracle, key, node, weights):
    times = [(-math.log((oracle.bits(key, node, i) | 1) / 2**64) / float(w), i) for i, w in enumerate(weights) if w > 0]
    return [i for _, i in sorted(times)]


def test_without_replacement_takes_the_first_to_finish(oracle, homogeneous, weights):
    indptr, indices = homogeneous
    topology = Topology.from_arrays(indptr, indices, weights=weights)
    block = (
        NeighborSampler([5], edge_ids=True, weights=True).sample(topology, np.arange(300), SampleKey(4, 5, 6)).blocks[0]
    )
    key = oracle.key(4, 5, 6, 0, 0, oracle.NEIGHBORS)
    for node in range(300):
        own = weights[indptr[node] : indptr[node + 1]]
        got = block.edge_ids[E][block.indptr[E][node] : block.indptr[E][node + 1]].numpy() - indptr[node]
        positive = np.flatnonzero(own > 0)
        expected = positive.tolist() if len(positive) <= 5 else races(oracle, key, node, own)[:5]
        assert got.tolist() == expected


@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize("threads", [2, 7])
def test_threads_do_not_change_the_sample(homogeneous, weights, replace, threads):
    topology = Topology.from_arrays(*homogeneous, weights=weights)
    sampler = NeighborSampler([30, 20, 10], replace=replace, edge_ids=True, weights=True)
    alone = sampler.sample(topology, np.arange(300), SampleKey())
    shared = sampler.sample(topology, np.arange(300), SampleKey(), ThreadPool(threads))
    for a, b in zip(alone.blocks, shared.blocks, strict=True):
        assert a.edge_ids[E].tolist() == b.edge_ids[E].tolist()
        assert (weights[a.edge_ids[E].numpy()] > 0).all()


def test_all_weights_zero_gives_no_edges():
    topology = Topology.from_arrays([0, 3, 3], [0, 1, 1], weights=[0, 0, 0])
    for replace in (False, True):
        assert NeighborSampler([2], weights=True, replace=replace).sample(topology, [0], SampleKey()).num_edges == 0


def test_minus_one_takes_all_of_positive_weight():
    topology = Topology.from_arrays([0, 3, 3], [0, 1, 1], weights=[0, 2, 1])
    block = NeighborSampler([-1], weights=True, edge_ids=True).sample(topology, [0], SampleKey()).blocks[0]
    assert block.edge_ids[E].tolist() == [1, 2]


def test_tiny_and_huge_weights_do_not_overflow():
    topology = Topology.from_arrays([0, 3, 3], [0, 1, 1], weights=[1e-38, 3e38, 1e-45])
    for replace in (False, True):
        block = (
            NeighborSampler([1], weights=True, edge_ids=True, replace=replace)
            .sample(topology, [0], SampleKey())
            .blocks[0]
        )
        assert block.edge_ids[E].tolist() == [1]


@pytest.mark.parametrize("bad", [-1.0, math.nan, math.inf])
def test_bad_weights(bad):
    with pytest.raises(DatasetError, match="weights of _E must be finite and not negative"):
        Topology.from_arrays([0, 1], [0], weights=[bad])
    with pytest.raises(DatasetError, match="weights of _E must have 1 entries"):
        Topology.from_arrays([0, 1], [0], weights=[1.0, 1.0])


def test_missing_weights(homogeneous):
    with pytest.raises(ConfigError, match="needs weights of every edge type"):
        NeighborSampler([1], weights=True).sample(Topology.from_arrays(*homogeneous), [0], SampleKey())
