"""A graph of several node types: dictionaries by type, tables of different dims and dtypes under one budget."""

import pytest
import torch

import gids
from gids.errors import ConfigError
from gids.runtime.batch import tensor_bytes
from tests.loading import load

from .conftest import whole

pytestmark = pytest.mark.usefixtures("nothing_left")
WRITES, CITES = ("author", "writes", "paper"), ("paper", "cites", "paper")


@pytest.fixture(scope="module")
def papers(tmp_path_factory):
    path = tmp_path_factory.mktemp("papers") / "dataset"
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
    dataset = gids.open(path)
    for etype in dataset.edge_types:
        dataset.indptr(etype)
    return dataset


@pytest.mark.parametrize("dtype", [None, torch.float32])
def test_batches_by_type(papers, dtype):
    tables = {ntype: whole(papers.feature_table(ntype)) for ntype in ("paper", "author")}
    labels = papers.labels("paper")
    seen = []
    with load(papers, "train", fanouts=[2, 2], batch_size=20, budget="16MiB", dtype=dtype) as loader:
        for batch in loader:
            assert set(batch.x) == {"paper", "author"}, "venues have no features"
            for ntype, rows in batch.x.items():
                wanted = tables[ntype][batch.input_nodes[ntype]]
                assert rows.dtype == (dtype or wanted.dtype)
                assert torch.equal(rows, wanted.to(rows.dtype))
            assert set(batch.y) == {"paper"}
            assert torch.equal(batch.y["paper"], labels[batch.seeds["paper"]])
            seen.append(batch.seeds["paper"])
            assert batch.batch_size == len(batch.seeds["paper"])
        stats = loader.stats()
        assert {"paper/feat", "author/feat"} == set(stats.tables)
        assert stats.memory.total <= 16 << 20
    assert torch.equal(torch.cat(seen).sort().values, papers.split("train", "paper").sort().values)


def test_seeds_must_be_by_type(papers):
    with pytest.raises(ConfigError, match="by node type"):
        gids.Loader(papers, seeds=torch.arange(4), fanouts=[2])
    with gids.Loader(papers, seeds={"author": torch.arange(4)}, fanouts=[2], budget="16MiB") as loader:
        (batch,) = loader
    assert batch.seeds["author"].tolist() != []
    assert batch.y == {}


def test_bytes_of_a_batch_count_shared_tensors_once(papers):
    x = torch.zeros(10, 4)
    assert tensor_bytes({"a": x, "b": [x, x[:5]], "c": (torch.zeros(3),)}) == 160 + 12
