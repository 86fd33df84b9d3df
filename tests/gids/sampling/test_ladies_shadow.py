"""Layer-wise and subgraph sampling: literal graphs, invariants, and dense linear algebra as the oracle."""

import numpy as np
import pytest
import torch

from gids import ConfigError
from gids._native import ThreadPool
from gids.sampling import LadiesSampler, NeighborSampler, Relation, SampleKey, ShadowSampler, Topology

E = ("_N", "_E", "_N")


def dense(indptr, indices, nodes):
    """Row-normalised adjacency: [destination, source]."""
    matrix = np.zeros((nodes, nodes))
    for node in range(nodes):
        for source in indices[indptr[node] : indptr[node + 1]]:
            matrix[node, source] += 1 / (indptr[node + 1] - indptr[node])
    return matrix


def block_matrix(block, nodes, size):
    matrix = np.zeros((size, size))
    sources, destinations = block.edge_index().numpy()
    np.add.at(matrix, (nodes[destinations], nodes[sources]), block.weights[E].numpy())
    return matrix


@pytest.fixture(scope="module")
def simple():
    """60 nodes without multi-edges, so that edges and matrix entries correspond."""
    rng = np.random.default_rng(2)
    lists = [np.sort(rng.choice(60, rng.integers(1, 12), replace=False)) for _ in range(60)]
    return np.cumsum([0, *map(len, lists)]), np.concatenate(lists).astype(np.int32)


def test_ladies_weights_are_those_of_the_paper(simple):
    adjacency = dense(*simple, 60)
    seeds = np.array([3, 14, 15, 9, 26])
    sample = LadiesSampler([6]).sample(Topology.from_arrays(*simple), seeds, SampleKey(seed=1))
    nodes = sample.input_nodes["_N"].numpy()
    probability = (adjacency[seeds] ** 2).sum(axis=0)
    probability /= probability.sum()
    expected = np.zeros((60, 60))
    columns = nodes[probability[nodes] > 0]
    expected[np.ix_(seeds, columns)] = adjacency[np.ix_(seeds, columns)] / (6 * probability[columns])
    sums = expected.sum(axis=1, keepdims=True)
    expected = np.divide(expected, sums, out=expected, where=sums > 0)
    assert np.allclose(block_matrix(sample.blocks[0], nodes, 60), expected, atol=1e-6)


def test_ladies_structure(simple):
    sample = LadiesSampler([10, 8], edge_ids=True).sample(
        Topology.from_arrays(*simple), [0, 1, 2, 3], SampleKey(seed=3)
    )
    nodes = sample.input_nodes["_N"].numpy()
    assert nodes[:4].tolist() == [0, 1, 2, 3]
    assert len(set(nodes.tolist())) == len(nodes)
    for block, size in zip(sample.blocks, (10, 8), strict=True):
        assert block.num_src["_N"] <= block.num_dst["_N"] + size
        assert (simple[1][block.edge_ids[E].numpy()] == nodes[block.src[E].numpy()]).all()
        rows = torch.zeros(block.num_dst["_N"]).index_add(0, block.dst(), block.weights[E])
        kept = block.indptr[E].diff() > 0
        assert torch.allclose(rows[kept], torch.ones(int(kept.sum())))


def test_ladies_takes_all_where_few_candidates_are(simple):
    everything = LadiesSampler([1000]).sample(Topology.from_arrays(*simple), [5], SampleKey())
    assert everything.num_edges == simple[0][6] - simple[0][5]


def test_ladies_by_weight():
    """With weights 3 : 1 the shares are 3/4 and 1/4; an edge of weight 0 takes no part."""
    topology = Topology.from_arrays([0, 3, 3, 3, 3], [1, 2, 3], weights=[3.0, 1.0, 0.0])
    counts = np.zeros(4)
    for batch in range(3000):
        counts[LadiesSampler([1], weights=True).sample(topology, [0], SampleKey(batch=batch)).input_nodes["_N"][1]] += 1
    assert counts[3] == 0
    assert abs(counts[1] / 3000 - 0.9) < 0.03  # 9/16 against 1/16


def test_ladies_on_heterographs(heterogeneous):
    num_nodes, graph = heterogeneous
    topology = Topology(num_nodes, {etype: Relation(*arrays) for etype, arrays in graph.items()})
    sample = LadiesSampler([7, 5]).sample(topology, {"paper": torch.arange(10)}, SampleKey())
    assert sample.blocks[1].num_src["author"] <= 5
    assert sample.blocks[1].num_src["paper"] <= 15
    assert sample.blocks[0].num_src["author"] <= sample.blocks[0].num_dst["author"] + 7


@pytest.mark.parametrize("sizes", [[], [0], [2.5]])
def test_ladies_sizes(sizes):
    with pytest.raises(ConfigError, match="sizes must be positive"):
        LadiesSampler(sizes)


def test_ladies_and_shadow_without_edges_or_seeds():
    empty = Topology.from_arrays([0, 0, 0], np.empty(0, np.int32))
    for sampler in (LadiesSampler([3, 3]), ShadowSampler([3, 3])):
        for seeds in ([], [1, 0]):
            sample = sampler.sample(empty, seeds, SampleKey())
            assert sample.input_nodes["_N"].tolist() == seeds
            assert sample.num_edges == 0


@pytest.mark.parametrize("threads", [2, 7])
@pytest.mark.parametrize("sampler", [LadiesSampler([40, 30], edge_ids=True), ShadowSampler([5, 5], edge_ids=True)])
def test_threads_do_not_change_the_sample(homogeneous, sampler, threads):
    topology = Topology.from_arrays(*homogeneous)
    alone = sampler.sample(topology, np.arange(30), SampleKey())
    shared = sampler.sample(topology, np.arange(30), SampleKey(), ThreadPool(threads))
    assert torch.equal(alone.input_nodes["_N"], shared.input_nodes["_N"])
    for a, b in zip(alone.blocks, shared.blocks, strict=True):
        assert torch.equal(a.edge_ids[E], b.edge_ids[E])
        assert torch.equal(a.edge_index(), b.edge_index())
        assert (a.weights is None) == (b.weights is None)
        assert a.weights is None or torch.equal(a.weights[E], b.weights[E])


def test_shadow_is_the_induced_subgraph(homogeneous):
    indptr, indices = homogeneous
    topology = Topology.from_arrays(indptr, indices)
    sample = ShadowSampler([3, 2], edge_ids=True).sample(topology, [7, 8, 8, 9], SampleKey(seed=5))
    walk = NeighborSampler([3, 2]).sample(topology, [7, 8, 8, 9], SampleKey(seed=5))
    nodes = sample.input_nodes["_N"]
    assert torch.equal(nodes, walk.input_nodes["_N"])
    assert sample.seeds["_N"].tolist() == [7, 8, 9]
    (block,) = sample.blocks
    assert block.num_src["_N"] == block.num_dst["_N"] == len(nodes)
    inside = set(nodes.tolist())
    expected = [
        position
        for node in nodes.tolist()
        for position in range(indptr[node], indptr[node + 1])
        if int(indices[position]) in inside
    ]
    assert block.edge_ids[E].tolist() == expected
    assert (indices[expected] == nodes[block.src[E]].numpy()).all()
