"""Mini-batches as PyG's NeighborLoader makes them: rows of the right nodes, models of PyG train on them, epochs resume."""

from __future__ import annotations

import hashlib
import itertools
from typing import Any

import pytest
import torch
from torch_geometric.data import Data, HeteroData
from torch_geometric.loader import LinkLoader, NodeLoader
from torch_geometric.nn import HeteroConv, SAGEConv
from torch_geometric.utils import trim_to_layer

import gids
from gids.dataset import Dataset
from gids.errors import ConfigError, GidsError
from gids.loader.epochs import EpochLoader
from gids.pyg import FeatureStore, GraphStore, NeighborLoader, NeighborSampler
from tests.rows import rows_of

CITES = ("paper", "cites", "paper")


def test_homogeneous_batches(homogeneous: Dataset) -> None:
    loader = NeighborLoader(homogeneous, [4, 3], "train", batch_size=32)
    assert len(loader) == 10
    seen = []
    for data in loader:
        assert isinstance(data, Data)
        assert data.num_nodes == len(data.n_id) == sum(data.num_sampled_nodes)
        assert data.num_edges == len(data.e_id) == sum(data.num_sampled_edges)
        assert data.batch_size == len(data.input_id) == data.num_sampled_nodes[0]
        assert torch.equal(data.x, rows_of(data.n_id, 7, 0.0))
        assert torch.equal(data.edge_attr, rows_of(data.e_id, 3, 0.5))
        assert torch.equal(data.y, data.n_id % 5)
        assert torch.equal(homogeneous.split("train")[data.input_id], data.n_id[: data.batch_size])
        assert bool((data.edge_index >= 0).all())
        assert bool((data.edge_index < data.num_nodes).all())
        seen.append(data.n_id[: data.batch_size])
    assert torch.equal(torch.cat(seen), homogeneous.split("train"))
    loader.close()


def test_heterogeneous_batches(heterogeneous: Dataset) -> None:
    loader = NeighborLoader(
        heterogeneous,
        [3, 3],
        ("paper", "train"),
        batch_size=50,
        shuffle=True,
        budget="64MiB",
    )
    seen = []
    for data in loader:
        assert isinstance(data, HeteroData)
        assert set(data.node_types) == {"paper", "author"}
        assert torch.equal(data["paper"].x, rows_of(data["paper"].n_id, 6, 0.0))
        assert torch.equal(data["author"].x, rows_of(data["author"].n_id, 9, 0.25))
        assert torch.equal(data[CITES].edge_attr, rows_of(data[CITES].e_id, 2, 0.5))
        assert torch.equal(data["paper"].y, data["paper"].n_id % 4)
        assert "y" not in data["author"]
        assert data["paper"].batch_size == 50
        assert data["paper"].num_sampled_nodes[0] == 50
        assert data["author"].num_sampled_nodes[0] == 0
        data.validate()
        seen.append(data["paper"].n_id[:50])
    assert torch.cat(seen).sort()[0].tolist() == heterogeneous.split("train", "paper").tolist()
    loader.close()


def test_epochs_differ_and_repeat(homogeneous: Dataset) -> None:
    loader = NeighborLoader(homogeneous, [3], "train", batch_size=64, shuffle=True, seed=5)
    first, second = ([data.e_id.tolist() for data in loader] for _ in range(2))
    assert first != second
    loader.set_epoch(0)
    assert [data.e_id.tolist() for data in loader] == first
    again = NeighborLoader(
        homogeneous,
        [3],
        "train",
        batch_size=64,
        shuffle=True,
        seed=5,
        budget="64MiB",
        memory=gids.MemoryOptions(policy="lru", cache="4KiB", host_buffer=0),
        pipeline=gids.PipelineOptions(window=0, threads=1),
        storage="pread",
    )
    assert [data.e_id.tolist() for data in again] == first
    loader.close()
    again.close()


def test_ranks_share_the_seeds(homogeneous: Dataset) -> None:
    parts = []
    for rank in range(2):
        part = gids.OrderOptions(rank=rank, world_size=2)
        loader = NeighborLoader(homogeneous, [2], "train", batch_size=40, shuffle=True, order=part)
        parts.append(torch.cat([data.input_id for data in loader]))
        loader.close()
    assert torch.cat(parts).sort()[0].tolist() == list(range(300))


