"""Small datasets for the tests."""

import torch

import gids
from gids import DatasetWriter
from gids.dataset.rows import as_tensor, read_rows


def toy(path, **options):
    """Four nodes, four edges, three features each."""
    with DatasetWriter(path, **options) as writer:
        writer.add_nodes(4)
        writer.add_features(torch.arange(12, dtype=torch.float32).view(4, 3))
        writer.add_csc([0, 1, 3, 3, 4], [1, 2, 3, 0])
        writer.add_labels([0, 1, -1, 2])
        writer.add_split("train", [0, 3])
    return gids.open(path)


def values(table):
    """Read a whole table."""
    return as_tensor(table, read_rows(table))
