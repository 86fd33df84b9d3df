"""Plain arrays: ``.npy`` features and labels, edges as ``.npy``, ``.npz``, ``.csv`` or ``.txt``, CSC as ``.npy``."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from gids.convert.edges import EdgeList
from gids.convert.graph import Csc, Edges, Graph, Nodes, homogeneous
from gids.convert.pickles import as_ids, load_torch
from gids.convert.sources import ArrayRows, ColumnRows, NpzRows, RowSource, halves, npy_rows, npz_keys
from gids.convert.text import TextRows
from gids.dataset.in_place import read_npy_header
from gids.errors import ConfigError, DatasetError
from gids.storage.system import read_into

_FEATURES = ("features.npy", "feat.npy", "node_feat.npy", "x.npy")
_LABELS = ("labels.npy", "label.npy", "node_label.npy", "y.npy")
_EDGES = (
    "edge_index.npy",
    "edges.npy",
    "edges.npz",
    "edges.csv",
    "edges.csv.gz",
    "edges.txt",
    "edges.txt.gz",
    "edges.tsv",
)
_SPLITS = {
    "train": ("train.npy", "train_idx.npy"),
    "val": ("val.npy", "valid.npy", "val_idx.npy"),
    "test": ("test.npy", "test_idx.npy"),
}


@dataclass
class ArrayFiles:
    """Which file is what; names that are not given are looked for in the directory under their usual names."""

    features: Path | None = None
    labels: Path | None = None
    edges: Path | None = None
    indptr: Path | None = None
    indices: Path | None = None
    edge_weights: Path | None = None
    edge_features: Path | None = None
    num_nodes: int | None = None
    splits: dict[str, Path] = field(default_factory=dict)


def matches(path: Path) -> bool:
    """Whether a path looks like plain arrays."""
    if path.is_file():
        return any(
            path.name.endswith(suffix) for suffix in (".csv", ".csv.gz", ".tsv", ".txt", ".txt.gz", ".npy", ".npz")
        )
    return any((path / name).exists() for name in (*_EDGES, "indptr.npy"))


def read(path: Path, files: ArrayFiles | None = None) -> Graph:
    """Find the arrays of a graph in a directory, or edges alone in a file."""
    files = files or ArrayFiles()
    if path.is_dir():
        files = _find(path, files)
    elif files.edges is None:
        files.edges = path
    nodes = Nodes(files.num_nodes)
    if files.features is not None:
        nodes.features["feat"] = open_rows(files.features)
    if files.labels is not None:
        nodes.labels = open_rows(files.labels)
    nodes.splits = {name: read_ids(file) for name, file in files.splits.items()}
    weight = None if files.edge_weights is None else open_rows(files.edge_weights)
    topology: EdgeList | Csc
    if files.indptr is not None and files.indices is not None:
        topology = Csc(open_rows(files.indptr), open_rows(files.indices), weight)
        if nodes.num_nodes is None:
            nodes.num_nodes = topology.indptr.num_rows - 1
    elif files.edges is not None:
        topology = edge_list(files.edges, weight)
    else:
        raise ConfigError(f"edges of {path} must be given: an edge list, or indptr and indices (found none)")
    features = {} if files.edge_features is None else {"feat": open_rows(files.edge_features)}
    given = [files.features, files.labels, files.edges, files.indptr, files.indices, files.edge_weights]
    used = [file for file in (*given, files.edge_features, *files.splits.values()) if file is not None]
    return Graph("arrays", *homogeneous(nodes, Edges(topology, features)), files=used)


def _find(directory: Path, given: ArrayFiles) -> ArrayFiles:
    def first(names: tuple[str, ...]) -> Path | None:
        return next((directory / name for name in names if (directory / name).exists()), None)

    explicit = given.edges or (given.indptr and given.indices)
    splits = {name: file for name, names in _SPLITS.items() if (file := first(names)) is not None}
    return ArrayFiles(
        features=given.features or first(_FEATURES),
        labels=given.labels or first(_LABELS),
        edges=given.edges or (None if explicit else first(_EDGES)),
        indptr=given.indptr or (None if explicit else first(("indptr.npy",))),
        indices=given.indices or (None if explicit else first(("indices.npy",))),
        edge_weights=given.edge_weights or first(("edge_weights.npy", "edge_weight.npy")),
        edge_features=given.edge_features or first(("edge_features.npy", "edge_feat.npy")),
        num_nodes=given.num_nodes,
        splits=splits | given.splits,
    )


def open_rows(path: Path) -> RowSource:
    """Open a file of rows by its ending."""
    if not path.exists():
        raise DatasetError(f"{path} must be a file (there is none)")
    if path.suffix == ".npy":
        return npy_rows(path)
    if path.suffix == ".npz":
        keys = npz_keys(path)
        if len(keys) != 1:
            raise DatasetError(f"{path} must hold one array (got {', '.join(keys)})")
        return NpzRows(path, keys[0])
    if path.suffix in (".pt", ".pth"):
        value = load_torch(path)
        return ArrayRows(value, str(path))
    return TextRows(path)


def edge_list(path: Path, weight: RowSource | None = None) -> EdgeList:
    """Open edges: ``[2, n]`` (sources, then destinations) or ``[n, 2]`` (pairs), or text lines of pairs.

    A third column of a text file is the weight.
    """
    if path.suffix == ".npz":
        keys = npz_keys(path)
        if {"src", "dst"} <= set(keys):
            return EdgeList(NpzRows(path, "src"), NpzRows(path, "dst"), weight)
        return pair_edges(NpzRows(path, "edge_index" if "edge_index" in keys else keys[0]), weight)
    pairs = open_rows(path)
    if not isinstance(pairs, TextRows):
        return pair_edges(pairs, weight)
    if pairs.dim == 3 and weight is None:
        table = TextRows(path, "float64", pairs.num_rows)  # exact for ids below 2^53
        return EdgeList(ColumnRows(table, 0, "int64"), ColumnRows(table, 1, "int64"), ColumnRows(table, 2, "float32"))
    return EdgeList(pairs, pairs, weight)


def pair_edges(rows: RowSource, weight: RowSource | None = None) -> EdgeList:
    """Take rows as edges, ``[2, n]`` or ``[n, 2]``; two by two is read as ``[2, n]``."""
    if rows.num_rows == 2:
        return EdgeList(*halves(rows), weight)
    if rows.dim == 2:
        return EdgeList(rows, rows, weight)
    raise DatasetError(f"{rows.name} must have shape [2, n] or [n, 2] (got {[rows.num_rows, rows.dim]})")


def read_ids(path: Path) -> np.ndarray:
    """Read a whole file of node ids, or a mask."""
    if path.suffix == ".npy":
        header = read_npy_header(path)
        ids = np.empty(header.shape, header.dtype, order="F" if header.fortran else "C")
        read_into(path, header.data_offset, ids.reshape(-1, order="A"))
        return as_ids(ids.astype(header.dtype.newbyteorder("="), copy=False), str(path))
    parts = [np.asarray(rows).reshape(-1) for rows in open_rows(path).read(0, 1 << 20)]
    return as_ids(np.concatenate(parts) if parts else np.empty(0, np.int64), str(path))
