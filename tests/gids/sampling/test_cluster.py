"""Cluster batches: the nodes of whole parts and every edge between them, against brute force; also through a loader."""

import numpy as np
import pytest
import torch

import gids
from gids import ConfigError, generate
from gids.sampling import ClusterSampler, NeighborSampler, Relation, SampleKey, Topology

NODES, PARTS = 300, 12


def random_graph(nodes, degree, seed):
    rng = np.random.default_rng(seed)
    indptr = np.concatenate([[0], np.cumsum(rng.integers(0, 2 * degree, nodes))])
    return indptr, rng.integers(0, nodes, indptr[-1])


@pytest.fixture
def graph():
    indptr, indices = random_graph(NODES, 8, 1)
    return Topology.from_arrays(indptr, indices), np.random.default_rng(2).integers(0, PARTS, NODES)


def edges_between(topology, nodes):
    (relation,) = topology.relations.values()
    destination = np.repeat(np.arange(NODES), np.diff(relation.indptr))
    kept = np.isin(destination, nodes) & np.isin(relation.indices, nodes)
    return sorted(zip(relation.indices[kept].tolist(), destination[kept].tolist(), np.flatnonzero(kept), strict=True))


def test_parts_give_their_nodes_and_all_edges_between_them(graph):
    topology, parts = graph
    sampler = ClusterSampler(parts, edge_ids=True)
    assert sampler.num_parts == PARTS
    for chosen in ([3], [5, 0, 7], list(range(PARTS))):
        sample = sampler.sample(topology, chosen, SampleKey())
        nodes = sample.input_nodes["_N"].numpy()
        assert nodes.tolist() == [node for part in chosen for node in np.flatnonzero(parts == part)]
        assert torch.equal(sample.seeds["_N"], sample.input_nodes["_N"])
        (block,) = sample.blocks
        ((etype, src),) = block.src.items()
        named = zip(nodes[src], nodes[block.dst(etype)], block.edge_ids[etype].tolist(), strict=True)
        assert sorted(named) == edges_between(topology, nodes)


def test_parts_of_several_node_types():
    cites, writes = ("paper", "cites", "paper"), ("author", "writes", "paper")
    indptr, indices = random_graph(60, 4, 1)
    relations = {cites: Relation(indptr, indices), writes: Relation(indptr, indices % 20)}
    topology = Topology({"paper": 60, "author": 20}, relations)
    parts = {"paper": np.arange(60) % 3, "author": np.arange(20) % 3}
    sample = ClusterSampler(parts).sample(topology, torch.tensor([1]), SampleKey())
    assert sample.input_nodes["paper"].tolist() == list(range(1, 60, 3))
    assert sample.input_nodes["author"].tolist() == list(range(1, 20, 3))
    assert sample.blocks[0].src[writes].max() < len(sample.input_nodes["author"])


def test_what_makes_no_sense_is_refused(graph):
    topology, parts = graph
    with pytest.raises(
        ConfigError, match=r"parts must have one entry for each node = \{'_N': 300\} \(got \{'_N': 299\}"
    ):
        ClusterSampler(parts[1:]).sample(topology, [0], SampleKey())
    with pytest.raises(ConfigError, match=r"seeds must be parts in \[0, 12\) \(got 12 to 12\)"):
        ClusterSampler(parts).sample(topology, [12], SampleKey())
    with pytest.raises(ConfigError, match=r"parts must not be negative \(got -1\)"):
        ClusterSampler([-1, 2])
    with pytest.raises(ConfigError, match="must be numbers of parts"):
        ClusterSampler(parts).sample(topology, gids.EdgeSeeds(torch.tensor([0]), torch.tensor([1])), SampleKey())


def test_an_epoch_of_a_loader_has_every_node_once(tmp_path):
    dataset = generate.rmat(tmp_path / "graph", num_nodes=2000, degree=5, dim=3)
    sampler = ClusterSampler(np.arange(2000) % 40)
    with gids.Loader(dataset, torch.arange(40), sampler=sampler, batch_size=7, budget="64MiB") as loader:
        batches = list(loader)
    assert len(batches) == 6
    nodes = torch.cat([batch.seeds for batch in batches])
    assert sorted(nodes.tolist()) == list(range(2000))
    for batch in batches:
        assert len(batch.x) == len(batch.seeds) == len(batch.y)


def test_any_sampler_serves(graph):
    topology, parts = graph
    for sampler, seeds in ((NeighborSampler([3, 2]), [4, 5]), (ClusterSampler(parts), [1, 2])):
        with sampler.serve(topology, workers=2) as server:
            served = server.client().submit(seeds, SampleKey(batch=3)).result()
        assert torch.equal(
            served.input_nodes["_N"], sampler.sample(topology, seeds, SampleKey(batch=3)).input_nodes["_N"]
        )
