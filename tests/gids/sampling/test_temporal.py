"""Temporal and disjoint sampling against brute force: nothing from the future, and a tree of its own for every seed."""

from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gids import ConfigError, DatasetError
from gids.sampling import (
    DiskMemory,
    EdgeSeeds,
    Exclude,
    NeighborSampler,
    Relation,
    SampleKey,
    TemporalSampler,
    TimedSeeds,
    Topology,
    serve,
)
from tests.gids.sampling.test_disk import Stored, write_table

EDGE = ("_N", "_E", "_N")


def graph(seed=3, nodes=60):
    rng = np.random.default_rng(seed)
    indptr = np.concatenate([[0], np.cumsum(rng.integers(0, 12, nodes))])
    edges = int(indptr[-1])
    return indptr, rng.integers(0, nodes, edges), rng.integers(0, 100, edges), rng.integers(0, 100, nodes)


def visible(lists, node, now, by, window):
    """Positions of a node's in-edges that a seed of that time may see."""
    indptr, indices, edge_times, node_times = lists
    positions = range(int(indptr[node]), int(indptr[node + 1]))
    when = {p: int(edge_times[p] if by == "edge" else node_times[indices[p]]) for p in positions}
    return {p: t for p, t in when.items() if t <= now and (window is None or now - t < window)}


def walk(sample, lists, seeds, times, fanouts, by, window, strategy):
    """Check every block, destination by destination."""
    nodes, trees = sample.input_nodes["_N"].tolist(), sample.trees["_N"].tolist()
    assert len(set(zip(nodes, trees, strict=True))) == len(nodes)
    assert (nodes[: len(seeds)], trees[: len(seeds)]) == (list(seeds), list(range(len(seeds))))
    for block, fanout in zip(sample.blocks, fanouts, strict=True):
        begins, src, ids = (part[EDGE].tolist() for part in (block.indptr, block.src, block.edge_ids))
        for i in range(block.num_dst["_N"]):
            seen = visible(lists, nodes[i], times[trees[i]], by, window)
            chosen = ids[begins[i] : begins[i + 1]]
            assert len(chosen) == len(set(chosen)) == (len(seen) if fanout < 0 else min(fanout, len(seen)))
            assert set(chosen) <= set(seen)
            if strategy == "last":
                assert chosen == sorted(seen, key=lambda p: (seen[p], p), reverse=True)[: len(chosen)]
            for position, source in zip(chosen, src[begins[i] : begins[i + 1]], strict=True):
                assert (nodes[source], trees[source]) == (int(lists[1][position]), trees[i])


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 1000),
    by=st.sampled_from(["edge", "node"]),
    strategy=st.sampled_from(["uniform", "last"]),
    window=st.none() | st.integers(1, 60),
    fanouts=st.lists(st.sampled_from([-1, 0, 1, 3]), min_size=1, max_size=3),
)
def test_no_neighbour_from_the_future(seed, by, strategy, window, fanouts):
    lists = graph(seed)
    topology = Topology.from_arrays(*lists[:2], edge_times=lists[2], node_times=lists[3])
    rng = np.random.default_rng(seed)
    seeds, times = rng.integers(0, 60, 7).tolist(), rng.integers(0, 110, 7).tolist()
    sampler = TemporalSampler(fanouts, by=by, strategy=strategy, window=window, edge_ids=True)
    sample = sampler.sample(topology, TimedSeeds(seeds, times), SampleKey(seed))
    walk(sample, lists, seeds, times, fanouts, by, window, strategy)


def test_uniform_means_uniform():
    """Five of eight edges are there by time 50; two of them are chosen, each as often as the others."""
    when = np.array([10, 60, 20, 70, 30, 40, 50, 80])
    topology = Topology.from_arrays([0, 8] + [8] * 8, np.arange(1, 9), edge_times=when)
    counts = np.zeros(8)
    sampler = TemporalSampler([2], edge_ids=True)
    for batch in range(3000):
        ids = sampler.sample(topology, TimedSeeds([0], [50]), SampleKey(1, 0, batch)).blocks[0].edge_ids[EDGE]
        counts[ids.numpy()] += 1
    assert counts[[1, 3, 7]].tolist() == [0, 0, 0]
    assert (abs(counts[[0, 2, 4, 5, 6]] - 1200) < 5 * np.sqrt(3000 * 0.4 * 0.6)).all()


