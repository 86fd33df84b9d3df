"""DGL's door over packed epochs: the blocks, columns and order of gids.Loader's batches, with nothing sampled."""

import pytest
import torch

import gids
from gids.errors import ConfigError

dgl = pytest.importorskip("dgl")

import gids.dgl  # noqa: E402

pytestmark = pytest.mark.usefixtures("nothing_left")


def sampler(**options):
    names = {"prefetch_node_feats": ["feat"], "prefetch_labels": ["label"], "prefetch_edge_feats": ["feat"]}
    return gids.dgl.NeighborSampler([4, 3], **(names | options))


@pytest.fixture
def packed(dataset, tmp_path):
    return gids.pack(
        dataset,
        tmp_path / "packed",
        "train",
        sampler=sampler().inner,
        batch_size=100,
        features={gids.NODE: "feat", gids.EDGE: "feat"},
        epochs=2,
        hot="1KiB",
    )


@pytest.fixture
def dataset(homogeneous, tmp_path):
    from .conftest import write_dataset

    return write_dataset(homogeneous, tmp_path / "dataset")


def test_batches_are_those_of_the_loader(dataset, packed):
    options = {"batch_size": 100, "shuffle": True, "budget": "64MiB", "packed": packed}
    with (
        gids.dgl.DataLoader(dataset, "train", sampler(), **options) as loader,
        gids.Loader(dataset, packed=packed, budget="64MiB") as ours,
    ):
        assert len(loader) == len(ours) == 6
        assert "topology" not in vars(loader.graph), "nothing is sampled, so the graph is not even opened"
        for epoch in range(2):
            for (input_nodes, output_nodes, blocks), batch in zip(loader, ours, strict=True):
                assert batch.epoch == epoch
                assert torch.equal(input_nodes, batch.input_nodes)
                assert torch.equal(output_nodes, batch.seeds)
                assert torch.equal(blocks[0].srcdata["feat"], batch.x)
                assert torch.equal(blocks[-1].dstdata["label"], batch.y)
                for block, made, rows in zip(blocks, batch.blocks, batch.edge_features, strict=True):
                    assert block.num_edges() == made.num_edges()
                    assert torch.equal(block.edata["feat"], next(iter(rows.values())))
        with pytest.raises(ConfigError, match="epoch must be below 2"):
            iter(loader)
        with pytest.raises(
            ConfigError, match=r"epoch must be below 2, .*: pack more epochs, pack with reuse .* or let gids.Loader"
        ):
            loader.set_epoch(2)


def test_resumes(dataset, packed):
    options = {"batch_size": 100, "shuffle": True, "budget": "64MiB", "packed": packed}
    with gids.dgl.DataLoader(dataset, "train", sampler(), **options) as loader:
        batches = iter(loader)
        next(batches)
        state = loader.state_dict()
        rest = [nodes for nodes, _, _ in batches]
        loader.load_state_dict(state)
        assert all(torch.equal(a, b) for a, (b, _, _) in zip(rest, loader, strict=True))


def test_refuses_what_was_not_packed(dataset, homogeneous, packed):
    with pytest.raises(ConfigError, match="packed needs the dataset in the place of the graph"):
        gids.dgl.DataLoader(homogeneous, "train", sampler(), gids=dataset, packed=packed)
    with pytest.raises(ConfigError, match="batch_size must be 100, as it was packed"):
        gids.dgl.DataLoader(dataset, "train", sampler(), batch_size=50, shuffle=True, packed=packed)
    with pytest.raises(ConfigError, match="shuffle must be True, as it was packed"):
        gids.dgl.DataLoader(dataset, "train", sampler(), batch_size=100, packed=packed)
    other = gids.dgl.NeighborSampler([4, 4], prefetch_node_feats=["feat"])
    with pytest.raises(ConfigError, match="sampler must be"):
        gids.dgl.DataLoader(dataset, "train", other, batch_size=100, shuffle=True, packed=packed)
