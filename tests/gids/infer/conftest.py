"""Small graphs, homogeneous and by type, with everything that a layer can ask for, and whole layers in memory."""

from dataclasses import replace

import pytest
import torch

import gids
from gids.dataset.rows import as_tensor, read_rows
from gids.infer import LayerBlock
from gids.sampling import NeighborSampler, SampleKey, Topology

NODES, DIM, EDGE_DIM = 3000, 20, 6
WRITES, CITES, HAS = ("author", "writes", "paper"), ("paper", "cites", "paper"), ("paper", "has", "author")


def random_csc(generator, destinations, sources, most=12):
    degree = torch.randint(0, most, (destinations,), generator=generator)
    indptr = torch.cat([torch.zeros(1, dtype=torch.int64), degree.cumsum(0)])
    popular = torch.rand(int(indptr[-1]), generator=generator) ** 3
    return indptr, (popular * sources).long()


@pytest.fixture(scope="session")
def graph(tmp_path_factory):
    """Dim 20 float32 rows straddle sectors; edges have weights and features; classes can be told from the features."""
    generator = torch.Generator().manual_seed(1)
    indptr, indices = random_csc(generator, NODES, NODES)
    labels = torch.randint(0, 5, (NODES,), generator=generator)
    x = torch.randn(NODES, DIM, generator=generator)
    with gids.DatasetWriter(tmp_path_factory.mktemp("graph") / "small") as writer:
        writer.add_nodes(NODES)
        writer.add_features(x)
        writer.add_features(x.half(), name="half")
        writer.add_csc(indptr, indices, weights=torch.rand(len(indices), generator=generator))
        writer.add_edge_features(torch.randn(len(indices), EDGE_DIM, generator=generator))
        writer.add_labels(labels)
        writer.add_split("test", torch.randperm(NODES, generator=generator)[:700])
    return gids.open(writer.path)


@pytest.fixture(scope="session")
def typed(tmp_path_factory):
    """Papers and authors; edges with features, and weights of every type."""
    generator = torch.Generator().manual_seed(2)
    counts = {"paper": 900, "author": 400}
    with gids.DatasetWriter(tmp_path_factory.mktemp("graph") / "typed") as writer:
        for (ntype, count), dim in zip(counts.items(), (12, 20), strict=True):
            writer.add_nodes(count, ntype)
            writer.add_features(torch.randn(count, dim, generator=generator), ntype)
        for etype in (WRITES, CITES, HAS):
            indptr, indices = random_csc(generator, counts[etype[2]], counts[etype[0]], 7)
            writer.add_csc(indptr, indices, etype, weights=torch.rand(len(indices), generator=generator))
            writer.add_edge_features(torch.randn(len(indices), EDGE_DIM, generator=generator), etype)
    return gids.open(writer.path)


def whole(table):
    """A table as a tensor."""
    return as_tensor(table, read_rows(table))


def result(dataset, ntype=None, name="embedding"):
    """What inference wrote."""
    return whole(dataset.feature_table(ntype, name))


def whole_block(dataset, fanout=-1, hop=0, seed=0):
    """All destinations of a graph at once, as one block whose sources are all nodes by id; every edge as it is stored."""
    indptr, src, ids, weights, features = {}, {}, {}, {}, {}
    counts = {ntype: dataset.num_nodes(ntype) for ntype in dataset.node_types}
    topology = Topology.from_dataset(dataset)
    sampler = NeighborSampler([fanout], edge_ids=True, first_hop=hop)
    seeds = {ntype: torch.arange(count) for ntype, count in counts.items()}
    sample = sampler.sample(topology, seeds, SampleKey(seed))
    found = sample.blocks[0]
    for etype in dataset.edge_types:
        indptr[etype], src[etype], ids[etype] = found.indptr[etype], found.src[etype], found.edge_ids[etype]
        if dataset.edge_weight_table(etype) is not None:
            weights[etype] = whole(dataset.edge_weight_table(etype))[ids[etype]]
        if dataset.edge_feature_names(etype):
            features[etype] = whole(dataset.edge_feature_table(etype))[ids[etype]]
    degrees = {e: torch.bincount(whole(dataset.indices_table(e)).long(), minlength=counts[e[0]]) for e in indptr}
    return LayerBlock(counts, counts, indptr, src, ids, weights or None, seeds, degrees, features or None)


def in_memory(layers, dataset, fanouts=None, seed=0, features="feat", weights=False, edges=False):
    """Every layer over the whole graph, the plain way; a layer is a function of (block, rows)."""
    x = {ntype: whole(dataset.feature_table(ntype, features)).float() for ntype in dataset.node_types}
    homogeneous = len(x) == 1
    x = next(iter(x.values())) if homogeneous else x
    with torch.inference_mode():
        for number, layer in enumerate(layers):
            fanout = -1 if fanouts is None else fanouts[number]
            block = whole_block(dataset, fanout, len(layers) - 1 - number, seed)
            block = block if weights else replace(block, weights=None)
            x = layer(block if edges else replace(block, edge_features=None), x)
    return x


@pytest.fixture
def seeded():
    torch.manual_seed(3)
