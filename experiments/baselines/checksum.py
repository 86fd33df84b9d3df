"""The checksum of every row of a dataset, from one plain sequential read that shares nothing with the readers it checks."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import gids
from experiments.baselines.hashing import CHUNK_ROWS, row_hashes
from gids.table import RowTable


def hashes_path(dataset: gids.Dataset) -> Path:
    """Where the hashes are kept, beside the dataset; made on first use."""
    path = dataset.scratch_dir / "row-hashes.npy"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        np.save(path, _hash_file(dataset.feature_table()))
    return path


def _hash_file(table: RowTable) -> np.ndarray:
    (stripe,) = table.stripes
    hashes = []
    with stripe.path.open("rb") as file:
        file.seek(stripe.data_offset)
        for start in range(0, table.num_rows, CHUNK_ROWS):
            count = min(CHUNK_ROWS, table.num_rows - start)
            raw = np.frombuffer(file.read(count * table.row_stride), np.uint8).reshape(count, table.row_stride)
            hashes.append(row_hashes(raw[:, : table.row_bytes]))
    return np.concatenate(hashes)