def test_disjoint_trees_are_what_each_seed_sees_alone(homogeneous):
    topology = Topology.from_arrays(*homogeneous)
    sampler = NeighborSampler([-1, -1], edge_ids=True, disjoint=True)
    sample = sampler.sample(topology, [5, 9, 5], SampleKey())
    assert sample.seeds["_N"].tolist() == [5, 9, 5]
    trees, nodes = sample.trees["_N"], sample.input_nodes["_N"]
    for number, seed in enumerate([5, 9, 5]):
        alone = NeighborSampler([-1, -1]).sample(topology, [seed], SampleKey())
        assert sorted(nodes[trees == number].tolist()) == sorted(alone.input_nodes["_N"].tolist())
    drawn = NeighborSampler([4], disjoint=True, replace=True).sample(topology, [5, 5], SampleKey(2))
    assert drawn.blocks[0].indptr[EDGE].diff().tolist() in ([4, 4], [0, 0])


def test_several_types_and_excluded_edges():
    first = Relation(np.array([0, 3]), np.array([0, 1, 2]), times=np.array([1, 2, 3]))
    second = Relation(np.array([0, 1, 1, 2]), np.array([0, 0]), times=np.array([5, 1]))
    topology = Topology({"a": 3, "b": 1}, {("a", "x", "b"): first, ("b", "y", "a"): second})
    seeds = TimedSeeds({"b": torch.tensor([0, 0])}, {"b": torch.tensor([2, 9])})
    sample = TemporalSampler([-1, -1]).sample(topology, seeds, SampleKey())
    assert sample.trees["a"].tolist() == [0, 0, 1, 1, 1]
    assert sample.input_nodes["a"].tolist() == [0, 1, 0, 1, 2]
    pairs = EdgeSeeds(torch.tensor([1]), torch.tensor([0]), ("a", "x", "b"), 0, Exclude.SEEDS, times=torch.tensor([9]))
    left = TemporalSampler([-1]).sample(topology, pairs, SampleKey())
    assert left.blocks[0].src[("a", "x", "b")].tolist() == [1, 2]  # rows of nodes 0 and 2 in the tree of b
    assert left.input_nodes["a"].tolist() == [1, 0, 2]


def test_negatives_existed_at_the_time_of_their_pair():
    node_times = np.array([50, 10, 40, 10, 90])
    topology = Topology.from_arrays([0, 1, 2, 2, 2, 2], [1, 0], edge_times=[1, 1], node_times=node_times)
    seeds = EdgeSeeds(torch.tensor([1] * 200), torch.tensor([0] * 200), negatives=3, times=torch.arange(200) % 60 + 10)
    sample = TemporalSampler([1]).sample(topology, seeds, SampleKey(4))
    drawn = sample.input_nodes["_N"][sample.edges.dst[200:]].numpy()
    assert (node_times[drawn] <= np.repeat(np.arange(200) % 60 + 10, 3)).all()
    assert set(drawn.tolist()) == {0, 1, 2, 3}
    early = EdgeSeeds(torch.tensor([1]), torch.tensor([0]), negatives=1, times=torch.tensor([5]))
    with pytest.raises(ConfigError, match=r"exists at the time of every edge \(none does at 5\)"):
        TemporalSampler([1]).sample(topology, early, SampleKey())


@dataclass
class Timed(Stored):
    """A stored graph with tables of times."""

    edge_tables: dict = field(default_factory=dict)
    node_tables: dict = field(default_factory=dict)

    def feature_names(self, ntype=None):
        return list(self.node_tables)

    def feature_table(self, ntype=None, name="feat"):
        return self.node_tables[name]

    def edge_feature_names(self, etype=None):
        return list(self.edge_tables)

    def edge_feature_table(self, etype=None, name="feat"):
        return self.edge_tables[name]


