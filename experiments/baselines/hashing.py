"""Checksums of rows. Needs NumPy alone: contenders with an interpreter of their own import it by its place.

A row's hash is the sum of its 64-bit words times fixed odd numbers, modulo 2^64; a batch's is the sum of its rows'
hashes times their odd positions, so that a row in another's place is noticed.
"""

from __future__ import annotations

import numpy as np

CHUNK_ROWS = 8192


def row_hashes(rows: np.ndarray) -> np.ndarray:
    """Hash every row of an array ``[n, dim]`` of any dtype: uint64 ``[n]``."""
    data = np.ascontiguousarray(rows).view(np.uint8).reshape(len(rows), -1)
    if data.shape[1] % 8:
        data = np.pad(data, ((0, 0), (0, -data.shape[1] % 8)))
    words = data.view(np.uint64)
    factors = np.random.default_rng(20240101).integers(0, 1 << 63, words.shape[1], dtype=np.uint64) * 2 + 1
    return (words * factors).sum(axis=1, dtype=np.uint64)


def combine(hashes: np.ndarray) -> int:
    """Join hashes in order."""
    return int((hashes * (2 * np.arange(len(hashes), dtype=np.uint64) + 1)).sum(dtype=np.uint64))


def batch_hash(x: np.ndarray) -> int:
    """Hash delivered rows, a few at a time: a memory limit may hold."""
    parts = [row_hashes(x[start : start + CHUNK_ROWS]) for start in range(0, len(x), CHUNK_ROWS)]
    return combine(np.concatenate(parts))
