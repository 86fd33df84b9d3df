"""gids.convert(data, path): graphs of PyG and DGL that are in memory, and what a new user does with them next."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch_geometric.data import Data, HeteroData
from torch_geometric.nn import GCNConv

import gids
import gids.convert.frameworks
from gids.errors import ConfigError, DatasetError
from tests.packages import NO_DGL

EDGES = torch.tensor([[1, 2, 3, 0], [0, 0, 1, 3]])


def small() -> Data:
    data = Data(x=torch.arange(12.0).view(4, 3), edge_index=EDGES, y=torch.tensor([0, 1, 0, 1]))
    data.edge_attr = torch.arange(4.0)[:, None]
    data.train_mask = torch.tensor([True, False, True, False])
    return data


def check(dataset: gids.Dataset) -> None:
    assert dataset.num_features == 3
    assert dataset.num_classes == 2
    assert dataset.split("train").tolist() == [0, 2]
    assert dataset.edge_feature_names() == ["feat"]
    with gids.Loader(
        dataset,
        "train",
        fanouts=[-1],
        batch_size=2,
        features={gids.NODE: "feat", gids.EDGE: "feat"},
        order=gids.OrderOptions(shuffle=False),
    ) as loader:
        (batch,) = loader
    assert batch.x[:, 0].tolist() == [3.0 * node for node in batch.input_nodes.tolist()]
    assert batch.y.tolist() == [0, 0]
    ids = batch.blocks[0].edge_ids[dataset.edge_types[0]]
    assert sorted(ids.tolist()) == [0, 1]
    assert batch.edge_features[0][dataset.edge_types[0], "feat"].flatten().tolist() == ids.tolist()


def test_a_data(tmp_path: Path) -> None:
    dataset = gids.convert(small(), tmp_path / "graph")
    check(dataset)
    assert dataset.attributes["source"] == "memory"
    assert repr(dataset) == f"Dataset({str(tmp_path / 'graph')!r}, 4 nodes, 4 edges)"
    assert "<td>train 2</td>" in dataset._repr_html_().replace("2 classes, ", "")


def test_a_dict_and_a_second_time(tmp_path: Path) -> None:
    check(gids.convert(small().to_dict(), tmp_path / "graph"))
    with pytest.raises(gids.GidsError):
        gids.convert(small(), tmp_path / "graph")
    check(gids.convert(small(), tmp_path / "graph", options=gids.convert.ConvertOptions(overwrite=True)))


def test_a_heterodata(tmp_path: Path) -> None:
    data = HeteroData()
    data["paper"].x, data["author"].x = torch.arange(6.0).view(3, 2), torch.arange(10.0).view(2, 5)
    data["paper"].y = torch.tensor([0, 1, 2])
    data["author", "writes", "paper"].edge_index = torch.tensor([[0, 1, 1], [0, 1, 2]])
    dataset = gids.convert(data, tmp_path / "graph")
    assert dataset.num_features == {"paper": 2, "author": 5}
    assert repr(dataset).endswith("5 nodes of 2 types, 3 edges)")
    with gids.Loader(
        dataset, ("paper", None), fanouts=[-1], batch_size=3, order=gids.OrderOptions(shuffle=False)
    ) as loader:
        (batch,) = loader
    assert batch.x["author"][:, 0].tolist() == [5.0 * node for node in batch.input_nodes["author"].tolist()]
    assert repr(batch).startswith("Batch(epoch 0, number 0, 3 seeds, 1 blocks, x={paper: float32[3, 2], author: ")
    assert len(repr(batch)) < 200
    assert "author/feat" in batch._repr_html_()
    assert repr(batch.blocks[0]) == "Block(5 sources, 3 destinations, 3 edges)"


def test_a_dgl_graph(tmp_path: Path) -> None:
    dgl = pytest.importorskip("dgl", reason=NO_DGL)
    data = small()
    graph = dgl.graph((EDGES[0], EDGES[1]), num_nodes=4)
    graph.ndata["feat"], graph.ndata["label"], graph.ndata["train_mask"] = data.x, data.y, data.train_mask
    graph.edata["feat"] = data.edge_attr
    check(gids.convert(graph, tmp_path / "graph"))


@pytest.mark.parametrize("thing", [3, [EDGES], torch.nn.Linear(1, 1)])
def test_what_cannot_be_converted(tmp_path: Path, thing: Any) -> None:
    with pytest.raises(ConfigError, match="source must be a path, a PyG Data or HeteroData, a dict with edge_index"):
        gids.convert(thing, tmp_path / "graph")
    with pytest.raises(ConfigError, match="takes no format"):
        gids.convert(small(), tmp_path / "graph", format="pyg")


def test_the_package_is_still_one() -> None:
    assert gids.convert.convert.__module__ == "gids.convert.formats"
    assert gids.convert.frameworks.in_memory.__module__ == "gids.convert.frameworks"


def test_what_is_no_dataset_names_the_call(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"got a torch_geometric.Data\): call gids.convert\(data, path\) first"):
        gids.Loader(small(), fanouts=[1])
    torch.save(small(), tmp_path / "cora.pt")
    with pytest.raises(ConfigError, match=r"load it and call gids.convert"):
        gids.Loader(tmp_path / "cora.pt", fanouts=[1])
    with pytest.raises(DatasetError, match=r"it is a file: `gids convert --help`"):
        gids.open(tmp_path / "cora.pt")


def communities(nodes: int = 600, classes: int = 3) -> Data:
    """A citation graph in small, as Cora is: classes cite themselves, and words tell a little."""
    generator = torch.Generator().manual_seed(0)
    y = torch.randint(0, classes, (nodes,), generator=generator)
    dst = torch.randint(0, nodes, (nodes * 6,), generator=generator)
    candidates = torch.randint(0, nodes, (nodes * 6, 6), generator=generator)
    src = candidates[torch.arange(nodes * 6), (y[candidates] == y[dst][:, None]).int().argmax(1)]
    x = torch.randn(nodes, 16, generator=generator) + torch.nn.functional.one_hot(y, 16)
    data = Data(x=x, edge_index=torch.stack([src, dst]), y=y)
    data.train_mask, data.test_mask = torch.arange(nodes) < nodes // 2, torch.arange(nodes) >= nodes // 2
    return data


def test_a_new_user_of_pyg(tmp_path: Path) -> None:
    """A script for PyG's own loader, with the import changed and the data converted; half of its features are noise."""
    from gids.pyg import NeighborLoader

    torch.manual_seed(0)
    dataset = gids.convert(communities(), tmp_path / "cora")
    common = {"num_neighbors": [10, 10], "batch_size": 128, "num_workers": 2, "persistent_workers": True}
    train = NeighborLoader(dataset, input_nodes="train", shuffle=True, budget="64MiB", **common)
    test = NeighborLoader(dataset, input_nodes="test", **common)
    first, second = GCNConv(dataset.num_features, 32), GCNConv(32, dataset.num_classes)
    optimizer = torch.optim.Adam([*first.parameters(), *second.parameters()], lr=0.01)

    def forward(batch: Any) -> torch.Tensor:
        hidden = first(batch.x, batch.edge_index).relu()
        return second(hidden, batch.edge_index)[: batch.batch_size]

    for _ in range(12):
        for batch in train:
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(forward(batch), batch.y[: batch.batch_size]).backward()
            optimizer.step()
    with torch.no_grad():
        right = sum(int((forward(b).argmax(1) == b.y[: b.batch_size]).sum()) for b in test)
    train.close()
    test.close()
    assert right / 300 > 0.85
