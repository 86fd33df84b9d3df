"""Historical embeddings through DGL and PyG: their own layers, exchange() before the last, the same numbers as without."""

import numpy as np
import pytest
import torch

import gids
import gids.partition
from gids import ConfigError, HistoryOptions, OrderOptions, generate

DIM = 8


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    path = tmp_path_factory.mktemp("doors") / "g"
    return generate.communities(path, num_nodes=2000, degree=8, dim=DIM, num_classes=4, signal=3.0, train=0.3, seed=1)


def options(max_age=4, nodes=0.3):
    return HistoryOptions(dim=16, max_age=max_age, nodes=nodes)


def dgl_loader(dataset, history, **others):
    door = pytest.importorskip("gids.dgl")
    sampler = door.NeighborSampler([4, 4], prefetch_node_feats=["feat"], prefetch_labels=["label"])
    asked = {
        "batch_size": 60,
        "shuffle": True,
        "budget": "32MiB",
        "memory": gids.MemoryOptions(history=history),
    } | others
    np.random.seed(7)  # noqa: NPY002 # DGL shuffles with it
    return door.DataLoader(dataset, "train", sampler, **asked)


def train_dgl(dataset, history, epochs=1, **others):
    nn = pytest.importorskip("dgl.nn")
    torch.manual_seed(3)
    first, last = nn.SAGEConv(DIM, 16, "mean"), nn.SAGEConv(16, 4, "mean")
    optimizer = torch.optim.Adam([*first.parameters(), *last.parameters()], 0.01)
    losses = []
    with dgl_loader(dataset, history, **others) as loader:
        for _ in range(epochs):
            for batch in loader:
                blocks = batch[2]
                h = torch.relu(first(blocks[0], blocks[0].srcdata["feat"]))
                if loader.history is not None:
                    h = loader.history.exchange(h, batch)
                out = last(blocks[1], h)
                loss = torch.nn.functional.cross_entropy(out, blocks[1].dstdata["label"])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
        return losses, loader.stats()


def test_dgl(dataset):
    exact, without = train_dgl(dataset, None)
    none_pruned, _ = train_dgl(dataset, options(max_age=0))
    assert none_pruned == exact
    losses, stats = train_dgl(dataset, options())
    assert stats.input_nodes < 0.95 * without.input_nodes
    assert stats.history["pulled"] > 0
    assert stats.approximate
    assert sum(losses[-4:]) < 1.2 * sum(exact[-4:]) + 0.1
    assert train_dgl(dataset, options())[0] == losses
    by_parts = OrderOptions(parts=gids.partition.make(dataset, 40, store=False), parts_per_group=4)
    assert train_dgl(dataset, options(), order=by_parts)[1].history["pulled"] > 0


def test_dgl_resumes_within_a_window(dataset):
    door = pytest.importorskip("gids.dgl")

    def exchange(loader, batch):
        rows = batch[2][0].num_dst_nodes()
        return loader.history.exchange(torch.arange(rows * 16.0).reshape(rows, 16), batch)

    with dgl_loader(dataset, options()) as loader:
        batches = iter(loader)
        for _ in range(3):
            exchange(loader, next(batches))
        state, stored = loader.state_dict(), loader.history.state_dict()
        expected = [exchange(loader, batch) for batch in batches]
    with dgl_loader(dataset, options()) as resumed:
        resumed.load_state_dict(state)
        resumed.history.load_state_dict(stored)
        got = [exchange(resumed, batch) for batch in resumed]
    assert len(got) == len(expected)
    assert all(torch.equal(one, other) for one, other in zip(got, expected, strict=True))
    with pytest.raises(ConfigError, match="history must be given with gids="):
        door.DataLoader(dataset, "train", gids.LadiesSampler([40, 40]), memory=gids.MemoryOptions(history=options()))


def pyg_loader(dataset, history, **others):
    door = pytest.importorskip("gids.pyg")
    asked = {
        "batch_size": 60,
        "shuffle": True,
        "budget": "32MiB",
        "memory": gids.MemoryOptions(history=history),
        "seed": 2,
    } | others
    return door.NeighborLoader(dataset, [4, 4], "train", **asked)


