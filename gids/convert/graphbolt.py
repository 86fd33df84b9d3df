"""GraphBolt's ``metadata.yaml``: nodes, edges (CSV or numpy), feature data and the first task's sets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from gids.convert.arrays import edge_list, open_rows, read_ids
from gids.convert.edges import EdgeList
from gids.convert.graph import Edges, Graph, Nodes
from gids.convert.sources import ArrayRows, RowSource
from gids.dataset import EDGE, NODE, EdgeType
from gids.errors import DatasetError

_SETS = {"train_set": "train", "validation_set": "val", "test_set": "test"}


def matches(path: Path) -> bool:
    """Whether a path is a ``metadata.yaml`` or a directory with one."""
    return path.name == "metadata.yaml" or (path / "metadata.yaml").exists()


def read(path: Path) -> Graph:
    """Find the parts that a ``metadata.yaml`` names."""
    yaml_path = path if path.is_file() else path / "metadata.yaml"
    document = _load(yaml_path)
    root, files = yaml_path.parent, [yaml_path]

    def file_of(entry: dict[str, Any]) -> Path:
        file = root / str(entry["path"])
        files.append(file)
        if not file.exists():
            raise DatasetError(f"{file}, which {yaml_path} names, must be a file (there is none)")
        return file

    try:
        graph = document["graph"]
        nodes = {_ntype(entry.get("type")): Nodes(int(entry["num"])) for entry in graph["nodes"]}
        edges = {_etype(entry.get("type")): Edges(_edges(file_of(entry))) for entry in graph["edges"]}
        for entry in document.get("feature_data") or []:
            rows = open_rows(file_of(entry))
            if entry["domain"] == "node":
                nodes[_ntype(entry.get("type"))].features[entry["name"]] = rows
            else:
                edges[_etype(entry.get("type"))].features[entry["name"]] = rows
        task = (document.get("tasks") or [{}])[0]
        for set_name, split in _SETS.items():
            for entry in task.get(set_name) or []:
                _read_set(nodes, entry, split, {part["name"]: file_of(part) for part in entry["data"]}, task)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise DatasetError(
            f"{yaml_path} must follow GraphBolt's specification ({type(error).__name__}: {error})"
        ) from error
    return Graph("graphbolt", nodes, edges, files, {"dataset_name": str(document.get("dataset_name", ""))})


def _load(path: Path) -> dict[str, Any]:
    try:
        import yaml
    except ImportError as error:
        raise DatasetError(f"reading {path} needs PyYAML: pip install 'gids[graphbolt]'") from error
    try:
        document = yaml.safe_load(path.read_text())
    except yaml.YAMLError as error:
        raise DatasetError(f"{path} must be YAML ({error})") from error
    if not isinstance(document, dict) or "graph" not in document:
        what = (
            "names preprocessed files; give the one they were made from"
            if "graph_topology" in (document or {})
            else "names no graph"
        )
        raise DatasetError(f"{path} {what}")
    return document


def _ntype(name: str | None) -> str:
    return name or NODE


def _etype(name: str | None) -> EdgeType:
    if not name:
        return EDGE
    source, relation, destination = name.split(":")
    return source, relation, destination


def _edges(path: Path) -> EdgeList:
    return edge_list(path)


def _read_set(
    nodes: dict[str, Nodes], entry: dict[str, Any], split: str, data: dict[str, Path], task: dict[str, Any]
) -> None:
    """Take the seeds of a node task as a split, and their labels as labels of these nodes."""
    ntype = _ntype(entry.get("type"))
    if ntype not in nodes:
        return  # seeds of an edge task: pairs, which are no node split
    seeds_path = data.get("seeds", data.get("seed_nodes"))
    if seeds_path is None or open_rows(seeds_path).dim != 1:
        return
    node = nodes[ntype]
    seeds = read_ids(seeds_path)
    node.splits[split] = seeds
    if "labels" in data:
        _add_labels(node, seeds, open_rows(data["labels"]), ntype)
        node.num_classes = int(task["num_classes"]) if "num_classes" in task else node.num_classes


def _add_labels(node: Nodes, seeds: np.ndarray, labels: RowSource, ntype: str) -> None:
    if labels.num_rows != len(seeds):
        raise DatasetError(f"{labels.name} must have {len(seeds)} labels (got {labels.num_rows})")
    num_nodes = node.num_nodes or 0
    if len(seeds) and (seeds.min() < 0 or seeds.max() >= num_nodes):
        raise DatasetError(f"seeds of {ntype} must be in [0, {num_nodes}) (got {seeds.min()} to {seeds.max()})")
    values = np.concatenate([np.asarray(rows) for rows in labels.read(0, 1 << 20)])
    if node.labels is None:
        empty = -1 if values.dtype.kind in "iu" else np.nan
        dtype = np.int64 if values.dtype.kind in "iu" else values.dtype
        node.labels = ArrayRows(np.full((num_nodes, labels.dim), empty, dtype), f"labels of {ntype}")
    np.asarray(node.labels.array)[seeds] = values  # type: ignore[attr-defined]