@pytest.mark.parametrize("with_ids", [False, True])
def test_times_of_a_dataset_from_memory_and_from_disk(tmp_path, with_ids):
    indptr, indices, edge_times, node_times = graph(8)
    ids = np.random.default_rng(1).permutation(len(indices)) if with_ids else None
    stored_times = edge_times
    if with_ids:  # tables of edges are by id
        stored_times = np.empty_like(edge_times)
        stored_times[ids] = edge_times
    tables = {
        "indices": write_table(tmp_path, "indices", indices),
        "ids": write_table(tmp_path, "ids", ids) if with_ids else None,
        "weights": None,
    }
    dataset = Timed(
        {"_N": 60},
        {EDGE: (indptr, None)},
        {EDGE: tables},
        tmp_path,
        {"time": write_table(tmp_path, "edge_time", stored_times)},
        {"time": write_table(tmp_path, "node_time", node_times)},
    )
    seeds, key = TimedSeeds(list(range(0, 60, 5)), [50] * 12), SampleKey(6)
    expected = Topology.from_arrays(indptr, indices, edge_times=edge_times, node_times=node_times, edge_ids=ids)
    memory = Topology.from_dataset(dataset, time_attr="time")
    with Topology.from_dataset(dataset, time_attr="time", on_disk=True, budget=DiskMemory(hot_bytes=5000)) as disk:
        for by in ("edge", "node"):
            sampler = TemporalSampler([4, 3], by=by, edge_ids=True)
            wanted = sampler.sample(expected, seeds, key)
            with serve(sampler, disk) as server:
                for got in (sampler.sample(memory, seeds, key), server.sample(seeds, key)):
                    assert torch.equal(got.input_nodes["_N"], wanted.input_nodes["_N"])
                    assert torch.equal(got.trees["_N"], wanted.trees["_N"])
                    assert all(
                        torch.equal(a.edge_ids[EDGE], b.edge_ids[EDGE])
                        for a, b in zip(got.blocks, wanted.blocks, strict=True)
                    )
    with pytest.raises(ConfigError, match=r"time_attr must name a table of edges or of nodes \(got 'when'\)"):
        Topology.from_dataset(dataset, time_attr="when")


def test_what_is_not_supported_says_so(homogeneous):
    topology = Topology.from_arrays(*homogeneous)
    with pytest.raises(ConfigError, match=r"by edge needs times of every edge type \(missing"):
        TemporalSampler([2]).sample(topology, TimedSeeds([1], [1]), SampleKey())
    with pytest.raises(ConfigError, match="times of seeds need a TemporalSampler, not NeighborSampler"):
        NeighborSampler([2]).sample(topology, TimedSeeds([1], [1]), SampleKey())
    timed = Topology.from_arrays([0, 1], [0], edge_times=[3])
    with pytest.raises(ConfigError, match=r"seeds must have times for TemporalSampler \(got none\)"):
        TemporalSampler([2]).sample(timed, [0], SampleKey())
    with pytest.raises(ConfigError, match="times must be as many as nodes"):
        TemporalSampler([2]).sample(timed, TimedSeeds([0], [1, 2]), SampleKey())
    with pytest.raises(ConfigError, match="not supported"):
        NeighborSampler([2], weights=True, disjoint=True)
    with pytest.raises(ConfigError, match=r"strategy must be 'uniform' or 'last' \(got 'first'\)"):
        TemporalSampler([2], strategy="first")
    with pytest.raises(ConfigError, match=r"window must be positive \(got 0\)"):
        TemporalSampler([2], window=0)
    with pytest.raises(DatasetError, match=r"times of _E must have 1 entries \(got 2\)"):
        Topology.from_arrays([0, 1], [0], edge_times=[3, 4])