def seeds_of(loader: NeighborLoader) -> list[int]:
    with loader:
        return torch.cat([data.n_id[: data.batch_size] for data in loader]).tolist()


@pytest.mark.parametrize(
    ("input_nodes", "expected"),
    [
        (torch.tensor([5, 7, 11]), [5, 7, 11]),
        ([5, 7, 11], [5, 7, 11]),
        (torch.arange(900) == 7, [7]),
        ("train", list(range(0, 900, 3))),
        (("_N", "train"), list(range(0, 900, 3))),
        ({"_N": torch.tensor([3])}, [3]),
        (None, list(range(900))),
        ("_N", list(range(900))),
    ],
    ids=["ids", "list", "mask", "split", "type and split", "mapping", "none", "type"],
)
def test_what_input_nodes_mean(homogeneous: Dataset, input_nodes: Any, expected: list[int]) -> None:
    assert seeds_of(NeighborLoader(homogeneous, [2], input_nodes, batch_size=100)) == expected


def test_seeds_of_several_types(heterogeneous: Dataset) -> None:
    with NeighborLoader(heterogeneous, [2], None, batch_size=200) as loader:
        batches = list(loader)
    assert [data["paper"].get("batch_size", 0) for data in batches] == [200, 200, 100, 0]
    assert [data["author"].get("batch_size", 0) for data in batches] == [0, 0, 100, 200]
    for ntype, count in (("paper", 500), ("author", 300)):
        seeds = torch.cat([data[ntype].n_id[: data[ntype].get("batch_size", 0)] for data in batches])
        assert seeds.tolist() == list(range(count))


def test_bad_input_nodes(homogeneous: Dataset, heterogeneous: Dataset) -> None:
    with pytest.raises(ConfigError, match=r"must be in \[0, 900\)"):
        NeighborLoader(homogeneous, [2], torch.tensor([900]))
    with pytest.raises(ConfigError, match="must be given by node type"):
        NeighborLoader(heterogeneous, [2], torch.tensor([1]))
    with pytest.raises(ConfigError, match="input_nodes must be one of the splits train"):
        NeighborLoader(heterogeneous, [2], "tain")
    with pytest.raises(ConfigError, match="LinkNeighborLoader"):
        NeighborLoader(homogeneous, [2], gids.EdgeSeeds(torch.tensor([0]), torch.tensor([1])))
    with pytest.raises(ConfigError, match=r"torch_geometric.Data\): call gids.convert"):
        NeighborLoader(Data(), [2])


def digest(data: Any) -> str:
    """Everything that is in a mini-batch."""
    found = hashlib.sha256()
    for store in sorted(data.stores, key=lambda store: str(store._key)):
        for name in sorted(store.keys()):
            value = store[name]
            if isinstance(value, torch.Tensor):
                found.update(f"{store._key} {name} {value.dtype} {tuple(value.shape)}".encode())
                found.update(value.contiguous().numpy().tobytes())
            else:
                found.update(f"{store._key} {name} {value}".encode())
    return found.hexdigest()[:12]


def test_batches_are_those_of_the_machine_before_this_one(homogeneous: Dataset, heterogeneous: Dataset) -> None:
    """Digests stand for those of gids/external.py, at commit 5c13bb2, with rows that are the same on every machine."""
    chosen = {"shuffle": True, "budget": "64MiB"}
    with NeighborLoader(homogeneous, [4, 3], "train", batch_size=64, seed=5, **chosen) as loader:
        assert [[digest(data) for data in loader][:3] for _ in range(2)] == [
            ["4431e9a5737c", "4c7d6127f493", "34bb89e77a1c"],
            ["fbd6d94e4332", "d179f08ad4e1", "1864c58389d5"],
        ]
    with NeighborLoader(heterogeneous, [3, 3], ("paper", "train"), batch_size=100, seed=2, **chosen) as loader:
        assert [[digest(data) for data in loader][:3] for _ in range(2)] == [
            ["54e1f84d66d0", "cee5e4740468", "4186c4dd147c"],
            ["52c7f9c89a3c", "0f8d37aef0bd", "d9fedcf18817"],
        ]


