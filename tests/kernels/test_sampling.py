"""Neighbour sampling and numbering, lane by lane, bit for bit against the CPU backend."""

import numpy as np
import pytest
import torch

from gids.cuda.layers import device_sampler
from gids.cuda.sampling import CudaNeighborSampler, NodeNumbers, PinnedTopology, as_numpy
from gids.errors import ConfigError
from gids.sampling import LadiesSampler, NeighborSampler, Relation, SampleKey, ShadowSampler, Topology


def random_topology(seed, nodes=300, index_dtype=np.int32, hub=True):
    rng = np.random.default_rng(seed)
    degrees = rng.integers(0, 12, nodes)
    if hub:
        degrees[:3] = [70, 0, 33]
    indptr = np.concatenate([[0], np.cumsum(degrees)])
    indices = rng.integers(0, nodes, indptr[-1]).astype(index_dtype)
    return Topology({"_N": nodes}, {("_N", "_E", "_N"): Relation(indptr, indices)})


def hetero_topology(seed):
    rng = np.random.default_rng(seed)
    sizes = {"paper": 120, "author": 80}
    relations = {}
    for i, (src, dst) in enumerate([("author", "paper"), ("paper", "author"), ("paper", "paper")]):
        indptr = np.concatenate([[0], np.cumsum(rng.integers(0, 9, sizes[dst]))])
        ids = rng.permutation(indptr[-1]) if i == 1 else None
        weights = (rng.random(indptr[-1]) * rng.integers(0, 3, indptr[-1])).astype(np.float32)
        relations[(src, f"r{i}", dst)] = Relation(indptr, rng.integers(0, sizes[src], indptr[-1]), ids, weights)
    return Topology(sizes, relations)


def assert_same(session, device, cpu):
    got = as_numpy(session, device)
    for name in ("seeds", "input_nodes", "seed_rows"):
        for ntype, expected in getattr(cpu, name).items():
            assert (got[name][ntype] == expected.numpy()).all(), (name, ntype)
            assert got[name][ntype].shape == expected.shape
    assert len(got["blocks"]) == len(cpu.blocks)
    for mine, theirs in zip(got["blocks"], cpu.blocks, strict=True):
        assert mine["num_src"] == theirs.num_src
        assert mine["num_dst"] == theirs.num_dst
        for field in ("indptr", "src", "edge_ids", "weights"):
            if getattr(theirs, field) is None:
                assert mine[field] is None
                continue
            for etype, expected in getattr(theirs, field).items():
                assert np.array_equal(mine[field][etype], expected.numpy()), (field, etype)


@pytest.mark.parametrize("lanes", [None, 1, 8, 32])
@pytest.mark.parametrize(
    ("fanouts", "replace", "edge_ids"), [([3, 4], False, True), ([5, 2], True, False), ([-1, 40], False, False)]
)
def test_homogeneous(session, lanes, fanouts, replace, edge_ids):
    topology = random_topology(3, index_dtype=np.int64 if replace else np.int32)
    sampler = NeighborSampler(fanouts, replace=replace, edge_ids=edge_ids)
    seeds = np.array([0, 7, 2, 7, 1, 250, 33], np.int64)
    key = SampleKey(11, 2, 5)
    device = CudaNeighborSampler(sampler, lanes).sample(
        session, PinnedTopology(topology, session), {"_N": session.upload(seeds)}, key
    )
    assert_same(session, device, sampler.sample(topology, torch.from_numpy(seeds), key))


def test_heterogeneous_with_edge_ids(session):
    topology = hetero_topology(5)
    sampler = NeighborSampler([3, {("author", "r0", "paper"): 4, ("paper", "r2", "paper"): 0}], edge_ids=True)
    seeds = {"paper": np.arange(20)}
    key = SampleKey(2**40 + 1, 3, 2**33)
    device = CudaNeighborSampler(sampler).sample(
        session,
        PinnedTopology(topology, session),
        {ntype: session.upload(ids) for ntype, ids in seeds.items()},
        key,
    )
    assert_same(session, device, sampler.sample(topology, {k: torch.from_numpy(v) for k, v in seeds.items()}, key))


@pytest.mark.parametrize(
    "sampler",
    [
        NeighborSampler([3, 4], weights=True, edge_ids=True),
        NeighborSampler([5, -1], weights=True),
        NeighborSampler([3, 4], weights=True, replace=True),
        ShadowSampler([3, 2], edge_ids=True),
        ShadowSampler([2, 2], weights=True),
        LadiesSampler([30, 20], edge_ids=True),
        LadiesSampler([500, 1], weights=True),
        LadiesSampler([25, 10, 5], weights=True, edge_ids=True),
    ],
    ids=lambda sampler: f"{type(sampler).__name__}-{'weighted' if sampler.weights else 'plain'}",
)
def test_other_samplers(session, sampler):
    topology = hetero_topology(session.block_threads)
    seeds = {"paper": np.array([5, 3, 5, 119, 40]), "author": np.arange(7)}
    key = SampleKey(9, 1, 4)
    device = device_sampler(sampler).sample(
        session, PinnedTopology(topology, session), {n: session.upload(ids) for n, ids in seeds.items()}, key
    )
    assert_same(session, device, sampler.sample(topology, {n: torch.from_numpy(ids) for n, ids in seeds.items()}, key))


def test_numbering_grows_and_keeps_earlier_numbers(session):
    rng = np.random.default_rng(1)
    numbers, expected = NodeNumbers(session), {}
    for count in (3, 40, 0, 500):
        ids = rng.integers(0, 200, count) + 2**40
        got = session.download(numbers.add(session.upload(ids)))
        assert list(got) == [expected.setdefault(int(node), len(expected)) for node in ids]
    assert list(session.download(numbers.nodes[: numbers.size])) == list(expected)


def test_seeds_out_of_range_and_topology_on_disk_are_refused(session):
    topology = random_topology(1)
    with pytest.raises(ConfigError, match=r"seeds of _N must be in \[0, 300\)"):
        CudaNeighborSampler(NeighborSampler([2])).sample(
            session, PinnedTopology(topology, session), {"_N": session.upload(np.array([3, 300]))}, SampleKey()
        )
    on_disk = Topology({"_N": 2}, {("_N", "_E", "_N"): Relation(np.array([0, 1, 2]), lambda positions, out: None)})
    with pytest.raises(ConfigError, match="must be in memory"):
        PinnedTopology(on_disk, session)
