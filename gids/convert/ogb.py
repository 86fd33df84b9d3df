"""OGB node-property datasets as downloaded: ``raw/*.csv.gz``, or ``raw/*.npz`` for the large ones, and ``split/``."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from gids.convert.arrays import read_ids
from gids.convert.edges import EdgeList
from gids.convert.graph import Edges, Graph, Nodes, homogeneous
from gids.convert.pickles import as_ids, load_torch
from gids.convert.sources import NpzRows, RowSource, npz_keys
from gids.convert.text import TextRows, open_text, text_table
from gids.dataset import EdgeType
from gids.errors import DatasetError

#: Datasets whose files hold every edge once though the graph is undirected (``add_inverse_edge`` in OGB's master.csv).
ONE_WAY = ("products", "proteins")


def matches(path: Path) -> bool:
    """Whether a directory is an OGB dataset."""
    raw = path / "raw"
    return any(
        (raw / name).exists() for name in ("edge.csv.gz", "data.npz", "triplet-type-list.csv.gz", "edge_index_dict.npz")
    )


def read(path: Path) -> Graph:
    """Find the parts of an OGB dataset, in whichever of its four layouts it is."""
    raw = path / "raw"
    if (raw / "data.npz").exists():
        graph = _binary(raw)
    elif (raw / "edge_index_dict.npz").exists():
        graph = _binary_hetero(raw)
    elif (raw / "triplet-type-list.csv.gz").exists():
        graph = _csv_hetero(raw)
    else:
        graph = _csv(raw, any(name in path.name.lower() for name in ONE_WAY))
    _read_splits(path, graph)
    graph.files += sorted(file for file in raw.rglob("*") if file.is_file())
    return graph


def _count(path: Path) -> int:
    """Read a list of counts of graphs; node-property datasets have one."""
    counts = [int(value) for rows in TextRows(path, "int64").read(0, 1 << 20) for value in np.asarray(rows).reshape(-1)]
    return _one(counts, path)


def _one(counts: list[int] | np.ndarray, path: Path) -> int:
    if len(counts) != 1:
        raise DatasetError(f"{path} must count one graph (got {len(counts)})")
    return int(counts[0])


def _whole(path: Path, key: str) -> np.ndarray:
    return np.concatenate([np.asarray(rows).reshape(-1) for rows in NpzRows(path, key).read(0, 1 << 20)])


def _csv_columns(directory: Path, prefix: str, count: int) -> dict[str, RowSource]:
    """Open ``node-feat.csv.gz`` as ``feat`` and additional files such as ``node_year.csv.gz`` under their own names."""
    found: dict[str, RowSource] = {}
    if (directory / f"{prefix}-feat.csv.gz").exists():
        found["feat"] = TextRows(directory / f"{prefix}-feat.csv.gz", "float32", count)
    for file in sorted(directory.glob(f"{prefix}_*.csv.gz")):
        found[file.name.removeprefix(f"{prefix}_").removesuffix(".csv.gz")] = TextRows(file, None, count)
    return found


def _csv(raw: Path, one_way: bool) -> Graph:
    num_nodes, num_edges = _count(raw / "num-node-list.csv.gz"), _count(raw / "num-edge-list.csv.gz")
    nodes = Nodes(num_nodes, _csv_columns(raw, "node", num_nodes))
    if (raw / "node-label.csv.gz").exists():
        nodes.labels = TextRows(raw / "node-label.csv.gz", None, num_nodes)
    pairs = TextRows(raw / "edge.csv.gz", "int64", num_edges)
    edges = Edges(EdgeList(pairs, pairs, both_ways=one_way), _csv_columns(raw, "edge", num_edges))
    return Graph("ogb", *homogeneous(nodes, edges), attributes={"inverse_edges_added": one_way})


def _csv_hetero(raw: Path) -> Graph:
    counts = {ntype: int(count) for ntype, count in text_table(raw / "num-node-dict.csv.gz").items()}
    nodes = {
        ntype: Nodes(count, _csv_columns(raw / "node-feat" / ntype, "node", count)) for ntype, count in counts.items()
    }
    for ntype in counts:
        labels = raw / "node-label" / ntype / "node-label.csv.gz"
        if labels.exists():
            nodes[ntype].labels = TextRows(labels, None, counts[ntype])
    edges: dict[EdgeType, Edges] = {}
    with open_text(raw / "triplet-type-list.csv.gz") as file:
        triplets = [line.strip().split(",") for line in file.read().decode().splitlines() if line.strip()]
    for source, relation, destination in triplets:
        directory = raw / "relations" / f"{source}___{relation}___{destination}"
        num_edges = _count(directory / "num-edge-list.csv.gz")
        pairs = TextRows(directory / "edge.csv.gz", "int64", num_edges)
        edges[source, relation, destination] = Edges(EdgeList(pairs, pairs), _csv_columns(directory, "edge", num_edges))
    return Graph("ogb", nodes, edges)


def _binary(raw: Path) -> Graph:
    data = raw / "data.npz"
    nodes = Nodes(_one(_whole(data, "num_nodes_list"), data))
    features: dict[str, RowSource] = {}
    for key in npz_keys(data):
        if key.startswith("node_"):
            nodes.features[key.removeprefix("node_")] = NpzRows(data, key)
        elif key.startswith("edge_") and key != "edge_index":
            features[key.removeprefix("edge_")] = NpzRows(data, key)
    label = raw / "node-label.npz"
    if label.exists():
        nodes.labels = NpzRows(label, npz_keys(label)[0])
    edges = EdgeList(NpzRows(data, "edge_index", (0, 2)), NpzRows(data, "edge_index", (1, 2)))
    return Graph("ogb", *homogeneous(nodes, Edges(edges, features)))


def _binary_hetero(raw: Path) -> Graph:
    counts = raw / "num_nodes_dict.npz"
    nodes = {ntype: Nodes(_one(_whole(counts, ntype), counts)) for ntype in npz_keys(counts)}
    index = raw / "edge_index_dict.npz"
    edges: dict[EdgeType, Edges] = {}
    for key in npz_keys(index):
        source, relation, destination = key.split("___")
        pairs = EdgeList(NpzRows(index, key, (0, 2)), NpzRows(index, key, (1, 2)))
        edges[source, relation, destination] = Edges(pairs)
    for file in sorted(raw.glob("*.npz")):
        if file.name in ("num_nodes_dict.npz", "num_edges_dict.npz", "edge_index_dict.npz"):
            continue
        name = file.name.removesuffix(".npz").removesuffix("_dict")
        for key in npz_keys(file):
            rows = NpzRows(file, key)
            if file.name.endswith("-label.npz"):
                nodes[key].labels = rows
            elif name.startswith("node_"):
                nodes[key].features[name.removeprefix("node_")] = rows
            elif name.startswith("edge_"):
                source, relation, destination = key.split("___")
                edges[source, relation, destination].features[name.removeprefix("edge_")] = rows
    return Graph("ogb", nodes, edges)


def _read_splits(path: Path, graph: Graph) -> None:
    directories = sorted(entry for entry in (path / "split").glob("*") if entry.is_dir())
    if len(directories) > 1:
        names = ", ".join(directory.name for directory in directories)
        raise DatasetError(f"{path / 'split'} must hold one way to split (got {names}): remove or move the others")
    for directory in directories:
        saved = directory / "split_dict.pt"
        if saved.exists():
            _add_splits(graph, load_torch(saved), str(saved))
            graph.files.append(saved)
            continue
        for ntype, nodes in graph.nodes.items():
            home = directory / ntype if (directory / ntype).is_dir() else directory
            for name, key in (("train", "train"), ("valid", "val"), ("test", "test")):
                file = home / f"{name}.csv.gz"
                if file.exists():
                    nodes.splits[key] = read_ids(file)
                    graph.files.append(file)


def _add_splits(graph: Graph, splits: dict[str, object], name: str) -> None:
    for key, value in splits.items():
        per_type = value if isinstance(value, dict) else {next(iter(graph.nodes)): value}
        for ntype, ids in per_type.items():
            graph.nodes[ntype].splits[{"valid": "val"}.get(key, key)] = as_ids(ids, f"{name}[{key}]")
