"""Illinois Graph Benchmark directories: ``processed/<type>/node_feat.npy``, ``processed/<a>__<r>__<b>/edge_index.npy``.

The large and full sizes call raw float32 rows of 1024 values ``.npy``; they have no header.
"""

from __future__ import annotations

from pathlib import Path

from gids.convert.arrays import pair_edges
from gids.convert.graph import Edges, Graph, Nodes
from gids.convert.sources import npy_or_raw_rows, npy_rows
from gids.dataset import EDGE, NODE, EdgeType
from gids.dataset.in_place import is_npy
from gids.errors import ConfigError, DatasetError

DIM = 1024
#: Papers of the full dataset that have a label; they come first.
LABELLED = {19: 227_130_858, 2983: 157_675_969}
FULL_PAPERS = 269_346_174


def matches(path: Path) -> bool:
    """Whether a directory is an IGB dataset (of one size)."""
    return (_processed(path) / "paper__cites__paper" / "edge_index.npy").exists()


def _processed(path: Path) -> Path:
    return path / "processed" if (path / "processed").is_dir() else path


def read(path: Path, num_classes: int = 19) -> Graph:
    """Find the parts of an IGB or IGBH dataset.

    The published loader gives 60 % of the (labelled) papers to train, 20 % to validate and the rest to test, in their
    order; so does this. Self-loops, which that loader adds, are not stored.
    """
    if num_classes not in LABELLED:
        raise ConfigError(f"classes of IGB must be 19 or 2983 (got {num_classes})")
    root = _processed(path)
    nodes: dict[str, Nodes] = {}
    files: list[Path] = []
    for features in sorted(root.glob("*/node_feat.npy")):
        rows = npy_or_raw_rows(features, "float32", DIM)
        nodes[features.parent.name] = Nodes(rows.num_rows, {"feat": rows})
        files.append(features)
    if "paper" not in nodes:
        raise DatasetError(f"{root / 'paper' / 'node_feat.npy'} must be a file (there is none)")
    edges: dict[EdgeType, Edges] = {}
    for index in sorted(root.glob("*__*__*/edge_index.npy")):
        source, relation, destination = index.parent.name.split("__")
        for ntype in (source, destination):
            nodes.setdefault(ntype, Nodes(_mapped(root, ntype)))
        edges[source, relation, destination] = Edges(pair_edges(npy_rows(index)))
        files.append(index)
    _read_labels(root, nodes["paper"], num_classes, files)
    if list(nodes) == ["paper"] and list(edges) == [("paper", "cites", "paper")]:
        nodes, edges = {NODE: nodes["paper"]}, {EDGE: edges["paper", "cites", "paper"]}
    return Graph("igb", nodes, edges, files, {"num_classes": num_classes})


def _mapped(root: Path, ntype: str) -> int | None:
    """Count nodes without features by their id mapping, where it is there."""
    mapping = root / ntype / f"{ntype}_id_index_mapping.npy"
    return npy_rows(mapping).num_rows if mapping.exists() and is_npy(mapping) else None


def _read_labels(root: Path, papers: Nodes, num_classes: int, files: list[Path]) -> None:
    labels = root / "paper" / ("node_label_19.npy" if num_classes == 19 else "node_label_2K.npy")
    if not labels.exists():
        return
    import numpy as np

    count = papers.num_nodes or 0
    papers.labels = npy_or_raw_rows(labels, "float32", 1, count)
    papers.num_classes = num_classes
    files.append(labels)
    labelled = LABELLED[num_classes] if count == FULL_PAPERS else count
    first, second = int(labelled * 0.6), int(labelled * 0.6) + int(labelled * 0.2)
    papers.splits = {
        "train": np.arange(first),
        "val": np.arange(first, second),
        "test": np.arange(second, labelled),
    }
