"""A dataset that is open for reading: what it holds, where the rows are, and the small arrays themselves."""

from __future__ import annotations

import errno
import html
import os
import weakref
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gids.dataset import manifest as manifests
from gids.dataset.knowledge import Knowledge
from gids.dataset.manifest import EdgeEntry, NodeEntry, StoredTable
from gids.dataset.rows import StoredOffsets, as_tensor, load_offsets, offset_parts, read_rows
from gids.dataset.scratch import scratch_directory
from gids.errors import ConfigError, DatasetError, StorageError
from gids.storage.system import read_file
from gids.table import RowTable
from gids.types import EdgeType

_CHECK_STEP = 1 << 22  # offsets that are compared at a time


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

    Notes
    -----
    Arguments that methods share:

    ntype : str, optional
        Node type; may be left out where only one can be meant.
    etype : EdgeType, optional
        Edge type, ``(source, relation, destination)``; may be left out where there is only one.
    name : str
        Of a feature table or a split.
    """

    def __init__(self, path: str | os.PathLike[str]):
        self.path = Path(path).absolute()
        if not self.path.is_dir():
            found = (
                "it is a file: `gids convert --help` says what makes a dataset of it"
                if self.path.exists()
                else "there is none"
            )
            raise DatasetError(f"{self.path} must be a directory with a {manifests.MANIFEST} ({found})")
        try:
            data = read_file(self.path / manifests.MANIFEST)
        except StorageError as error:
            if error.errno != errno.ENOENT:
                raise
            raise DatasetError(
                f"{self.path} has no {manifests.MANIFEST}: not a gids dataset, or one whose writing did not finish"
            ) from error
        self._manifest = manifests.parse(data, self.path)
        # The memory of offsets that somebody holds: a topology and a ranking share one copy.
        self._checked: set[EdgeType] = set()
        self._offsets: weakref.WeakValueDictionary[EdgeType, np.ndarray] = weakref.WeakValueDictionary()
        for stored in self._manifest.tables():
            _check_files(stored)

    def __reduce__(self) -> tuple[Any, ...]:
        return open_dataset, (str(self.path),)  # a process that is given a dataset opens it itself

    def __repr__(self) -> str:
        nodes, edges = self._manifest.nodes, self._manifest.edges
        counts = [f"{self.num_nodes():,} nodes" + (f" of {len(nodes)} types" if len(nodes) > 1 else "")]
        counts.append(f"{self.num_edges():,} edges" + (f" of {len(edges)} types" if len(edges) > 1 else ""))
        known = self._manifest.knowledge
        counts += [] if known is None else [f"{known.num_triples:,} triples"]
        return f"Dataset({str(self.path)!r}, {', '.join(counts)})"

    def _repr_html_(self) -> str:
        def row(kind: str, count: int, tables: Iterable[StoredTable], more: str) -> str:
            shapes = ", ".join(
                f"{stored.table.name.rpartition('/')[2]} {stored.table.dtype}[{stored.table.dim}]" for stored in tables
            )
            return (
                "<tr>"
                + "".join(f"<td>{html.escape(text)}</td>" for text in (kind, f"{count:,}", shapes, more))
                + "</tr>"
            )

        rows = []
        for ntype, node in self._manifest.nodes.items():
            labels = (
                [] if node.labels is None else ["labels" if node.num_classes is None else f"{node.num_classes} classes"]
            )
            more = ", ".join([*labels, *(f"{name} {stored.table.num_rows:,}" for name, stored in node.splits.items())])
            rows.append(row(ntype, node.num_nodes, node.features.values(), more))
        for etype, edge in self._manifest.edges.items():
            more = "" if edge.weights is None else "weights"
            rows.append(row(" → ".join(etype), edge.num_edges, edge.features.values(), more))
        heads = "".join(f"<th>{text}</th>" for text in ("type", "count", "features", "labels and splits"))
        table = f"<table><thead><tr>{heads}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
        return f"<p><code>{html.escape(str(self.path))}</code></p>{table}"

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

        It is ``$GIDS_SCRATCH/<id>`` where that variable is set. Otherwise it is the first of these that can be written:
        ``scratch`` in the dataset's directory, ``$XDG_CACHE_HOME/gids/scratch/<id>`` (by default under ``~/.cache``), a
        temporary directory that goes with the process.
        """
        return scratch_directory(self.path, self.id)

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
        """Read the offsets of in-edges: those of node ``v`` are at ``indptr[v]..indptr[v + 1]``.

        Returns
        -------
        numpy.ndarray
            ``int64[num_nodes(destination) + 1]``, read-only, in memory; shared with whoever holds them already. Checked
            for order and bounds.
        """
        key = self._edge_type(etype)
        memory = self._offsets.get(key)
        if memory is None:
            edge = self._manifest.edges[key]
            offsets = load_offsets(edge.indptr.table)
            check_indptr([offsets], edge.num_edges, edge.indptr.table.name)
            memory = offsets.base
            assert memory is not None  # see load_offsets
            self._offsets[key] = memory
        array = memory.view(np.int64)
        array.flags.writeable = False
        return array

    def stored_offsets(self, etype: EdgeType | None = None) -> StoredOffsets:
        """Return the offsets of in-edges where they are, for who reads them in pieces; checked once, in pieces too."""
        key = self._edge_type(etype)
        edge = self._manifest.edges[key]
        if key not in self._checked:
            check_indptr(offset_parts(edge.indptr.table), edge.num_edges, edge.indptr.table.name)
            self._checked.add(key)
        return StoredOffsets(edge.indptr.table)

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

    def original_ids(self, ntype: str | None = None) -> np.ndarray | None:
        """Read what the nodes of a relabelled type were called: ``int64[num_nodes]``; None where they were not.

        Node ``v`` of this dataset is node ``original_ids()[v]`` of the one that `gids reorder` read.
        """
        stored = self._node(ntype).original_ids
        return None if stored is None else as_tensor(stored.table, read_rows(stored.table)).numpy()

    @property
    def num_classes(self) -> int | None:
        """Classes of the (first) labelled node type; None where the labels are no classes or there are none."""
        return next((node.num_classes for node in self._manifest.nodes.values() if node.labels is not None), None)

    @property
    def num_features(self) -> int | dict[str, int]:
        """Values in a row of the features (of ``feat``, or of the first table): by node type where there are several.

        Types without features are left out; 0 where a graph with one type has none.
        """
        dims = {ntype: _main_dim(node) for ntype, node in self._manifest.nodes.items()}
        if len(dims) == 1:
            return next(iter(dims.values())) or 0
        return {ntype: dim for ntype, dim in dims.items() if dim is not None}

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

    @property
    def knowledge(self) -> Knowledge:
        """The triples of a knowledge graph; DatasetError where there are none."""
        if self._manifest.knowledge is None:
            raise DatasetError(f"{self.path} must hold triples, as gids convert kg writes them (it holds none)")
        return Knowledge(self._manifest.knowledge, self.num_nodes(self._manifest.knowledge.entity_type))

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


