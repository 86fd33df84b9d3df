"""Graphs of the frameworks, saved or in memory: DGL's, and PyG's ``Data``/``HeteroData`` (or a dict of tensors)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from gids.convert.edges import EdgeList
from gids.convert.graph import Edges, Graph, Nodes
from gids.convert.pickles import as_ids, load_torch
from gids.convert.sources import ArrayRows
from gids.dataset import EDGE, NODE, EdgeType
from gids.errors import ConfigError, DatasetError

_FEATURES = ("feat", "x", "features", "feature")
_LABELS = ("label", "labels", "y")
_SPLITS = {"train": "train", "val": "val", "valid": "val", "test": "test"}
_WEIGHTS = ("edge_weight", "weight", "w")


def matches_dgl(path: Path) -> bool:
    """Whether a file is named as DGL's graph files are."""
    return path.is_file() and path.suffix in (".bin", ".dgl")


def matches_pyg(path: Path) -> bool:
    """Whether a file is named as files of ``torch.save`` are."""
    return path.is_file() and path.suffix in (".pt", ".pth")


def read_dgl(path: Path) -> Graph:
    """Read a file of ``dgl.save_graphs`` with one graph; DGL loads all of it into memory."""
    try:
        import dgl
    except ImportError as error:
        raise DatasetError(f"reading {path} needs DGL (Python 3.10 and 3.11: pip install 'gids[dgl]')") from error
    try:
        graphs, _ = dgl.load_graphs(str(path))
    except dgl.DGLError as error:
        raise DatasetError(f"{path} must be a file of dgl.save_graphs ({str(error).splitlines()[0]})") from error
    if len(graphs) != 1:
        raise DatasetError(f"{path} must hold one graph (got {len(graphs)})")
    return from_dgl(graphs[0], path)


def from_dgl(graph: Any, path: Path | None = None) -> Graph:
    """Take a DGL graph apart.

    Parameters
    ----------
    graph : DGLGraph
        In memory.
    path : Path, optional
        The file it was read from.
    """
    graph, name = graph.cpu(), path or Path("graph")
    nodes = {ntype: _nodes(graph.num_nodes(ntype), graph.nodes[ntype].data, name) for ntype in graph.ntypes}
    edges: dict[EdgeType, Edges] = {}
    for etype in graph.canonical_etypes:
        source, destination = graph.edges(etype=etype, order="eid")
        edges[etype] = _edges(source, destination, graph.edges[etype].data, name)
    return Graph("dgl", nodes, edges, [] if path is None else [path])


def read_pyg(path: Path, trust: bool = False) -> Graph:
    """Read a file of ``torch.save``: a ``Data``, a ``HeteroData``, or a dict with their keys.

    A ``Data`` is a pickled object: PyG's own classes, which only hold tensors, are allowed; others need ``trust``.
    """
    return from_pyg(load_torch(path, trust, _pyg_classes()), path)


def from_pyg(data: Any, file: Path | None = None) -> Graph:
    """Take a PyG ``Data``, ``HeteroData`` or a dict with their keys apart.

    Parameters
    ----------
    data : object
        In memory.
    file : Path, optional
        The file it was read from.
    """
    path = file or Path("data")
    if isinstance(data, tuple) and data and hasattr(data[0], "to_dict"):
        data = data[0]  # what InMemoryDataset saves: (data, slices, ...)
    if hasattr(data, "metadata") and hasattr(data, "node_types"):
        return _pyg_hetero(data, path, file)
    values = data.to_dict() if hasattr(data, "to_dict") else data
    if not isinstance(values, Mapping) or "edge_index" not in values:
        raise DatasetError(
            f"{path} must hold a PyG Data, HeteroData or a dict with edge_index (got {type(data).__name__})"
        )
    edge_keys = {key for key in values if key.startswith("edge_") or _is_of_edges(data, key)}
    node_values = {key: value for key, value in values.items() if key not in edge_keys}
    num_nodes = values.get("num_nodes")
    if num_nodes is None:
        rows = [len(value) for key, value in node_values.items() if key in (*_FEATURES, *_LABELS)]
        num_nodes = rows[0] if rows else int(values["edge_index"].max()) + 1
    nodes = {NODE: _nodes(int(num_nodes), node_values, path)}
    source, destination = values["edge_index"]
    attributes = {key: values[key] for key in edge_keys - {"edge_index"}}
    edges: dict[EdgeType, Edges] = {EDGE: _edges(source, destination, attributes, path)}
    return Graph("pyg", nodes, edges, [] if file is None else [file])


