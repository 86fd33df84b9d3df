"""Training through gids equals training from memory: the same losses, to the last bit."""

from itertools import pairwise

import pytest
import torch
from torch import nn

from gids.sampling import NeighborSampler, SampleKey, Topology

from .conftest import DIM, make


class Sage(nn.Module):
    def __init__(self, dim, hidden, classes, layers):
        super().__init__()
        sizes = [dim, *[hidden] * (layers - 1), classes]
        self.own = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(sizes))
        self.neighbours = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(sizes))

    def forward(self, blocks, x):
        for layer, block in enumerate(blocks):
            (num_dst,) = block.num_dst.values()
            src, dst = block.edge_index()
            mean = torch.zeros(num_dst, x.shape[1]).index_add_(0, dst, x[src])
            mean = mean / torch.bincount(dst, minlength=num_dst).clamp(min=1)[:, None]
            x = self.own[layer](x[:num_dst]) + self.neighbours[layer](mean)
            if layer + 1 < len(blocks):
                x = x.relu()
        return x


def losses(batches):
    torch.manual_seed(0)
    model = Sage(DIM, 16, 5, 2)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    values = []
    for blocks, x, y in batches:
        loss = nn.functional.cross_entropy(model(blocks, x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        values.append(loss.item())
    return values


@pytest.fixture
def one_thread():
    """Steps this small take longer on two threads than on one."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("one_thread")
def test_identical_losses(graph, memory):
    topology, sampler = Topology.from_dataset(graph), NeighborSampler([4, 4])

    def from_memory():
        with make(graph) as loader:
            for epoch in range(2):
                order = loader.order(epoch)
                for index in range(len(order)):
                    sample = sampler.sample(topology, order[index].seeds, SampleKey(0, epoch, index))
                    (inputs,), (seeds,) = sample.input_nodes.values(), sample.seeds.values()
                    yield sample.blocks, memory["feat"][inputs], memory["labels"][seeds]

    def through_gids():
        with make(graph, cache="30KiB", groups="300KiB", threads=3) as loader:
            for _ in range(2):
                for batch in loader:
                    yield batch.blocks, batch.x, batch.y

    expected, got = losses(from_memory()), losses(through_gids())
    assert len(expected) == 32
    assert got == expected
