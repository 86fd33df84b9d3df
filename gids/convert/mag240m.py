"""MAG240M of OGB-LSC: ``meta.pt``, ``split_dict.pt``, ``processed/paper/node_feat.npy`` and edge indices by relation."""

from __future__ import annotations

from pathlib import Path

from gids.convert.arrays import pair_edges
from gids.convert.graph import Edges, Graph, Nodes
from gids.convert.pickles import as_ids, load_torch
from gids.convert.sources import npy_rows
from gids.dataset import EdgeType
from gids.errors import DatasetError

_SPLITS = {"valid": "val"}


def matches(path: Path) -> bool:
    """Whether a directory is MAG240M."""
    return (path / "meta.pt").exists() and (path / "processed" / "paper").is_dir()


def read(path: Path) -> Graph:
    """Find the parts of MAG240M; only papers have features, in 16 bits."""
    meta = load_torch(path / "meta.pt")
    if not isinstance(meta, dict) or "paper" not in meta:
        raise DatasetError(f"{path / 'meta.pt'} must hold the numbers of papers, authors and institutions")
    nodes = {ntype: Nodes(int(count)) for ntype, count in meta.items() if ntype != "num_classes"}
    files = [path / "meta.pt"]
    papers, home = nodes["paper"], path / "processed" / "paper"
    papers.num_classes = int(meta["num_classes"]) if "num_classes" in meta else None
    for name, file in (("feat", "node_feat.npy"), ("year", "node_year.npy")):
        if (home / file).exists():
            papers.features[name] = npy_rows(home / file)
            files.append(home / file)
    if (home / "node_label.npy").exists():
        papers.labels = npy_rows(home / "node_label.npy")
        files.append(home / "node_label.npy")
    if (path / "split_dict.pt").exists():
        for key, ids in load_torch(path / "split_dict.pt").items():
            papers.splits[_SPLITS.get(key, key)] = as_ids(ids, f"{path / 'split_dict.pt'}[{key}]")
        files.append(path / "split_dict.pt")
    edges: dict[EdgeType, Edges] = {}
    for index in sorted((path / "processed").glob("*___*___*/edge_index.npy")):
        source, relation, destination = index.parent.name.split("___")
        edges[source, relation, destination] = Edges(pair_edges(npy_rows(index)))
        files.append(index)
    return Graph("mag240m", nodes, edges, files)
