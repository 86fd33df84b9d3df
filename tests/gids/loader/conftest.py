"""A small graph with skewed degrees, its tables as tensors, a loader over it, and batches compared to the last bit."""

import pytest
import torch

import gids
from gids.dataset.rows import as_tensor, read_rows
from tests.loading import load

NODES, DIM = 3000, 20


@pytest.fixture(scope="session")
def graph(tmp_path_factory):
    """A small graph with skewed degrees; dim 20 float32 rows straddle sectors."""
    path = tmp_path_factory.mktemp("graph") / "small"
    generator = torch.Generator().manual_seed(1)
    degree = torch.randint(0, 12, (NODES,), generator=generator)
    indptr = torch.cat([torch.zeros(1, dtype=torch.int64), degree.cumsum(0)])
    popular = torch.rand(int(indptr[-1]), generator=generator) ** 3
    indices = (popular * NODES).long()
    with gids.DatasetWriter(path) as writer:
        writer.add_nodes(NODES)
        writer.add_features(torch.randn(NODES, DIM, generator=generator))
        writer.add_features(torch.arange(NODES).reshape(-1, 1), name="year")
        writer.add_csc(indptr, indices)
        writer.add_edge_features(torch.randn(len(indices), 6, generator=generator).half())
        writer.add_labels(torch.randint(0, 5, (NODES,), generator=generator))
        writer.add_split("train", torch.randperm(NODES, generator=generator)[:1000])
        writer.add_split("val", torch.arange(200))
    dataset = gids.open(path)
    dataset.indptr()  # stays mapped, and its file open, as long as the dataset: not something that a loader leaves
    return dataset


@pytest.fixture(scope="session")
def memory(graph):
    """The tables of ``graph`` as tensors."""
    edges = graph.edge_types[0]
    return {
        "feat": whole(graph.feature_table(None, "feat")),
        "year": whole(graph.feature_table(None, "year")).reshape(-1, 1),
        "edge": whole(graph.edge_feature_table(edges, "feat")),
        "labels": graph.labels(),
    }


def whole(table):
    return as_tensor(table, read_rows(table))


def make(graph, **options):
    """A loader over the training split of ``graph`` unless told otherwise."""
    return load(graph, **({"seeds": "train", "fanouts": [4, 4], "batch_size": 64, "budget": "64MiB"} | options))


def same(a, b):
    """Whether two batches are equal to the last bit."""
    assert len(a.blocks) == len(b.blocks)
    for one, two in zip(a.blocks, b.blocks, strict=True):
        assert one.num_src == two.num_src
        assert all(torch.equal(one.indptr[e], two.indptr[e]) and torch.equal(one.src[e], two.src[e]) for e in one.src)
    return (
        torch.equal(a.seeds, b.seeds)
        and torch.equal(a.input_nodes, b.input_nodes)
        and torch.equal(a.x, b.x)
        and torch.equal(a.y, b.y)
        and (a.index, a.epoch) == (b.index, b.epoch)
    )
