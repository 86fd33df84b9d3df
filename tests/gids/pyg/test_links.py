"""LinkNeighborLoader: edges, labels and negatives mean what they mean in PyG's, and are a function of the key."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch_geometric.loader import LinkLoader
from torch_geometric.sampler import NegativeSampling

from gids.dataset import Dataset
from gids.dataset.rows import as_tensor, read_rows
from gids.errors import ConfigError
from gids.pyg import FeatureStore, GraphStore, LinkNeighborLoader, NeighborSampler

WRITES = ("author", "writes", "paper")
EDGES = torch.stack([torch.arange(100), torch.arange(100, 200)])


def test_edges_without_negatives_are_pygs(homogeneous: Dataset) -> None:
    theirs = LinkLoader(
        (FeatureStore(homogeneous), GraphStore(homogeneous)),
        link_sampler=NeighborSampler(homogeneous, [3, 2]),
        edge_label_index=(None, EDGES),
        edge_label=torch.arange(100) % 4,
        batch_size=20,
    )
    ours = LinkNeighborLoader(homogeneous, [3, 2], EDGES, torch.arange(100) % 4, batch_size=20, budget="64MiB")
    assert len(ours) == 5
    for mine, other in zip(ours, theirs, strict=True):
        for name in ("n_id", "e_id", "edge_index", "x", "y", "edge_label_index", "edge_label", "input_id"):
            assert torch.equal(mine[name], other[name]), name
        assert mine.num_sampled_nodes == other.num_sampled_nodes
    ours.close()


@pytest.mark.parametrize("amount", [0.5, 1, 3])
def test_binary_negatives(homogeneous: Dataset, amount: float) -> None:
    chosen = {"neg_sampling": {"mode": "binary", "amount": amount}, "batch_size": 20, "shuffle": True, "seed": 4}
    with LinkNeighborLoader(homogeneous, [3], EDGES, **chosen) as loader:
        epochs = [list(loader) for _ in range(2)]
    drawn = int(20 * amount)
    negatives = []
    for data in epochs[0]:
        ends = data.n_id[data.edge_label_index]
        assert torch.equal(ends[0, :20], data.input_id)
        assert torch.equal(ends[1, :20], data.input_id + 100)
        assert data.edge_label.tolist() == [1.0] * 20 + [0.0] * drawn
        assert torch.equal(data.x[:, 0], data.n_id.float())
        negatives.append(ends[:, 20:])
    assert sorted(torch.cat([data.input_id for data in epochs[0]]).tolist()) == list(range(100))
    pairs = torch.cat(negatives, dim=1)
    assert not torch.equal(pairs[0], pairs[1])
    assert 300 < float(pairs.float().mean()) < 600  # of 900 nodes
    with LinkNeighborLoader(homogeneous, [3], EDGES, **chosen) as again:
        for data, other in zip(again, epochs[0], strict=True):
            assert torch.equal(data.n_id, other.n_id)
    assert any(not torch.equal(a.n_id, b.n_id) for a, b in zip(*epochs, strict=True))


def test_labels_move_up_to_make_room_for_negatives(homogeneous: Dataset) -> None:
    labels = torch.arange(100) % 3
    with LinkNeighborLoader(homogeneous, [1], EDGES, labels, neg_sampling="binary", batch_size=100) as loader:
        (data,) = loader
    assert data.edge_label.tolist() == [*(labels + 1).tolist(), *[0] * 100]
    assert data.edge_label.dtype == torch.int64


def test_triplets(homogeneous: Dataset) -> None:
    chosen = NegativeSampling("triplet", amount=2)
    with LinkNeighborLoader(homogeneous, [2], EDGES, neg_sampling=chosen, batch_size=25) as loader:
        for data in loader:
            assert torch.equal(data.n_id[data.src_index], data.input_id)
            assert torch.equal(data.n_id[data.dst_pos_index], data.input_id + 100)
            assert data.dst_neg_index.shape == (25, 2)
            assert "edge_label_index" not in data
    with pytest.raises(ConfigError, match="edge_label must be None with triplets"):
        LinkNeighborLoader(homogeneous, [2], EDGES, torch.zeros(100), neg_sampling="triplet")


def test_weights_of_negatives(homogeneous: Dataset) -> None:
    weight = torch.zeros(900)
    weight[[3, 5]] = torch.tensor([1.0, 3.0])
    chosen = NegativeSampling("triplet", amount=1, dst_weight=weight)
    with LinkNeighborLoader(homogeneous, [1], EDGES, neg_sampling=chosen, batch_size=100) as loader:
        drawn = [int(node) for _ in range(10) for data in loader for node in data.n_id[data.dst_neg_index]]
    assert set(drawn) == {3, 5}
    assert 650 < drawn.count(5) < 850


def test_two_node_types(heterogeneous: Dataset) -> None:
    index = torch.stack([torch.arange(60), torch.arange(60, 120)])
    with LinkNeighborLoader(
        heterogeneous, [3], (WRITES, index), neg_sampling="binary", batch_size=30, budget="64MiB"
    ) as loader:
        for data in loader:
            ends = data[WRITES].edge_label_index
            assert torch.equal(data["author"].n_id[ends[0, :30]], data[WRITES].input_id)
            assert torch.equal(data["paper"].n_id[ends[1, :30]], data[WRITES].input_id + 60)
            assert data[WRITES].edge_label.sum() == 30
            assert torch.equal(data["author"].x[:, 0], data["author"].n_id + 0.25)
            data.validate()


@pytest.mark.parametrize("given", [WRITES, (WRITES, None)])
def test_all_edges_of_a_type(heterogeneous: Dataset, given: Any) -> None:
    with LinkNeighborLoader(heterogeneous, [0], given, batch_size=500) as loader:
        batches = list(loader)
    sources = torch.cat([data["author"].n_id[data[WRITES].edge_label_index[0]] for data in batches])
    table, indptr = heterogeneous.indices_table(WRITES), heterogeneous.indptr(WRITES)
    assert sources.tolist() == as_tensor(table, read_rows(table)).tolist()
    destinations = torch.cat([data["paper"].n_id[data[WRITES].edge_label_index[1]] for data in batches])
    assert torch.bincount(destinations, minlength=500).tolist() == torch.from_numpy(indptr.copy()).diff().tolist()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"edge_label_index": torch.tensor([[0], [900]])}, r"must be in \[0, 900\)"),
        ({"edge_label_index": torch.arange(3)}, r"must be integers of shape \[2, n\]"),
        ({"edge_label_index": (("a", "b", "c"), EDGES)}, "edge type of edge_label_index must be among"),
        ({"edge_label_index": EDGES, "edge_label": torch.zeros(3)}, "edge_label must have 100 entries"),
        (
            {"edge_label_index": EDGES, "edge_label_time": torch.zeros(100)},
            "time_attr must be given with edge_label_time",
        ),
        ({"edge_label_index": EDGES, "input_id": torch.zeros(100)}, "input_id must be None"),
    ],
)
def test_refused(homogeneous: Dataset, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        LinkNeighborLoader(homogeneous, [2], **arguments)


def test_a_type_must_be_named(heterogeneous: Dataset) -> None:
    with pytest.raises(ConfigError, match=r"edge_label_index must be \(edge type, edges\)"):
        LinkNeighborLoader(heterogeneous, [2], EDGES)


def test_resumes(homogeneous: Dataset) -> None:
    chosen = {"neg_sampling_ratio": 1.0, "batch_size": 10, "shuffle": True}
    with LinkNeighborLoader(homogeneous, [2], EDGES, **chosen) as loader:
        expected = [data.n_id.tolist() for data in loader]
        loader.set_epoch(0)
        iterator = iter(loader)
        got = [next(iterator).n_id.tolist() for _ in range(3)]
        state = loader.state_dict()
    with LinkNeighborLoader(homogeneous, [2], EDGES, **chosen) as loader:
        loader.load_state_dict(state)
        got += [data.n_id.tolist() for data in loader]
    assert got == expected
