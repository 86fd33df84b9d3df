"""LABOR against its definition: the edges whose sources have the smallest variates, and what follows from that."""

import numpy as np
import pytest
import torch

from gids import ConfigError, _native
from gids.sampling import LaborSampler, NeighborSampler, Relation, SampleKey, Topology

LABOR, PHASE = 5, 6


def mix(key, node):
    """32 bits of a node under a key: the finaliser of MurmurHash3, keyed."""
    x = node + key[0] & 0xFFFFFFFF
    x = (x ^ x >> 16) * 0x85EBCA6B & 0xFFFFFFFF
    x = (x ^ x >> 13 ^ key[1]) * 0xC2B2AE35 & 0xFFFFFFFF
    return x ^ x >> 16


def variate(oracle, node, key, layer, kind, period=1):
    """The 32 bits of one source node, straight from the definition."""
    seed, epoch, batch = key
    moved = False
    if batch % period:
        phase = mix(oracle.key(seed, epoch, 0, layer, kind, PHASE), node)
        moved = phase < batch % period * ((2**64 - 1) // period) >> 32
    return mix(oracle.key(seed, epoch, batch // period + moved, layer, kind, LABOR), node)


def expected(oracle, graph, seeds, fanouts, key, *, period=1, dependent=False):
    """Blocks from the seeds outwards: {destination: positions of its edges, by time}."""
    indptr, indices = graph
    frontier = list(dict.fromkeys(int(seed) for seed in seeds))
    for hop, fanout in enumerate(reversed(fanouts)):
        block = []
        for node in list(frontier):
            positions = list(range(int(indptr[node]), int(indptr[node + 1])))
            if len(positions) > fanout:
                layer = 0 if dependent else hop
                bits = {p: variate(oracle, int(indices[p]), key, layer, 0, period) for p in positions}
                positions = sorted(positions, key=lambda p: (bits[p], p))[:fanout]
            block.append(positions)
            frontier += [int(indices[p]) for p in positions]
        frontier = list(dict.fromkeys(frontier))
        yield [p for positions in block for p in positions]


@pytest.mark.parametrize(("period", "dependent"), [(1, False), (1, True), (4, False)])
@pytest.mark.parametrize("threads", [None, 3])
def test_edges_are_those_of_the_smallest_variates(homogeneous, oracle, period, dependent, threads):
    topology = Topology.from_arrays(*homogeneous)
    sampler = LaborSampler([5, 3, 4], edge_ids=True, batch_dependency=period, layer_dependency=dependent)
    pool = None if threads is None else _native.ThreadPool(threads)
    for batch in (0, 5):
        key, seeds = (7, 2, batch), [5, 0, 299, 5, 17]
        sample = sampler.sample(topology, torch.tensor(seeds), SampleKey(*key), pool)
        blocks = expected(oracle, homogeneous, seeds, [5, 3, 4], key, period=period, dependent=dependent)
        for block, positions in zip(reversed(sample.blocks), blocks, strict=True):
            assert block.edge_ids[block.edge_types[0]].tolist() == positions


def test_every_edge_is_as_likely_as_with_neighbour_sampling():
    degree, fanout, batches = 24, 6, 4000
    topology = Topology.from_arrays([0, degree, *[degree] * degree], np.arange(1, degree + 1))
    counts = np.zeros(degree)
    sampler = LaborSampler([fanout], edge_ids=True)
    for batch in range(batches):
        ids = sampler.sample(topology, [0], SampleKey(3, 0, batch)).blocks[0].edge_ids
        counts[next(iter(ids.values())).numpy()] += 1
    chance = fanout / degree
    spread = np.sqrt(batches * chance * (1 - chance))
    assert counts.sum() == fanout * batches
    assert (abs(counts - batches * chance) < 5 * spread).all()


def test_weights_are_chances():
    """One edge of two: chosen in proportion to its weight."""
    topology = Topology.from_arrays([0, 3, 3, 3, 3], [1, 2, 3], weights=np.array([1, 3, 0], np.float32))
    sampler = LaborSampler([1], edge_ids=True, weights=True)
    chosen = [
        int(next(iter(sampler.sample(topology, [0], SampleKey(batch=b)).blocks[0].edge_ids.values()))[0])
        for b in range(2000)
    ]
    assert 2 not in chosen
    assert abs(np.mean(chosen) - 0.75) < 5 * np.sqrt(0.75 * 0.25 / 2000)


def test_batches_need_fewer_input_nodes_and_dependent_ones_resemble_each_other():
    rng = np.random.default_rng(1)
    indptr = np.arange(2001) * 30
    topology = Topology.from_arrays(indptr, (2000 * rng.random(60_000) ** 2).astype(np.int32))
    seeds = torch.arange(200)

    def inputs(sampler, batch=0):
        return set(sampler.sample(topology, seeds, SampleKey(batch=batch)).input_nodes["_N"].tolist())

    plain, labor = inputs(NeighborSampler([3, 3])), inputs(LaborSampler([3, 3]))
    same_layers = inputs(LaborSampler([3, 3], layer_dependency=True))
    assert len(same_layers) < len(labor) < 0.8 * len(plain)
    slow = LaborSampler([3, 3], batch_dependency=64)
    kept = len(inputs(slow, 1) & inputs(slow, 2)) / len(inputs(slow, 1))
    fresh = len(inputs(LaborSampler([3, 3]), 1) & inputs(LaborSampler([3, 3]), 2)) / len(labor)
    assert kept > 0.9 > fresh


def test_relations_with_the_same_source_type_share_variates():
    lists = np.arange(10)
    relation = Relation(np.array([0, 10]), lists)
    topology = Topology({"a": 10, "b": 1}, {("a", "x", "b"): relation, ("a", "y", "b"): relation})
    block = LaborSampler([4]).sample(topology, {"b": torch.tensor([0])}, SampleKey(5)).blocks[0]
    assert block.num_src["a"] == 4
    assert block.num_edges() == 8


def scale(pi, fanout):
    """The c with sum(1 / min(1, c * pi)) == degree ** 2 / fanout, by bisection."""
    low, high = 0.0, 1 / min(pi)
    for _ in range(200):
        c = (low + high) / 2
        low, high = (c, high) if (1 / np.minimum(1, c * pi)).sum() > len(pi) ** 2 / fanout else (low, c)
    return c


@pytest.mark.parametrize("rounds", [1, 3])
def test_importance_follows_the_paper(oracle, rounds):
    rng = np.random.default_rng(2)
    lists = [np.sort(rng.choice(12, size, replace=False)) for size in (9, 4, 2, 7)]
    indptr = np.concatenate([[0], np.cumsum([len(part) for part in lists])])
    topology = Topology({"s": 12, "d": 4}, {("s", "to", "d"): Relation(indptr, np.concatenate(lists))})
    pi, fanout = np.ones(12), 3
    scales = [scale(pi[part], fanout) if len(part) > fanout else 1 / pi[part].min() for part in lists]
    for _ in range(rounds):
        pi = pi * [max([c for c, part in zip(scales, lists, strict=True) if t in part], default=1) for t in range(12)]
        scales = [scale(pi[part], fanout) if len(part) > fanout else 1 / pi[part].min() for part in lists]
    key = (4, 1, 9)
    block = (
        LaborSampler([fanout], importance=rounds, edge_ids=True)
        .sample(topology, {"d": torch.arange(4)}, SampleKey(*key))
        .blocks[0]
    )
    etype = ("s", "to", "d")
    begins = block.indptr[etype].tolist()
    for i, (c, part) in enumerate(zip(scales, lists, strict=True)):
        chances = np.minimum(1, c * pi[part])
        keeps = [variate(oracle, int(t), key, 0, 0) / 2**32 < p for t, p in zip(part, chances, strict=True)]
        own = slice(begins[i], begins[i + 1])
        assert block.edge_ids[etype][own].tolist() == [int(indptr[i]) + j for j, keep in enumerate(keeps) if keep]
        weights = (1 / chances)[keeps]
        np.testing.assert_allclose(block.weights[etype][own], weights / weights.sum(), rtol=1e-5)


def test_importance_needs_fewer_input_nodes():
    rng = np.random.default_rng(1)
    indptr = np.concatenate([[0], np.cumsum(rng.choice([8, 20, 150], 2000))])
    topology = Topology.from_arrays(indptr, (2000 * rng.random(indptr[-1]) ** 2).astype(np.int32))
    sizes = [
        np.mean(
            [
                len(
                    LaborSampler([5], importance=rounds)
                    .sample(topology, range(200), SampleKey(batch=b))
                    .input_nodes["_N"]
                )
                for b in range(10)
            ]
        )
        for rounds in (0, 1, 4)
    ]
    assert sizes[0] > sizes[1] > sizes[2]


def test_what_means_nothing_is_refused():
    with pytest.raises(ConfigError, match=r"importance must be a number of rounds, 0 or more \(got -1\)"):
        LaborSampler([2], importance=-1)
    with pytest.raises(ConfigError, match=r"batch_dependency must be at least 1 \(got 0\)"):
        LaborSampler([2], batch_dependency=0)
    with pytest.raises(ConfigError, match="importance sampling with weights is not supported"):
        LaborSampler([2], importance=1, weights=True)
