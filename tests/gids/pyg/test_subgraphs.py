"""Induced and bidirectional subgraphs against brute force on the whole graph."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from gids.dataset import Dataset
from gids.dataset.rows import as_tensor, read_rows
from gids.pyg import NeighborLoader

from .conftest import CITES, WRITES, WRITTEN


def edges_of(dataset: Dataset, etype: Any = None) -> tuple[torch.Tensor, torch.Tensor]:
    """Sources and destinations of all edges, by position."""
    etype = etype or dataset.edge_types[0]
    indptr = np.array(dataset.indptr(etype))
    table = dataset.indices_table(etype)
    destinations = np.repeat(np.arange(len(indptr) - 1), np.diff(indptr))
    return as_tensor(table, read_rows(table)).view(-1).long(), torch.from_numpy(destinations)


def induced(dataset: Dataset, nodes: dict[str, torch.Tensor], etype: Any) -> list[tuple[int, int, int]]:
    source, destination = edges_of(dataset, etype)
    kept = torch.isin(source, nodes[etype[0]]) & torch.isin(destination, nodes[etype[2]])
    return sorted(zip(source[kept].tolist(), destination[kept].tolist(), kept.nonzero()[:, 0].tolist(), strict=True))


def test_induced_has_every_edge_between_its_nodes(homogeneous: Dataset) -> None:
    plain = {"batch_size": 20}
    with (
        NeighborLoader(homogeneous, [3, 2], "train", subgraph_type="induced", **plain) as loader,
        NeighborLoader(homogeneous, [3, 2], "train", **plain) as directional,
    ):
        for data, sampled in zip(loader, directional, strict=True):
            assert torch.equal(data.n_id, sampled.n_id)
            assert set(sampled.e_id.tolist()) <= set(data.e_id.tolist())
            row, col = data.n_id[data.edge_index]
            found = sorted(zip(row.tolist(), col.tolist(), data.e_id.tolist(), strict=True))
            (etype,) = homogeneous.edge_types
            assert found == induced(homogeneous, {etype[0]: data.n_id}, etype)
            assert torch.equal(data.edge_attr[:, 0], data.e_id + 0.5)
            assert torch.equal(data.x[:, 0], data.n_id.float())
            assert "num_sampled_nodes" not in data


def test_induced_of_a_heterograph(heterogeneous: Dataset) -> None:
    with NeighborLoader(heterogeneous, [2, 2], ("paper", "train"), batch_size=50, subgraph_type="induced") as loader:
        data = next(iter(loader))
    nodes = {ntype: data[ntype].n_id for ntype in ("paper", "author")}
    for etype in (WRITES, CITES, WRITTEN):
        row, col = data[etype].edge_index
        named = zip(
            nodes[etype[0]][row].tolist(), nodes[etype[2]][col].tolist(), data[etype].e_id.tolist(), strict=True
        )
        assert sorted(named) == induced(heterogeneous, nodes, etype)


def test_bidirectional_has_each_sampled_edge_in_both_directions(homogeneous: Dataset) -> None:
    plain = {"batch_size": 30}
    with (
        NeighborLoader(homogeneous, [3, 2], "train", subgraph_type="bidirectional", **plain) as loader,
        NeighborLoader(homogeneous, [3, 2], "train", **plain) as directional,
    ):
        for data, sampled in zip(loader, directional, strict=True):
            pairs = set(map(tuple, data.edge_index.T.tolist()))
            wanted = set(map(tuple, sampled.edge_index.T.tolist()))
            assert len(pairs) == data.edge_index.shape[1]
            assert pairs == wanted | {(b, a) for a, b in wanted}
            # Every edge names a sampled one between the same nodes, in one direction or the other.
            source, destination = edges_of(homogeneous)
            ends = data.n_id[data.edge_index]
            named = torch.stack([source[data.e_id], destination[data.e_id]])
            assert bool(((ends == named).all(0) | (ends == named.flip(0)).all(0)).all())
            assert torch.equal(data.edge_attr[:, 0], data.e_id + 0.5)


def test_bidirectional_types_complete_each_other(heterogeneous: Dataset) -> None:
    seeds = ("paper", "train")
    with (
        NeighborLoader(heterogeneous, [3, 3], seeds, batch_size=40, subgraph_type="bidirectional") as loader,
        NeighborLoader(heterogeneous, [3, 3], seeds, batch_size=40) as directional,
    ):
        data, sampled = next(iter(loader)), next(iter(directional))

    def pairs(of: Any, etype: Any, turned: bool = False) -> set[tuple[int, ...]]:
        index = of[etype].edge_index
        return set(map(tuple, (index.flip(0) if turned else index).T.tolist()))

    assert pairs(data, WRITES) == pairs(sampled, WRITES) | pairs(sampled, WRITTEN, True)
    assert pairs(data, WRITTEN) == pairs(data, WRITES, True)
    assert pairs(data, CITES) == pairs(sampled, CITES) | pairs(sampled, CITES, True)
    assert "e_id" not in data[WRITES]
    assert torch.equal(data[CITES].edge_attr[:, 0], data[CITES].e_id + 0.5)


def test_directed_false_is_induced(homogeneous: Dataset) -> None:
    with pytest.warns(UserWarning, match="subgraph_type='induced'"):
        loader = NeighborLoader(homogeneous, [2], "train", batch_size=10, directed=False)
    with loader, NeighborLoader(homogeneous, [2], "train", batch_size=10, subgraph_type="induced") as named:
        assert torch.equal(next(iter(loader)).edge_index, next(iter(named)).edge_index)
