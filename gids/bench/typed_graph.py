"""A graph of two node types for benchmarks: papers cite papers, authors write them; popular ones are drawn more often."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from gids.bench.power_law import popular_nodes
from gids.dataset import DatasetWriter, EdgeType
from gids.generate.tables import feature_rows, fill
from gids.table import DTYPES

WRITES: EdgeType = ("author", "writes", "paper")
CITES: EdgeType = ("paper", "cites", "paper")
WRITTEN: EdgeType = ("paper", "written by", "author")
#: In-edges of a node, by edge type.
DEGREES = {WRITES: 4, CITES: 12, WRITTEN: 6}
#: The type that has labels and seeds.
TARGET = "paper"
CLASSES = 16
TRAIN_SHARE = 0.1


def make_typed_graph(path: Path, papers: int, dim: int, seed: int = 0) -> None:
    """Write the dataset: so many papers and half as many authors, ``dim`` float32 features each, unless it is there."""
    if (path / "manifest.json").exists():
        return
    counts = {"paper": papers, "author": papers // 2}
    rng = np.random.default_rng(seed)
    with DatasetWriter(path, overwrite=True) as writer:
        for ntype, count in counts.items():
            writer.add_nodes(count, ntype)
        for etype, degree in DEGREES.items():
            label = rng.permutation(counts[etype[0]]).astype(np.int32)
            indptr = torch.arange(counts[etype[2]] + 1) * degree
            writer.add_csc(indptr, popular_nodes(rng, label, int(indptr[-1])), etype)
        labels = {ntype: rng.integers(0, CLASSES, count) for ntype, count in counts.items()}
        writer.add_labels(labels[TARGET], TARGET, num_classes=CLASSES)
        writer.add_split("train", np.sort(rng.permutation(papers)[: int(papers * TRAIN_SHARE)]), TARGET)
        for number, (ntype, of_type) in enumerate(labels.items()):

            def rows(
                begin: int, end: int, number: int = number, of_type: npt.NDArray[np.int64] = of_type
            ) -> torch.Tensor:
                return feature_rows(begin, of_type[begin:end], dim, seed + number, 1.5, "float32", writer.pool)

            fill(writer.features("float32", dim, ntype), rows, row_bytes=dim * DTYPES["float32"].itemsize)
