"""Sampling by time through gids.Loader: seeds carry their times through order, ranks and resume; trees share fetched rows."""

import numpy as np
import pytest
import torch

import gids
from gids.sampling import SampleKey, Topology

from .conftest import same

NODES, EDGES = 300, 2400


@pytest.fixture(scope="module")
def timed(tmp_path_factory):
    rng = np.random.default_rng(4)
    degrees = np.bincount(rng.integers(0, NODES, EDGES), minlength=NODES)
    with gids.DatasetWriter(tmp_path_factory.mktemp("timed") / "graph") as writer:
        writer.add_nodes(NODES)
        writer.add_csc(np.concatenate([[0], np.cumsum(degrees)]), rng.integers(0, NODES, EDGES))
        writer.add_features(torch.arange(NODES * 3, dtype=torch.float32).view(NODES, 3))
        writer.add_features(torch.from_numpy(rng.integers(0, 100, (NODES, 1))), name="born")
        writer.add_edge_features(torch.from_numpy(rng.integers(0, 100, (EDGES, 1))), name="time")
        return writer.finish()


def expected(dataset, sampler, seeds, number):
    topology = Topology.from_dataset(dataset, time_attr=sampler.time_attr)
    return sampler.sample(topology, seeds, SampleKey(0, 0, number))


@pytest.mark.parametrize("memory", [{}, {"topology": "disk"}], ids=["memory", "disk"])
@pytest.mark.parametrize("strategy", ["uniform", "last"])
def test_batches_are_those_of_the_sampler_and_rows_those_of_their_nodes(timed, memory, strategy):
    seeds = gids.TimedSeeds(torch.arange(0, 200), torch.arange(200) % 100)
    sampler = gids.TemporalSampler([4, 3], strategy=strategy, edge_ids=True)
    with gids.Loader(
        timed, seeds, sampler=sampler, batch_size=32, budget="64MiB", memory=gids.MemoryOptions(**memory)
    ) as loader:
        order, batches = loader.order(0), list(loader)
        assert loader.stats().seeds == 200
    assert sorted(torch.cat([batch.seeds for batch in batches]).tolist()) == list(range(200))
    for number, batch in enumerate(batches):
        chosen = order[number].seeds
        assert torch.equal(chosen.times["_N"], chosen.nodes["_N"] % 100), "every seed keeps its time"
        wanted = expected(timed, sampler, chosen, number)
        assert torch.equal(batch.input_nodes, wanted.input_nodes["_N"])
        assert torch.equal(batch.sample.trees["_N"], wanted.trees["_N"])
        assert torch.equal(batch.x[:, 0], batch.input_nodes.float() * 3), "of every tree, although read once"


def test_seeds_without_a_time_are_asked_about_at_that_of_their_node(timed):
    sampler = gids.TemporalSampler([5], by="node", time_attr="born")
    topology = Topology.from_dataset(timed, time_attr="born")
    born = topology.node_times["_N"]
    with gids.Loader(timed, torch.arange(60), sampler=sampler, batch_size=20, budget="64MiB") as loader:
        for batch in loader:
            trees = batch.sample.trees["_N"]
            assert (born[batch.input_nodes] <= born[batch.seeds][trees]).all()
    with pytest.raises(gids.ConfigError, match="seeds must have times for TemporalSampler"):
        gids.Loader(timed, torch.arange(60), sampler=gids.TemporalSampler([5]), budget="64MiB")


def test_edges_as_seeds_keep_their_times_through_resume_and_ranks(timed):
    seeds = gids.EdgeSeeds(torch.arange(90), torch.arange(90, 180), negatives=1, times=torch.arange(90))
    options = {"sampler": gids.TemporalSampler([3]), "batch_size": 16, "budget": "64MiB"}
    with gids.Loader(timed, seeds, **options) as loader:
        whole = list(loader)
        loader.set_epoch(0)
        running = iter(loader)
        first = [next(running)]
        loader.load_state_dict(loader.state_dict())
        assert all(same(a, b) for a, b in zip(whole, first + list(loader), strict=True))
        state = loader.state_dict()
    later = gids.EdgeSeeds(seeds.src, seeds.dst, negatives=1, times=seeds.times + 1)
    with gids.Loader(timed, later, **options) as other, pytest.raises(gids.ConfigError, match="seeds"):
        other.load_state_dict(state)


def test_disjoint_trees_fetch_each_row_once(timed):
    sampler = gids.NeighborSampler([6, 6], disjoint=True)
    with gids.Loader(timed, torch.arange(40), sampler=sampler, batch_size=40, budget="64MiB") as loader:
        (batch,) = loader
        (table,) = loader.stats().tables.values()
    assert len(batch.input_nodes) > len(batch.input_nodes.unique()) == table.requests
    assert torch.equal(batch.x[:, 0], batch.input_nodes.float() * 3)


def test_times_must_be_as_many_as_nodes(timed):
    with pytest.raises(gids.ConfigError, match="times must be as many as nodes"):
        gids.Loader(timed, gids.TimedSeeds(torch.arange(5), torch.arange(4)), sampler=gids.TemporalSampler([2]))
