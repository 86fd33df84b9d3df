"""Edges as seeds: pairs, negatives, and edges that must not leak into blocks."""

import numpy as np
import pytest
import torch
from scipy import stats

from gids import ConfigError
from gids.sampling import (
    EdgeSeeds,
    Exclude,
    LadiesSampler,
    NeighborSampler,
    Relation,
    SampleKey,
    ShadowSampler,
    Topology,
)

E = ("_N", "_E", "_N")
WRITES, BY = ("author", "writes", "paper"), ("paper", "by", "author")


@pytest.fixture(scope="module")
def bipartite():
    """Every edge of `writes` has its reverse in `by`."""
    rng = np.random.default_rng(4)
    pairs = np.unique(rng.integers(0, [30, 50], (200, 2)), axis=0)  # (author, paper)

    def compress(dst, src, count):
        order = np.argsort(dst, kind="stable")
        return Relation(np.concatenate([[0], np.cumsum(np.bincount(dst, minlength=count))]), src[order])

    relations = {WRITES: compress(pairs[:, 1], pairs[:, 0], 50), BY: compress(pairs[:, 0], pairs[:, 1], 30)}
    return pairs, Topology({"author": 30, "paper": 50}, relations)


def block_pairs(sample, etype):
    nodes = sample.input_nodes
    found = set()
    for block in sample.blocks:
        src, dst = block.edge_index(etype)
        found |= set(zip(nodes[etype[0]][src].tolist(), nodes[etype[2]][dst].tolist(), strict=True))
    return found


def test_pairs_and_labels(homogeneous):
    topology = Topology.from_arrays(*homogeneous)
    edges = EdgeSeeds(torch.tensor([4, 5, 4]), torch.tensor([6, 4, 6]), negatives=2)
    sample = NeighborSampler([3]).sample(topology, edges, SampleKey(seed=7))
    seeds = sample.seeds["_N"]
    assert seeds[sample.edges.src].tolist() == [4, 5, 4, 4, 4, 5, 5, 4, 4]
    assert seeds[sample.edges.dst][:3].tolist() == [6, 4, 6]
    assert sample.edges.labels.tolist() == [1, 1, 1, 0, 0, 0, 0, 0, 0]
    assert seeds[:3].tolist() == [4, 5, 6]
    assert len(set(seeds.tolist())) == len(seeds) == sample.blocks[-1].num_dst["_N"]


def test_negatives_are_uniform_and_a_function_of_the_key(oracle, bipartite):
    pairs, topology = bipartite
    count, per_edge = len(pairs), 40
    seeds = EdgeSeeds(torch.from_numpy(pairs[:, 0]), torch.from_numpy(pairs[:, 1]), etype=WRITES, negatives=per_edge)
    key = SampleKey(3, 4, 5)
    sample = NeighborSampler([2]).sample(topology, seeds, key)
    drawn = sample.seeds["paper"][sample.edges.dst[count:]].numpy()
    assert stats.chisquare(np.bincount(drawn, minlength=50)).pvalue > 1e-4
    negatives = oracle.key(3, 4, 5, 0, 0, oracle.NEGATIVES)
    expected = [oracle.below(negatives, i, j, 50) for i in range(count) for j in range(per_edge)]
    assert drawn.tolist() == expected


@pytest.mark.parametrize("sampler", [NeighborSampler([-1, -1]), ShadowSampler([-1, -1]), LadiesSampler([100, 100])])
def test_excluded_edges_are_in_no_block(bipartite, sampler):
    pairs, topology = bipartite
    chosen = pairs[::9]
    seeds = {"src": torch.from_numpy(chosen[:, 0]), "dst": torch.from_numpy(chosen[:, 1]), "etype": WRITES}
    forward, backward = set(map(tuple, chosen.tolist())), set(map(tuple, chosen[:, ::-1].tolist()))
    everything = sampler.sample(topology, EdgeSeeds(**seeds), SampleKey())
    assert forward <= block_pairs(everything, WRITES)
    assert backward <= block_pairs(everything, BY)
    no_seeds = sampler.sample(topology, EdgeSeeds(**seeds, exclude=Exclude.SEEDS), SampleKey())
    assert not forward & block_pairs(no_seeds, WRITES)
    assert backward <= block_pairs(no_seeds, BY)
    neither = sampler.sample(
        topology, EdgeSeeds(**seeds, exclude=Exclude.SEEDS_AND_REVERSE, reverse_etype=BY), SampleKey()
    )
    assert not forward & block_pairs(neither, WRITES)
    assert not backward & block_pairs(neither, BY)
    others = set(map(tuple, pairs.tolist())) - forward
    assert block_pairs(neither, WRITES) == block_pairs(everything, WRITES) & others


def test_exclusion_drops_parallel_edges_and_keeps_ids_in_step():
    topology = Topology.from_arrays([0, 4, 4, 5], [1, 2, 1, 2, 0])
    seeds = EdgeSeeds(torch.tensor([1]), torch.tensor([0]), exclude=Exclude.SEEDS_AND_REVERSE)
    block = NeighborSampler([-1], edge_ids=True).sample(topology, seeds, SampleKey()).blocks[0]
    assert block.edge_ids[E].tolist() == [1, 3]
    assert block.indptr[E].tolist() == [0, 0, 2]  # destination 1 is first, and has no edges


class TestBadInput:
    def test_lengths(self):
        with pytest.raises(ConfigError, match="equally long"):
            EdgeSeeds(torch.tensor([1]), torch.tensor([1, 2]))

    def test_negatives(self):
        with pytest.raises(ConfigError, match="negatives must not"):
            EdgeSeeds(torch.tensor([1]), torch.tensor([1]), negatives=-1)

    def test_edge_type(self, bipartite):
        with pytest.raises(ConfigError, match="edge type must be given"):
            NeighborSampler([1]).sample(bipartite[1], EdgeSeeds(torch.tensor([1]), torch.tensor([1])), SampleKey())
        with pytest.raises(ConfigError, match="edge type must be one of"):
            NeighborSampler([1]).sample(bipartite[1], EdgeSeeds(torch.tensor([1]), torch.tensor([1]), E), SampleKey())

    def test_reverse_edge_type(self, bipartite):
        seeds = EdgeSeeds(torch.tensor([1]), torch.tensor([1]), WRITES, exclude=Exclude.SEEDS_AND_REVERSE)
        with pytest.raises(ConfigError, match="reverse_etype must lead from 'paper' to 'author'"):
            NeighborSampler([1]).sample(bipartite[1], seeds, SampleKey())

    def test_no_edges(self, homogeneous):
        seeds = EdgeSeeds(torch.tensor([], dtype=torch.int64), torch.tensor([], dtype=torch.int64), negatives=3)
        sample = NeighborSampler([2]).sample(Topology.from_arrays(*homogeneous), seeds, SampleKey())
        assert len(sample.edges.labels) == 0
        assert len(sample.input_nodes["_N"]) == 0

    def test_node_out_of_range(self, homogeneous):
        with pytest.raises(ConfigError, match="seeds of _N"):
            NeighborSampler([2]).sample(
                Topology.from_arrays(*homogeneous), EdgeSeeds(torch.tensor([1]), torch.tensor([300])), SampleKey()
            )
