"""A dataset behind PyG's interface for remote data: its own loaders then read features from disk."""

from __future__ import annotations

import os
import threading
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch_geometric import data as pyg
from torch_geometric.data.graph_store import EdgeAttr, EdgeLayout

from gids.dataset import Dataset
from gids.dataset.rows import as_tensor, read_rows
from gids.errors import ConfigError
from gids.ledger import Ledger, Usage
from gids.sampling import EdgeType
from gids.sampling.topology import share_topology
from gids.storage import RowReader, StorageOptions
from gids.table import RowTable
from gids.tiers import TableStore, fetch_now
from gids.types import TableKey
from gids.units import parse_bytes

#: PyG's names for what a dataset calls ``feat`` and labels.
X, Y = "x", "y"


def attribute_name(table: str) -> str:
    """Return PyG's name of a feature table of nodes: ``feat`` is ``x``, others keep their names."""
    return X if table == "feat" else table


def attribute_names(dataset: Dataset, ntype: str) -> dict[str, str]:
    """Return the feature tables of a node type by PyG's names."""
    return {attribute_name(name): name for name in dataset.feature_names(ntype)}


class FeatureStore(pyg.FeatureStore):  # type: ignore[misc] # PyG's base has no types
    """Node features of a dataset as ``torch_geometric.data.FeatureStore``: read-only, rows cached up to a budget.

    Attributes are ``x`` (the table ``feat``), ``y`` (labels) and every other feature table by its name; groups are
    node types, None for a graph that has only one.

    Parameters
    ----------
    dataset : Dataset
        Whose features.
    budget : int or str
        Memory for cached rows, shared by the tables in proportion to their sizes; :meth:`usage` tells what is used.
    storage : StorageOptions, optional
        How to read.

    Notes
    -----
    PyG asks for one batch at a time and waits for it. :class:`gids.pyg.NeighborLoader` reads ahead and is faster.
    """

    def __init__(self, dataset: Dataset, budget: int | str = "256MiB", storage: StorageOptions | None = None):
        super().__init__()
        self.dataset = dataset
        self._budget_bytes = parse_bytes(budget, "budget")
        self._storage = storage
        self._lock = threading.Lock()
        self._labels: dict[str, Tensor] = {}
        self._ledger = Ledger(self._budget_bytes)
        self._stores: dict[TableKey, TableStore] = {}
        self._owner = os.getpid()
        self._inherited: list[Any] = []
        self._single = len(dataset.node_types) == 1

    def get_all_tensor_attrs(self) -> list[pyg.TensorAttr]:
        """List every attribute of every node type."""
        attributes = []
        for ntype in self.dataset.node_types:
            names = list(attribute_names(self.dataset, ntype))
            names += [Y] if self._labels_of(ntype) is not None else []
            attributes += [pyg.TensorAttr(None if self._single else ntype, name) for name in names]
        return attributes

    def _get_tensor(self, attr: pyg.TensorAttr) -> Tensor | None:
        ntype = self._node_type(attr)
        if attr.attr_name == Y:
            labels = self._labels_of(ntype)
            return None if labels is None else _take(labels, attr.index)
        table = self._table(ntype, attr.attr_name)
        if table is None:
            return None
        if attr.index is None:
            return as_tensor(table, read_rows(table))
        rows = _as_rows(attr.index, table.num_rows)
        distinct, inverse = torch.unique(rows, return_inverse=True)
        fetched = self._fetch(ntype, table, distinct)
        return fetched[inverse][0] if isinstance(attr.index, int) else fetched[inverse]

    def _fetch(self, ntype: str, table: RowTable, rows: Tensor) -> Tensor:
        with self._lock:  # plans of one cache are made and carried out one after the other
            store = self._store(ntype, table)
            try:
                return fetch_now(store, rows)
            except BaseException:
                store.reset()  # it would believe admissions that never happened
                raise

    def _store(self, ntype: str, table: RowTable) -> TableStore:
        if os.getpid() != self._owner:
            # Threads and queues do not survive a fork: a worker process opens its own, and must not end the parent's.
            self._inherited.append(self._stores)
            self._stores, self._owner, self._ledger = {}, os.getpid(), Ledger(self._budget_bytes)
        key = TableKey(ntype, table.name)
        if key not in self._stores:
            every = [
                self.dataset.feature_table(kind, name)
                for kind in self.dataset.node_types
                for name in self.dataset.feature_names(kind)
            ]
            share = table.total_bytes / max(1, sum(other.total_bytes for other in every))
            cache_rows = min(table.num_rows, int(self._budget_bytes * share) // table.row_bytes)
            reader = RowReader(table, self._storage)
            self._stores[key] = TableStore(table, reader, cache_rows=cache_rows, policy="lru", ledger=self._ledger)
        return self._stores[key]

    def usage(self) -> dict[str, Usage]:
        """Return what cache and rows being read use, and used at most."""
        return self._ledger.usage()

    def close(self) -> None:
        """Release files and memory; they are opened again where rows are asked for."""
        with self._lock:
            while self._stores and os.getpid() == self._owner:
                self._stores.popitem()[1].close()

    def _get_tensor_size(self, attr: pyg.TensorAttr) -> tuple[int, ...] | None:
        ntype = self._node_type(attr)
        if attr.attr_name == Y:
            labels = self._labels_of(ntype)
            return None if labels is None else tuple(labels.shape)
        table = self._table(ntype, attr.attr_name)
        return None if table is None else (table.num_rows, table.dim)

    def _put_tensor(self, tensor: Any, attr: pyg.TensorAttr) -> bool:
        raise ConfigError(f"{attr.attr_name} cannot be put: a dataset on disk is read-only")

    def _remove_tensor(self, attr: pyg.TensorAttr) -> bool:
        raise ConfigError(f"{attr.attr_name} cannot be removed: a dataset on disk is read-only")

    def _node_type(self, attr: pyg.TensorAttr) -> str:
        if attr.group_name is None and self._single:
            return self.dataset.node_types[0]
        if attr.group_name not in self.dataset.node_types:
            known = ", ".join(self.dataset.node_types)
            raise ConfigError(f"group_name must be one of {known} (got {attr.group_name!r})")
        return str(attr.group_name)

    def _table(self, ntype: str, attribute: str) -> RowTable | None:
        name = attribute_names(self.dataset, ntype).get(attribute)
        return None if name is None else self.dataset.feature_table(ntype, name)

    def _labels_of(self, ntype: str) -> Tensor | None:
        if ntype not in self._labels:
            labels = self.dataset.labels(ntype)
            if labels is None:
                return None
            self._labels[ntype] = labels
        return self._labels[ntype]


class GraphStore(pyg.GraphStore):  # type: ignore[misc] # PyG's base has no types
    """Topology of a dataset as ``torch_geometric.data.GraphStore``: read-only, compressed by destination.

    Parameters
    ----------
    dataset : Dataset
        Whose graph; held in memory once, however many loaders and stores use it.
    """

    def __init__(self, dataset: Dataset):
        super().__init__()
        self.dataset = dataset
        self._topology = share_topology(dataset)

    def get_all_edge_attrs(self) -> list[EdgeAttr]:
        """List every edge type with its size."""
        return [
            EdgeAttr(etype, EdgeLayout.CSC, is_sorted=True, size=self._size(etype)) for etype in self.dataset.edge_types
        ]

    def _size(self, etype: EdgeType) -> tuple[int, int]:
        return self.dataset.num_nodes(etype[0]), self.dataset.num_nodes(etype[2])

    def _get_edge_index(self, edge_attr: EdgeAttr) -> tuple[Tensor, Tensor] | None:
        if edge_attr.layout != EdgeLayout.CSC or tuple(edge_attr.edge_type) not in self._topology.relations:
            return None
        relation = self._topology.relations[tuple(edge_attr.edge_type)]
        assert not callable(relation.indices)
        return torch.from_numpy(relation.indices).long(), torch.from_numpy(np.asarray(relation.indptr))

    def _put_edge_index(self, edge_index: Any, edge_attr: EdgeAttr) -> bool:
        raise ConfigError(f"{edge_attr.edge_type} cannot be put: a dataset on disk is read-only")

    def _remove_edge_index(self, edge_attr: EdgeAttr) -> bool:
        raise ConfigError(f"{edge_attr.edge_type} cannot be removed: a dataset on disk is read-only")


def _as_rows(index: Any, num_rows: int) -> Tensor:
    if isinstance(index, slice):
        return torch.arange(num_rows)[index]
    return torch.as_tensor(index, dtype=torch.int64).reshape(-1)


def _take(values: Tensor, index: Any) -> Tensor:
    return values if index is None else values[index]
