"""A small homogeneous and a small heterogeneous dataset whose rows say which node or edge they belong to."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from gids.dataset import Dataset, DatasetWriter
from tests.rows import marked_rows

WRITES = ("author", "writes", "paper")
CITES = ("paper", "cites", "paper")
WRITTEN = ("paper", "written_by", "author")


def random_csc(num_src: int, num_dst: int, num_edges: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    degrees = np.bincount(generator.integers(0, num_dst, num_edges), minlength=num_dst)
    return np.concatenate([[0], np.cumsum(degrees)]), generator.integers(0, num_src, num_edges)


@pytest.fixture(scope="session")
def homogeneous(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    path: Path = tmp_path_factory.mktemp("pyg") / "homogeneous"
    indptr, indices = random_csc(900, 900, 7000, seed=1)
    with DatasetWriter(path) as writer:
        writer.add_nodes(900)
        writer.add_csc(indptr, indices)
        writer.add_features(marked_rows(900, 7, 0.0))
        writer.add_edge_features(marked_rows(7000, 3, 0.5))
        writer.add_labels(torch.arange(900) % 5)
        writer.add_split("train", torch.arange(0, 900, 3))
        return writer.finish()


@pytest.fixture(scope="session")
def heterogeneous(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    path: Path = tmp_path_factory.mktemp("pyg") / "heterogeneous"
    with DatasetWriter(path) as writer:
        writer.add_nodes(500, "paper")
        writer.add_nodes(300, "author")
        writer.add_csc(*random_csc(300, 500, 2000, seed=2), etype=WRITES)
        writer.add_csc(*random_csc(500, 500, 3000, seed=3), etype=CITES)
        writer.add_csc(*random_csc(500, 300, 2500, seed=4), etype=WRITTEN)
        writer.add_features(marked_rows(500, 6, 0.0), "paper")
        writer.add_features(marked_rows(300, 9, 0.25), "author")
        writer.add_edge_features(marked_rows(3000, 2, 0.5), CITES)
        writer.add_labels(torch.arange(500) % 4, "paper")
        writer.add_split("train", torch.arange(0, 500, 2), "paper")
        return writer.finish()
