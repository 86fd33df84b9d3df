"""The layout that Ginex and GNNDrive share: ``conf.json`` and raw ``indptr.dat``, ``indices.dat``, ``features.dat``, ``labels.dat``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from gids.convert.graph import Csc, Edges, Graph, Nodes, homogeneous
from gids.convert.pickles import as_ids, load_torch
from gids.convert.sources import FileRows
from gids.dataset.in_place import raw_rows
from gids.dataset.table_writer import dtype_name
from gids.errors import DatasetError

_SPLITS = {"train": "train", "valid": "val", "test": "test", "test-dev": "test"}


def matches(path: Path) -> bool:
    """Whether a directory has this layout."""
    return (path / "indptr.dat").exists() and any(path.glob("conf*.json"))


def read(path: Path) -> Graph:
    """Find the parts of a dataset in this layout; GNNDrive writes ``conf-<dim>.json`` and ``features-<dim>.dat``."""
    configurations = sorted(path.glob("conf*.json"))
    if len(configurations) != 1:
        names = ", ".join(file.name for file in configurations)
        raise DatasetError(f"{path} must hold one conf.json (got {names}): remove or move the others")
    conf_path = configurations[0]
    try:
        conf = json.loads(conf_path.read_text())
        num_nodes = int(conf["num_nodes"])
        suffix = conf_path.name.removeprefix("conf").removesuffix(".json")
        features = _rows(path / f"features{suffix}.dat", conf, "features")
        indptr = _rows(path / "indptr.dat", conf, "indptr")
        indices = _rows(path / "indices.dat", conf, "indices")
    except (ValueError, KeyError, TypeError) as error:
        raise DatasetError(
            f"{conf_path} must be the JSON that Ginex writes ({type(error).__name__}: {error})"
        ) from error
    nodes = Nodes(num_nodes, {"feat": features})
    files = [conf_path, *(Path(rows.name) for rows in (features, indptr, indices))]
    if (path / "labels.dat").exists():
        # The labels' shape may be [n] or [n, 1]; Ginex reads num_nodes values either way.
        labels = raw_rows(path / "labels.dat", _dtype(conf["labels_dtype"]), 1, num_nodes)
        nodes.labels = FileRows(labels)
        nodes.num_classes = int(conf["num_classes"]) if "num_classes" in conf else None
        files.append(path / "labels.dat")
    split = path / "split_idx.pth"
    if split.exists():
        saved = load_torch(split)
        nodes.splits = {_SPLITS[key]: as_ids(ids, f"{split}[{key}]") for key, ids in saved.items() if key in _SPLITS}
        files.append(split)
    return Graph("ginex", *homogeneous(nodes, Edges(Csc(indptr, indices))), files=files)


def _dtype(text: str) -> str:
    """Ginex writes ``str(array.dtype)`` of numpy or torch."""
    return dtype_name(text.removeprefix("torch."))


def _rows(path: Path, conf: dict[str, Any], name: str) -> FileRows:
    if not path.exists():
        raise DatasetError(f"{path} must be a file (there is none)")
    shape = [int(size) for size in conf[f"{name}_shape"]]
    dim = int(np.prod(shape[1:], dtype=np.int64))
    return FileRows(raw_rows(path, _dtype(conf[f"{name}_dtype"]), dim, shape[0]))