def test_an_epoch_resumes(homogeneous: Dataset) -> None:
    def make(**changes: Any) -> NeighborLoader:
        return NeighborLoader(homogeneous, [3], "train", shuffle=True, **({"batch_size": 32, "seed": 1} | changes))

    with make() as whole:
        list(whole)
        expected = [digest(data) for data in whole]
    with make() as first:
        list(first)
        got = [digest(data) for data in itertools.islice(first, 4)]
        state = first.state_dict()
    with make() as second:
        second.load_state_dict(state)
        assert second.epoch == 1
        got += [digest(data) for data in second]
        assert second.stats().batches == 6
    assert got == expected
    with make(batch_size=16) as other, pytest.raises(ConfigError, match="batch_size must be 32"):
        other.load_state_dict(state)
    with make(seed=3) as other, pytest.raises(ConfigError, match="seed must be 1"):
        other.load_state_dict(state)


def test_stats_count_what_was_delivered(homogeneous: Dataset) -> None:
    with NeighborLoader(homogeneous, [3], "train", batch_size=32, budget="64MiB") as loader:
        assert isinstance(loader, EpochLoader)
        requested = sum(data.num_nodes for data in loader)
        stats = loader.prepare().stats()
        assert (stats.epochs, stats.batches, stats.seeds, stats.prepared) == (1, 10, 300, True)
        assert set(stats.tables) == {"_N/feat", "_N:_E:_N/feat"}
        table = stats.tables["_N/feat"]
        assert table.requests == requested == table.cache + table.host + table.disk + table.duplicates
        assert stats.memory is not None
        assert stats.memory.budget == 64 << 20
        assert all(usage.used <= usage.allotted for part, usage in stats.usage.items() if part == "cache")
        loader.reset_stats()
        assert loader.stats().batches == 0
        assert repr(loader) == f"NeighborLoader({str(homogeneous.path)!r}, 10 batches of 32)"
        assert "<table>" in loader._repr_html_()
        assert "_N/feat" in loader.notes


def test_a_budget_too_small_is_refused_at_once(homogeneous: Dataset) -> None:
    with pytest.raises(ConfigError, match="budget must be at least"):
        NeighborLoader(homogeneous, [3], "train", budget="1KiB")


def test_a_closed_loader_says_so(homogeneous: Dataset) -> None:
    loader = NeighborLoader(homogeneous, [3], "train", batch_size=32)
    iterator = iter(loader)
    loader.close()
    with pytest.raises(GidsError, match="the loader was closed"):
        next(iterator)
    with pytest.raises(GidsError, match="the loader is closed"):
        iter(loader)


def test_leaving_early(homogeneous: Dataset) -> None:
    loader = NeighborLoader(homogeneous, [3], "train", batch_size=8)
    for data in itertools.islice(loader, 2):
        assert data.batch_size == 8
    assert sum(1 for _ in loader) == len(loader)
    loader.close()


class SAGE(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.convs = torch.nn.ModuleList([SAGEConv(7, 16), SAGEConv(16, 5)])

    def forward(self, data: Any, trim: bool) -> torch.Tensor:
        x, edge_index = data.x, data.edge_index
        for number, conv in enumerate(self.convs):
            if trim:
                x, edge_index, _ = trim_to_layer(number, data.num_sampled_nodes, data.num_sampled_edges, x, edge_index)
            x = conv(x, edge_index)
            x = x.relu() if number == 0 else x
        return x[: data.batch_size]


def test_trimming_changes_nothing_for_the_seeds(homogeneous: Dataset) -> None:
    torch.manual_seed(0)
    model = SAGE()
    loader = NeighborLoader(homogeneous, [4, 3], "train", batch_size=64)
    for data in loader:
        torch.testing.assert_close(model(data, trim=True), model(data, trim=False))
    loader.close()


def test_a_heterogeneous_model_trains(heterogeneous: Dataset) -> None:
    torch.manual_seed(0)
    convs = {
        CITES: SAGEConv((6, 6), 4),
        ("author", "writes", "paper"): SAGEConv((9, 6), 4),
        ("paper", "written_by", "author"): SAGEConv((6, 9), 4),
    }
    model = HeteroConv(convs)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.001)
    loader = NeighborLoader(
        heterogeneous, [5], ("paper", "train"), batch_size=50, transform=lambda data: data.to("cpu")
    )
    losses = []
    for _ in range(3):
        total = 0.0
        for data in loader:
            out = model(data.x_dict, data.edge_index_dict)["paper"][: data["paper"].batch_size]
            loss = torch.nn.functional.cross_entropy(out, data["paper"].y[: data["paper"].batch_size])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item()
        losses.append(total)
    assert losses[-1] < losses[0]
    loader.close()


