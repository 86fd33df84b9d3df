"""Times of nodes and of edges come along with a graph, and a sampler by time finds them."""

import pytest
import torch

import gids
from gids.sampling import SampleKey, TemporalSampler, TimedSeeds, Topology

pyg = pytest.importorskip("torch_geometric.data")


@pytest.mark.parametrize("name", ["edge_time", "time"])
def test_times_of_edges(tmp_path, name):
    generator = torch.Generator().manual_seed(1)
    edge_index = torch.randint(0, 50, (2, 400), generator=generator)
    times = torch.randint(0, 100, (400,), generator=generator)
    data = pyg.Data(x=torch.zeros(50, 2), edge_index=edge_index, **{name: times})
    dataset = gids.convert(data, tmp_path / "graph")
    topology = Topology.from_dataset(dataset, time_attr="time")
    sampler = TemporalSampler([-1], edge_ids=True)
    sample = sampler.sample(topology, TimedSeeds(torch.arange(50), torch.full((50,), 40)), SampleKey())
    (ids,) = sample.blocks[0].edge_ids.values()
    assert sorted(ids.tolist()) == (times <= 40).nonzero().flatten().tolist()


def test_times_of_nodes(tmp_path):
    data = pyg.HeteroData()
    data["paper"].x, data["paper"].time = torch.zeros(6, 2), torch.tensor([5, 1, 9, 2, 7, 3])
    data["paper", "cites", "paper"].edge_index = torch.tensor([[1, 2, 3, 4, 5], [0, 0, 0, 0, 0]])
    topology = Topology.from_dataset(gids.convert(data, tmp_path / "graph"), time_attr="time")
    sample = TemporalSampler([-1], by="node").sample(topology, torch.tensor([0]), SampleKey())
    assert sorted(sample.input_nodes["paper"].tolist()) == [0, 1, 3, 5]  # what existed at its own time, 5
