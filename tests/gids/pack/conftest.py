"""Small graphs to pack, and a comparison of packed batches with those that a loader makes online."""

import pytest
import torch

import gids
from gids.runtime.batch import map_tensors

NODES, DIM = 1500, 20
WRITES, CITES = ("author", "writes", "paper"), ("paper", "cites", "paper")


@pytest.fixture(scope="session")
def graph(tmp_path_factory):
    """A graph with skewed degrees; rows of 80 bytes straddle pages and sectors."""
    path = tmp_path_factory.mktemp("pack") / "graph"
    generator = torch.Generator().manual_seed(5)
    degree = torch.randint(0, 12, (NODES,), generator=generator)
    indptr = torch.cat([torch.zeros(1, dtype=torch.int64), degree.cumsum(0)])
    indices = (torch.rand(int(indptr[-1]), generator=generator) ** 3 * NODES).long()
    with gids.DatasetWriter(path) as writer:
        writer.add_nodes(NODES)
        writer.add_features(torch.randn(NODES, DIM, generator=generator))
        writer.add_features(torch.arange(NODES).reshape(-1, 1), name="year")
        writer.add_csc(indptr, indices)
        writer.add_edge_features(torch.randn(len(indices), 6, generator=generator).half())
        writer.add_labels(torch.randint(0, 5, (NODES,), generator=generator))
        writer.add_split("train", torch.randperm(NODES, generator=generator)[:400])
    return gids.open(path)


@pytest.fixture(scope="session")
def papers(tmp_path_factory):
    """A graph of three node types, one without features."""
    path = tmp_path_factory.mktemp("pack") / "papers"
    generator = torch.Generator().manual_seed(3)

    def csc(destinations, sources, degree):
        indptr = torch.arange(destinations + 1) * degree
        return indptr, torch.randint(0, sources, (destinations * degree,), generator=generator)

    with gids.DatasetWriter(path) as writer:
        writer.add_nodes(500, "paper")
        writer.add_nodes(300, "author")
        writer.add_nodes(7, "venue")
        writer.add_features(torch.randn(500, 9, generator=generator).half(), "paper")
        writer.add_features(torch.randn(300, 33, generator=generator), "author")
        writer.add_csc(*csc(500, 300, 3), WRITES)
        writer.add_csc(*csc(500, 500, 4), CITES)
        writer.add_labels(torch.randint(0, 4, (500,), generator=generator), "paper")
        writer.add_split("train", torch.arange(0, 500, 3), "paper")
    return gids.open(path)


def tensors(batch):
    """Every tensor of a batch, in order, with its dtype."""
    found = []
    map_tensors(batch, lambda tensor: found.append(tensor) or tensor)
    return found


def equal(one, two):
    """Whether two batches are the same to the last bit, whatever they consist of."""
    a, b = tensors(one), tensors(two)
    same = len(a) == len(b) and all(x.dtype == y.dtype and torch.equal(x, y) for x, y in zip(a, b, strict=True))
    return same and (one.epoch, one.index, one.padding) == (two.epoch, two.index, two.padding)