@pytest.mark.parametrize("workers", [0, 2])
def test_node_loader_of_pyg_takes_our_stores(heterogeneous: Dataset, workers: int) -> None:
    loader = NodeLoader(
        (FeatureStore(heterogeneous, budget="4KiB"), GraphStore(heterogeneous)),
        node_sampler=NeighborSampler(heterogeneous, [3, 3]),
        input_nodes=("paper", heterogeneous.split("train", "paper")),
        batch_size=50,
        num_workers=workers,
    )
    count = 0
    for data in loader:
        assert torch.equal(data["paper"].x, rows_of(data["paper"].n_id, 6, 0.0))
        assert torch.equal(data["author"].x, rows_of(data["author"].n_id, 9, 0.25))
        assert torch.equal(data["paper"].y, data["paper"].n_id % 4)
        assert data[CITES].num_edges == sum(data.num_sampled_edges_dict[CITES])
        assert data["paper"].batch_size == 50
        count += 1
    assert count == 5


def test_node_loader_on_a_homogeneous_graph(homogeneous: Dataset) -> None:
    loader = NodeLoader(
        (FeatureStore(homogeneous), GraphStore(homogeneous)),
        node_sampler=NeighborSampler(homogeneous, [4, 3], seed=1),
        input_nodes=homogeneous.split("train"),
        input_id=torch.arange(300),
        batch_size=64,
    )
    for data in loader:
        assert torch.equal(data.x, rows_of(data.n_id, 7, 0.0))
        assert torch.equal(data.y, data.n_id % 5)
        assert data.batch_size == data.num_sampled_nodes[0]
        assert torch.equal(homogeneous.split("train")[data.input_id], data.n_id[: data.batch_size])


def test_link_loader_of_pyg_takes_our_sampler(homogeneous: Dataset) -> None:
    edges = torch.stack([torch.arange(100), torch.arange(100, 200)])
    loader = LinkLoader(
        (FeatureStore(homogeneous), GraphStore(homogeneous)),
        link_sampler=NeighborSampler(homogeneous, [3]),
        edge_label_index=(None, edges),
        neg_sampling="binary",
        batch_size=20,
    )
    for data in loader:
        assert torch.equal(data.x, rows_of(data.n_id, 7, 0.0))
        ends = data.n_id[data.edge_label_index[:, :20]]
        assert torch.equal(ends[1], ends[0] + 100)
        assert data.edge_label.tolist() == [1.0] * 20 + [0.0] * 20


def test_the_feature_store_by_itself(heterogeneous: Dataset) -> None:
    store = FeatureStore(heterogeneous, budget="1KiB")
    index = torch.tensor([3, 499, 3, 0])
    assert torch.equal(store["paper", "x", index], rows_of(index, 6, 0.0))
    assert torch.equal(store["paper", "x", slice(2, 9, 3)], rows_of(torch.tensor([2, 5, 8]), 6, 0.0))
    assert torch.equal(store["author", "x", None], rows_of(torch.arange(300), 9, 0.25))
    assert torch.equal(store["paper", "x", 7], rows_of(torch.tensor([7]), 6, 0.0)[0])
    assert store["paper", "y", index].tolist() == [3, 3, 3, 0]
    assert store.get_tensor_size(group_name="author", attr_name="x") == (300, 9)
    names = {(attr.group_name, attr.attr_name) for attr in store.get_all_tensor_attrs()}
    assert names == {("paper", "x"), ("paper", "y"), ("author", "x")}
    assert store.usage()["cache"].peak > 0
    store.close()
    assert store.usage()["cache"].used == 0
    assert torch.equal(store["paper", "x", index], rows_of(index, 6, 0.0))
    with pytest.raises(ConfigError, match="read-only"):
        store["paper", "x", None] = torch.zeros(1)
    with pytest.raises(ConfigError, match="group_name must be one of paper, author"):
        store.get_tensor("venue", "x", index)
