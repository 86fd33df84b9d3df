"""DGL graphs with all features in memory, and the same as gids datasets; rows say which node or edge they belong to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from gids.dataset import Dataset, DatasetWriter
from tests.rows import marked_rows


def write_dataset(graph: Any, path: Path) -> Dataset:
    """Store a DGL graph and its ``feat`` columns; edge ids are those of the graph."""
    with DatasetWriter(path) as writer:
        for ntype in graph.ntypes:
            writer.add_nodes(graph.num_nodes(ntype), ntype)
        for ntype in graph.ntypes:
            for name in ("feat", "extra"):
                if name in graph.nodes[ntype].data:
                    writer.add_features(graph.nodes[ntype].data[name], ntype, name)
            if "label" in graph.nodes[ntype].data:
                writer.add_labels(graph.nodes[ntype].data["label"], ntype)
                writer.add_split("train", torch.arange(0, graph.num_nodes(ntype), 2), ntype)
        for etype in graph.canonical_etypes:
            indptr, indices, edge_ids = graph.adj_tensors("csc", etype=etype)
            writer.add_csc(indptr, indices, etype, edge_ids=edge_ids)
            if "feat" in graph.edges[etype].data:
                writer.add_edge_features(graph.edges[etype].data["feat"], etype)
        return writer.finish()


@pytest.fixture(scope="session")
def homogeneous() -> Any:
    import dgl  # not above: Python 3.12 and later have none, and this file is read before a test can be skipped

    generator = torch.Generator().manual_seed(1)
    src, dst = torch.randint(0, 1200, (2, 9000), generator=generator)
    graph = dgl.graph((src, dst), num_nodes=1200)
    graph.ndata["feat"] = marked_rows(1200, 7, 0.0)
    graph.ndata["extra"] = marked_rows(1200, 3, 0.125).half()
    graph.ndata["label"] = torch.arange(1200) % 6
    graph.edata["feat"] = marked_rows(9000, 4, 0.5)
    graph.edata["label"] = torch.arange(9000) % 3
    return graph


@pytest.fixture(scope="session")
def heterogeneous() -> Any:
    import dgl

    generator = torch.Generator().manual_seed(2)

    def pairs(sources: int, destinations: int, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        return (
            torch.randint(0, sources, (count,), generator=generator),
            torch.randint(0, destinations, (count,), generator=generator),
        )

    graph = dgl.heterograph(
        {
            ("author", "writes", "paper"): pairs(300, 600, 2400),
            ("paper", "cites", "paper"): pairs(600, 600, 4000),
            ("paper", "written_by", "author"): pairs(600, 300, 2400),
        },
        num_nodes_dict={"author": 300, "paper": 600},
    )
    graph.nodes["paper"].data["feat"] = marked_rows(600, 6, 0.0)
    graph.nodes["author"].data["feat"] = marked_rows(300, 9, 0.25)
    graph.nodes["paper"].data["label"] = torch.arange(600) % 4
    graph.edges["cites"].data["feat"] = marked_rows(4000, 2, 0.5)
    return graph


@pytest.fixture(scope="session")
def homogeneous_dataset(homogeneous: Any, tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return write_dataset(homogeneous, tmp_path_factory.mktemp("dgl") / "homogeneous")


@pytest.fixture(scope="session")
def heterogeneous_dataset(heterogeneous: Any, tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return write_dataset(heterogeneous, tmp_path_factory.mktemp("dgl") / "heterogeneous")


@pytest.fixture
def bare_homogeneous(homogeneous: Any) -> Any:
    """The graph without the columns that the dataset has."""
    graph = homogeneous.local_var()
    del graph.ndata["feat"], graph.ndata["extra"], graph.ndata["label"], graph.edata["feat"]
    return graph


@pytest.fixture
def bare_heterogeneous(heterogeneous: Any) -> Any:
    graph = heterogeneous.local_var()
    for ntype in graph.ntypes:
        del graph.nodes[ntype].data["feat"]
    del graph.nodes["paper"].data["label"], graph.edges["cites"].data["feat"]
    return graph