def _is_of_edges(data: Any, key: str) -> bool:
    """Whether PyG takes an attribute for one of edges though its name does not say so, e.g. their ``time``."""
    return hasattr(data, "is_edge_attr") and key in data and bool(data.is_edge_attr(key))


def in_memory(graph: Any) -> Graph:
    """Take a graph in memory apart, whichever framework made it; says what can be converted."""
    module = type(graph).__module__.partition(".")[0]
    if module == "dgl" and hasattr(graph, "canonical_etypes"):
        return from_dgl(graph)
    if (module == "torch_geometric" and hasattr(graph, "to_dict")) or isinstance(graph, Mapping):
        return from_pyg(graph)
    raise ConfigError(
        "source must be a path, a PyG Data or HeteroData, a dict with edge_index, or a DGL graph "
        f"(got a {module}.{type(graph).__name__})"
    )


def _pyg_classes() -> tuple[Any, ...]:
    try:
        from torch_geometric.data import Data, HeteroData
        from torch_geometric.data.data import DataEdgeAttr, DataTensorAttr
        from torch_geometric.data.storage import BaseStorage, EdgeStorage, GlobalStorage, NodeStorage
    except ImportError:
        return ()
    return Data, HeteroData, DataEdgeAttr, DataTensorAttr, BaseStorage, EdgeStorage, GlobalStorage, NodeStorage


def _pyg_hetero(data: Any, path: Path, file: Path | None) -> Graph:
    nodes = {ntype: _nodes(int(data[ntype].num_nodes), data[ntype], path) for ntype in data.node_types}
    edges: dict[EdgeType, Edges] = {}
    for etype in data.edge_types:
        store = data[etype]
        source, destination = store.edge_index
        edges[etype] = _edges(source, destination, {k: v for k, v in store.items() if k != "edge_index"}, path)
    return Graph("pyg", nodes, edges, [] if file is None else [file])


def _nodes(num_nodes: int, data: Any, path: Path) -> Nodes:
    """Sort a node type's tensors into labels, splits and features; the main features are called ``feat``."""
    nodes = Nodes(num_nodes)
    columns = {key: value for key, value in data.items() if isinstance(value, torch.Tensor)}
    label = next((name for name in _LABELS if name in columns), None)
    if label is not None and len(columns[label]) == num_nodes:
        nodes.labels = ArrayRows(columns.pop(label), f"{path}[{label}]")
    for name, split in _SPLITS.items():
        if f"{name}_mask" in columns:  # DGL's files keep booleans as bytes
            nodes.splits[split] = as_ids(columns.pop(f"{name}_mask").bool(), f"{path}[{name}_mask]")
        if f"{name}_idx" in columns:
            nodes.splits[split] = as_ids(columns.pop(f"{name}_idx"), f"{path}[{name}_idx]")
    main = next((name for name in _FEATURES if name in columns), None)
    for key, value in columns.items():
        if value.ndim and len(value) == num_nodes and value.dtype != torch.bool:
            nodes.features["feat" if key == main else key] = ArrayRows(value, f"{path}[{key}]")
    return nodes


def _edges(source: torch.Tensor, destination: torch.Tensor, data: Any, path: Path) -> Edges:
    columns = {key: value for key, value in data.items() if isinstance(value, torch.Tensor) and value.ndim}
    weight = next((name for name in _WEIGHTS if name in columns and columns[name].numel() == len(source)), None)
    weights = None if weight is None else ArrayRows(columns.pop(weight).reshape(-1), f"{path}[{weight}]")
    name = f"{path}[edge_index]"
    topology = EdgeList(ArrayRows(source, name), ArrayRows(destination, name), weights)
    names = {"edge_attr": "feat"}
    features = {
        names.get(key, key.removeprefix("edge_")): ArrayRows(value, f"{path}[{key}]")
        for key, value in columns.items()
        if len(value) == len(source)
    }
    return Edges(topology, features)  # type: ignore[arg-type]