def train_pyg(dataset, history, epochs=1, trim=False):
    geometric = pytest.importorskip("torch_geometric")
    torch.manual_seed(3)
    first, last = geometric.nn.SAGEConv(DIM, 16), geometric.nn.SAGEConv(16, 4)
    optimizer = torch.optim.Adam([*first.parameters(), *last.parameters()], 0.01)
    losses = []
    with pyg_loader(dataset, history) as loader:
        for _ in range(epochs):
            for batch in loader:
                h, edges = torch.relu(first(batch.x, batch.edge_index)), batch.edge_index
                if trim:
                    counts = batch.num_sampled_nodes, batch.num_sampled_edges
                    h, edges, _ = geometric.utils.trim_to_layer(1, *counts, h, edges)
                if loader.history is not None:
                    h = loader.history.exchange(h, batch)
                out = last(h, edges)[: batch.batch_size]
                loss = torch.nn.functional.cross_entropy(out, batch.y[: batch.batch_size])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
        return losses, loader.stats()


def test_pyg(dataset):
    exact, without = train_pyg(dataset, None)
    assert train_pyg(dataset, options(max_age=0))[0] == exact
    losses, stats = train_pyg(dataset, options())
    assert stats.input_nodes < 0.95 * without.input_nodes
    assert stats.history["pulled"] > 0
    assert stats.approximate
    assert sum(losses[-4:]) < 1.2 * sum(exact[-4:]) + 0.1
    assert train_pyg(dataset, options(), epochs=1, trim=True)[0] == pytest.approx(losses, rel=1e-4)


def test_pyg_leaves_out_subtrees_and_nothing_else(dataset):
    pytest.importorskip("torch_geometric")
    with pyg_loader(dataset, None) as exact, pyg_loader(dataset, options()) as pruned:
        left_out = 0
        for whole, less in zip(exact, pruned, strict=True):
            step = less.history
            near = sum(whole.num_sampled_nodes[:2])
            assert torch.equal(whole.n_id[:near], less.n_id[:near])
            targets = set(less.edge_index[1][less.num_sampled_edges[0] :].tolist())
            assert not targets & set(step.pulled["_N"].tolist())
            assert set(less.e_id.tolist()) <= set(whole.e_id.tolist())
            assert torch.equal(less.x, torch.as_tensor(gids_rows(dataset, less.n_id)))
            left_out += len(step.pulled["_N"])
            h = torch.zeros(less.num_nodes, 16)
            assert len(pruned.history.exchange(h, less)) == less.num_nodes
        assert left_out > 50


def gids_rows(dataset, nodes):
    table = dataset.feature_table(None, "feat")
    return gids.dataset.rows.as_tensor(table, gids.dataset.rows.read_rows(table))[nodes]


def test_pyg_resumes_and_shares_out(dataset):
    door = pytest.importorskip("gids.pyg")

    def exchange(loader, batch):
        return loader.history.exchange(batch.n_id.float()[:, None].repeat(1, 16), batch)

    order = OrderOptions(rank=1, world_size=2)
    with pyg_loader(dataset, options(), order=order) as loader:
        batches = iter(loader)
        for _ in range(2):
            exchange(loader, next(batches))
        state, stored = loader.state_dict(), loader.history.state_dict()
        expected = [exchange(loader, batch) for batch in batches]
        assert loader.stats().history["pulled"] > 0
    with pyg_loader(dataset, options(), order=order) as resumed:
        resumed.load_state_dict(state)
        resumed.history.load_state_dict(stored)
        got = [exchange(resumed, batch) for batch in resumed]
    assert all(torch.equal(one, other) for one, other in zip(got, expected, strict=True))
    with pytest.raises(ConfigError, match="two hops with history"):
        door.NeighborLoader(dataset, [4, 4, 4], "train", memory=gids.MemoryOptions(history=options()))
    with pytest.raises(ConfigError, match="history must be None: embeddings are kept for node seeds"):
        door.LinkNeighborLoader(dataset, [4, 4], memory=gids.MemoryOptions(history=options()))
    with (
        pyg_loader(dataset, options(nodes=0.1), order=order) as other,
        pytest.raises(ConfigError, match="num_neighbors"),
    ):
        other.load_state_dict(state)
