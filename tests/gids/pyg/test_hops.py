"""Hop-wise sampling: literal graphs, and what every neighbourhood must satisfy."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from gids._native import ThreadPool
from gids.dataset import Dataset
from gids.errors import ConfigError
from gids.pyg.hops import HopSampler, Neighborhood
from gids.sampling import NeighborSampler, SampleKey, Topology

NODE, EDGE = "_N", ("_N", "_E", "_N")


def chain() -> Topology:
    """0 <- 1 <- 2 <- 3, and 0 <- 2."""
    return Topology.from_arrays(indptr=[0, 2, 3, 4, 4], indices=np.array([1, 2, 2, 3]))


def test_two_hops_of_a_chain() -> None:
    found = HopSampler([-1, -1]).sample(chain(), {NODE: torch.tensor([0])}, SampleKey())
    assert found.node[NODE].tolist() == [0, 1, 2, 3]
    assert found.num_sampled_nodes == {NODE: [1, 2, 1]}
    assert found.num_sampled_edges == {EDGE: [2, 2]}
    edges = list(zip(found.row[EDGE].tolist(), found.col[EDGE].tolist(), found.edge[EDGE].tolist(), strict=True))
    assert edges == [(1, 0, 0), (2, 0, 1), (2, 1, 2), (3, 2, 3)]


def test_a_node_is_expanded_once() -> None:
    topology = Topology.from_arrays(indptr=[0, 1, 2], indices=np.array([1, 0]))  # 0 <-> 1
    found = HopSampler([-1, -1, -1]).sample(topology, {NODE: torch.tensor([0])}, SampleKey())
    assert found.num_sampled_nodes == {NODE: [1, 1, 0, 0]}
    assert found.num_sampled_edges == {EDGE: [1, 1, 0]}


def test_seeds_keep_their_order() -> None:
    found = HopSampler([0]).sample(chain(), {NODE: torch.tensor([3, 1, 2])}, SampleKey())
    assert found.node[NODE].tolist() == [3, 1, 2]


def test_seeds_must_be_distinct() -> None:
    with pytest.raises(ConfigError, match="distinct"):
        HopSampler([1]).sample(chain(), {NODE: torch.tensor([1, 1])}, SampleKey())


def test_hops_must_agree() -> None:
    with pytest.raises(ConfigError, match="as many hops"):
        HopSampler({("a", "b", "c"): [1], ("a", "d", "c"): [1, 2]})


def check(dataset: Dataset, found: Neighborhood, fanouts: list[int]) -> None:
    topology = Topology.from_dataset(dataset)
    for ntype, ids in found.node.items():
        assert len(torch.unique(ids)) == len(ids) == sum(found.num_sampled_nodes[ntype])
    for etype, row in found.row.items():
        source, _, destination = etype
        relation = topology.relations[etype]
        position = found.edge[etype].numpy()
        assert not callable(relation.indices)
        assert torch.equal(found.node[source][row], torch.from_numpy(relation.indices[position]).long())
        owner = np.searchsorted(relation.indptr, position, side="right") - 1
        assert torch.equal(found.node[destination][found.col[etype]], torch.from_numpy(owner))
        assert len(np.unique(position)) == len(position)
        begin_edge = begin_node = 0
        for hop, fanout in enumerate(fanouts):
            end_edge = begin_edge + found.num_sampled_edges[etype][hop]
            end_node = begin_node + found.num_sampled_nodes[destination][hop]
            col = found.col[etype][begin_edge:end_edge]
            # Edges of a hop end in the nodes that the hop before it found, each taking as many as it may.
            assert bool(((col >= begin_node) & (col < end_node)).all())
            ids = found.node[destination][begin_node:end_node].numpy()
            expected = np.minimum(np.diff(relation.indptr)[ids], fanout)
            assert torch.bincount(col - begin_node, minlength=len(ids)).tolist() == expected.tolist()
            begin_edge, begin_node = end_edge, end_node


@pytest.mark.parametrize("fanouts", [[3], [4, 2], [2, 3, 2]])
def test_every_neighbourhood_is_one(homogeneous: Dataset, heterogeneous: Dataset, fanouts: list[int]) -> None:
    for batch in range(3):
        for dataset, ntype in ((homogeneous, NODE), (heterogeneous, "paper")):
            seeds = dataset.split("train", ntype)[batch * 20 : batch * 20 + 20]
            topology = Topology.from_dataset(dataset)
            found = HopSampler(fanouts).sample(topology, {ntype: seeds}, SampleKey(7, 0, batch))
            assert torch.equal(found.node[ntype][: len(seeds)], seeds)
            check(dataset, found, fanouts)


def test_the_key_decides_and_threads_do_not(heterogeneous: Dataset) -> None:
    topology = Topology.from_dataset(heterogeneous)
    seeds = {"paper": torch.arange(50), "author": torch.arange(10)}

    def edges(key: SampleKey, pool: ThreadPool | None) -> list[list[int]]:
        found = HopSampler([3, 3]).sample(topology, seeds, key, pool)
        return [ids.tolist() for ids in found.edge.values()]

    assert edges(SampleKey(1, 2, 3), None) == edges(SampleKey(1, 2, 3), ThreadPool(3, "test"))
    assert edges(SampleKey(1, 2, 3), None) != edges(SampleKey(1, 2, 4), None)


def test_a_hop_expands_the_places_it_is_given() -> None:
    nodes, places = {NODE: torch.tensor([3, 0, 2])}, {NODE: torch.tensor([2, 1])}
    hop = NeighborSampler([-1]).expand(chain(), nodes, places, SampleKey())
    (block,) = hop.blocks
    assert hop.input_nodes[NODE].tolist() == [3, 0, 2, 1]
    assert block.indptr[EDGE].tolist() == [0, 1, 3]  # of node 2, then of node 0
    assert block.src[EDGE].tolist() == [0, 3, 2]
    assert block.edge_ids is not None
    assert block.edge_ids[EDGE].tolist() == [3, 0, 1]


@pytest.mark.parametrize(
    ("nodes", "places", "message"),
    [
        ([1, 1], [0], "distinct"),
        ([1, 4], [0], r"in \[0, 4\)"),
        ([1], [1], r"places of _N must be in \[0, 1\) \(got 1\)"),
    ],
)
def test_a_hop_refuses(nodes: list[int], places: list[int], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        NeighborSampler([1]).expand(chain(), {NODE: torch.tensor(nodes)}, {NODE: torch.tensor(places)}, SampleKey())