def _main_dim(node: NodeEntry) -> int | None:
    stored = node.features.get("feat", next(iter(node.features.values()), None))
    return None if stored is None else stored.table.dim


def open_dataset(path: str | os.PathLike[str]) -> Dataset:
    """Open a dataset for reading; also as :func:`gids.open`.

    Reads the manifest and checks that every file is there and has the size it was written with.

    Parameters
    ----------
    path : path-like
        The dataset's directory.
    """
    return Dataset(path)


def check_indptr(parts: Iterable[np.ndarray], num_edges: int, name: str) -> None:
    """Check that offsets, given in consecutive parts, begin at 0, never decrease and end at ``num_edges``."""
    first, last, node = None, 0, 0
    for whole in parts:
        for begin in range(0, len(whole), _CHECK_STEP):
            part = whole[begin : begin + _CHECK_STEP]
            if first is None:
                first = last = int(part[0])
            previous = np.concatenate([[last], part[:-1]])
            decreasing = np.flatnonzero(part < previous)
            if len(decreasing):
                at = int(decreasing[0])
                raise DatasetError(
                    f"{name} must not decrease (got {previous[at]} then {part[at]} at node {node + at - 1})"
                )
            last, node = int(part[-1]), node + len(part)
    if first != 0 or last != num_edges:
        raise DatasetError(f"{name} must begin at 0 and end at {num_edges} (got {first} and {last})")


def _named(entries: dict[str, StoredTable], name: str, owner: str, kind: str = "feature table") -> RowTable:
    if name not in entries:
        raise ConfigError(f"{kind} of {owner} must be one of {', '.join(entries) or '(none stored)'} (got {name!r})")
    return entries[name].table


def _check_files(stored: StoredTable) -> None:
    table = stored.table
    for number, (stripe, expected) in enumerate(zip(table.stripes, stored.file_bytes, strict=True)):
        try:
            actual = stripe.path.stat().st_size
        except OSError as error:
            raise DatasetError(f"{stripe.path} of table {table.name} cannot be read: {error.strerror}") from error
        if actual != expected:
            raise DatasetError(
                f"{stripe.path} of table {table.name} must have {expected} bytes (got {actual}): "
                "truncated, resized or replaced after the dataset was written"
            )
        needed = table.file_bytes(number)
        if needed > actual:
            raise DatasetError(f"{stripe.path} of table {table.name} must have at least {needed} bytes (got {actual})")
