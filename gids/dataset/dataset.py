"""A dataset that is open for reading: what it holds, where the rows are, and the small arrays themselves."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gids.dataset import manifest as manifests
from gids.dataset.manifest import EdgeEntry, EdgeType, NodeEntry, StoredTable
from gids.dataset.rows import as_tensor, read_rows
from gids.errors import ConfigError, DatasetError
from gids.table import RowTable

#: Node and edge type of a homogeneous graph, as in DGL.
NODE, EDGE = "_N", ("_N", "_E", "_N")


class Dataset:
    """A graph on disk. Made by :func:`gids.open`; reads the manifest, never the feature tables.

    Parameters
    ----------
    path : path-like
        The dataset's directory.

    Raises
    ------
    DatasetError
        Where the directory is no finished dataset, has a newer format, or a file is missing or has another size.
    """

    def __init__(self, path: str | os.PathLike[str]):
        self.path = Path(path).absolute()
        if not self.path.is_dir():
            raise DatasetError(f"{self.path} must be a directory with a {manifests.MANIFEST} (there is none)")
        try:
            text = (self.path / manifests.MANIFEST).read_text()
        except FileNotFoundError as error:
            raise DatasetError(
                f"{self.path} has no {manifests.MANIFEST}: not a gids dataset, or one whose writing did not finish"
            ) from error
        self._manifest = manifests.parse(text, self.path)
        self._indptr: dict[EdgeType, np.ndarray] = {}
        for stored in self._manifest.tables():
            _check_files(stored)

    def __reduce__(self) -> tuple[Any, ...]:
        return open_dataset, (str(self.path),)  # a process that is given a dataset opens it itself

    def __repr__(self) -> str:
        nodes = ", ".join(f"{ntype}: {node.num_nodes}" for ntype, node in self._manifest.nodes.items())
        edges = ", ".join(f"{'-'.join(etype)}: {edge.num_edges}" for etype, edge in self._manifest.edges.items())
        return f"Dataset({str(self.path)!r}, nodes={{{nodes}}}, edges={{{edges}}})"

    @property
    def id(self) -> str:
        """Identity of the contents: equal for equal data, whatever directory or stripes it is stored in."""
        return self._manifest.id

    @property
    def manifest(self) -> manifests.Manifest:
        """The parsed manifest, for tools that walk over every table."""
        return self._manifest

    @property
    def attributes(self) -> dict[str, Any]:
        """What the writer noted down about the origin of the data."""
        return dict(self._manifest.attributes)

    @property
    def scratch_dir(self) -> Path:
        """A directory for files derived from this dataset (rankings, profiles), made on first use.

        It lies in the dataset's directory, or in ``$GIDS_SCRATCH/<id>`` where that variable is set.
        """
        root = os.environ.get("GIDS_SCRATCH")
        scratch = Path(root) / self.id if root else self.path / "scratch"
        scratch.mkdir(parents=True, exist_ok=True)
        return scratch

    @property
    def node_types(self) -> list[str]:
        """Node types, in stored order."""
        return list(self._manifest.nodes)

    @property
    def edge_types(self) -> list[EdgeType]:
        """Edge types ``(source, relation, destination)``, in stored order."""
        return list(self._manifest.edges)

    def num_nodes(self, ntype: str | None = None) -> int:
        """Count the nodes of a type; of all types together for None."""
        if ntype is None:
            return sum(node.num_nodes for node in self._manifest.nodes.values())
        return self._node(ntype).num_nodes

    def num_edges(self, etype: EdgeType | None = None) -> int:
        """Count the edges of a type; of all types together for None."""
        if etype is None:
            return sum(edge.num_edges for edge in self._manifest.edges.values())
        return self._edge(etype).num_edges

    def indptr(self, etype: EdgeType | None = None) -> np.ndarray:
        """Offsets of in-edges, memory-mapped: those of node ``v`` are at ``indptr[v]..indptr[v + 1]``.

        Returns
        -------
        numpy.ndarray
            ``int64[num_nodes(destination) + 1]``, read-only. Checked once for order and bounds.
        """
        key = self._edge_type(etype)
        if key not in self._indptr:
            edge = self._manifest.edges[key]
            table = edge.indptr.table
            stripe = table.stripes[0]
            array = np.memmap(stripe.path, np.int64, "r", offset=stripe.data_offset, shape=(table.num_rows,))
            check_indptr(array, edge.num_edges, table.name)
            self._indptr[key] = array
        return self._indptr[key]

    def indices_table(self, etype: EdgeType | None = None) -> RowTable:
        """Source ids of all edges, by destination (``int32`` or ``int64``, dim 1)."""
        return self._edge(etype).indices.table

    def edge_weight_table(self, etype: EdgeType | None = None) -> RowTable | None:
        """Weights of edges, in the order of :meth:`indices_table`; None where there are none."""
        stored = self._edge(etype).weights
        return None if stored is None else stored.table

    def edge_ids_table(self, etype: EdgeType | None = None) -> RowTable | None:
        """Ids of edges in the data they came from, in the order of :meth:`indices_table`; None: position is the id."""
        stored = self._edge(etype).edge_ids
        return None if stored is None else stored.table

    def feature_names(self, ntype: str | None = None) -> list[str]:
        """Names of the feature tables of a node type."""
        return list(self._node(ntype).features)

    def feature_table(self, ntype: str | None = None, name: str = "feat") -> RowTable:
        """Feature rows of a node type, indexed by node id."""
        return _named(self._node(ntype).features, name, f"node type {self._node_type(ntype)!r}")

    def edge_feature_names(self, etype: EdgeType | None = None) -> list[str]:
        """Names of the feature tables of an edge type."""
        return list(self._edge(etype).features)

    def edge_feature_table(self, etype: EdgeType | None = None, name: str = "feat") -> RowTable:
        """Feature rows of an edge type, indexed by edge id."""
        return _named(self._edge(etype).features, name, f"edge type {self._edge_type(etype)!r}")

    def labels(self, ntype: str | None = None) -> torch.Tensor | None:
        """Read the labels of a node type: ``[num_nodes]`` or ``[num_nodes, dim]``; None where there are none.

        For None the only labelled node type is meant. A node without a label has -1 (integers) or NaN.
        """
        stored = self._node(self._labelled(ntype)).labels
        return None if stored is None else as_tensor(stored.table, read_rows(stored.table))

    @property
    def num_classes(self) -> int | None:
        """Classes of the (first) labelled node type; None where the labels are no classes or there are none."""
        return next((node.num_classes for node in self._manifest.nodes.values() if node.labels is not None), None)

    def split_names(self, ntype: str | None = None) -> list[str]:
        """Names of the splits of a node type (None: of the only type that has any)."""
        return list(self._node(self._split_type(ntype)).splits)

    def split(self, name: str, ntype: str | None = None) -> torch.Tensor:
        """Read the node ids of a split, ``int64[n]``.

        For None the only node type with splits is meant.
        """
        ntype = self._split_type(ntype)
        table = _named(self._node(ntype).splits, name, f"node type {ntype!r}", kind="split")
        ids = as_tensor(table, read_rows(table))
        if len(ids) and not (int(ids.min()) >= 0 and int(ids.max()) < self.num_nodes(ntype)):
            raise DatasetError(
                f"{table.name} must hold ids in [0, {self.num_nodes(ntype)}) (got {int(ids.min())} to {int(ids.max())})"
            )
        return ids

    def _node_type(self, ntype: str | None) -> str:
        if ntype is None:
            if len(self._manifest.nodes) != 1:
                raise ConfigError(f"ntype must be given: {self.path} has node types {', '.join(self.node_types)}")
            return self.node_types[0]
        if ntype not in self._manifest.nodes:
            raise ConfigError(f"ntype must be one of {', '.join(self.node_types)} (got {ntype!r})")
        return ntype

    def _node(self, ntype: str | None) -> NodeEntry:
        return self._manifest.nodes[self._node_type(ntype)]

    def _edge_type(self, etype: EdgeType | None) -> EdgeType:
        if etype is None:
            if len(self._manifest.edges) != 1:
                raise ConfigError(f"etype must be given: {self.path} has edge types {self.edge_types}")
            return self.edge_types[0]
        if tuple(etype) not in self._manifest.edges:
            raise ConfigError(f"etype must be one of {self.edge_types} (got {etype!r})")
        return etype

    def _edge(self, etype: EdgeType | None) -> EdgeEntry:
        return self._manifest.edges[self._edge_type(etype)]

    def _labelled(self, ntype: str | None) -> str | None:
        candidates = [name for name, node in self._manifest.nodes.items() if node.labels is not None]
        return candidates[0] if ntype is None and len(candidates) == 1 else ntype

    def _split_type(self, ntype: str | None) -> str | None:
        candidates = [name for name, node in self._manifest.nodes.items() if node.splits]
        return candidates[0] if ntype is None and len(candidates) == 1 else ntype


def open_dataset(path: str | os.PathLike[str]) -> Dataset:
    """Open a dataset for reading; also as :func:`gids.open`.

    Reads the manifest and checks that every file is there and has the size it was written with.
    """
    return Dataset(path)


def check_indptr(indptr: np.ndarray, num_edges: int, name: str) -> None:
    """Check that offsets begin at 0, never decrease and end at ``num_edges``."""
    if indptr[0] != 0 or indptr[-1] != num_edges:
        raise DatasetError(f"{name} must begin at 0 and end at {num_edges} (got {indptr[0]} and {indptr[-1]})")
    step = 1 << 22
    for begin in range(0, len(indptr) - 1, step):
        part = np.asarray(indptr[begin : begin + step + 1])
        decreasing = np.flatnonzero(part[1:] < part[:-1])
        if len(decreasing):
            node = begin + int(decreasing[0])
            raise DatasetError(f"{name} must not decrease (got {indptr[node]} then {indptr[node + 1]} at node {node})")


def _named(entries: dict[str, StoredTable], name: str, owner: str, kind: str = "feature table") -> RowTable:
    if name not in entries:
        raise ConfigError(f"{kind} of {owner} must be one of {', '.join(entries) or '(none stored)'} (got {name!r})")
    return entries[name].table


def _check_files(stored: StoredTable) -> None:
    table = stored.table
    for stripe, expected in zip(table.stripes, stored.file_bytes, strict=True):
        try:
            actual = stripe.path.stat().st_size
        except OSError as error:
            raise DatasetError(f"{stripe.path} of table {table.name} cannot be read: {error.strerror}") from error
        if actual != expected:
            raise DatasetError(
                f"{stripe.path} of table {table.name} must have {expected} bytes (got {actual}): "
                "truncated, resized or replaced after the dataset was written"
            )
        needed = stripe.data_offset + (stripe.num_rows - 1) * table.row_stride + table.row_bytes
        if stripe.num_rows and needed > actual:
            raise DatasetError(f"{stripe.path} of table {table.name} must have at least {needed} bytes (got {actual})")
