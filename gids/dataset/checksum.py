"""Checksums of chunks of rows: XXH3 says that a chunk is damaged, two sums of row digests say which row it is."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import xxhash

from gids import _native

#: One record per chunk. ``hash`` is XXH3-64 of the chunk's row bytes (padding is not part of a row).
RECORD = np.dtype([("hash", "<u8"), ("sum", "<u8"), ("weighted", "<u8")])

#: Bytes of rows that share a record: 24 bytes in 64 KiB are 0.04 % of a dataset.
CHUNK_BYTES = 64 << 10


def chunk_rows(row_bytes: int) -> int:
    """Rows of a chunk for rows of this size; at least one."""
    return max(1, CHUNK_BYTES // row_bytes)


def chunk_records(rows: np.ndarray, rows_per_chunk: int, pool: _native.ThreadPool) -> np.ndarray:
    """Compute the records of consecutive chunks.

    Parameters
    ----------
    rows : numpy.ndarray
        ``uint8[n, row_bytes]``, contiguous, beginning at a chunk boundary.
    """
    num_rows, row_bytes = rows.shape
    records = np.empty(-(-num_rows // rows_per_chunk), RECORD)
    flat = rows.reshape(-1)
    sums = np.empty(2 * len(records), np.uint64)
    _native.row_sums(flat, row_bytes, rows_per_chunk, sums, pool)
    records["sum"], records["weighted"] = sums[0::2], sums[1::2]
    step = rows_per_chunk * row_bytes
    records["hash"] = [xxhash.xxh3_64_intdigest(flat.data[i : i + step]) for i in range(0, len(flat), step)]
    return records


def damaged_row(expected: np.void, actual: np.void, num_rows: int) -> int | None:
    """Find the one row of a chunk whose change explains both sums; None where more than one row changed."""
    change = np.uint64((int(actual["sum"]) - int(expected["sum"])) % 2**64)
    weighted = np.uint64((int(actual["weighted"]) - int(expected["weighted"])) % 2**64)
    if change == 0:
        return None
    rows = np.flatnonzero(np.arange(1, num_rows + 1, dtype=np.uint64) * change == weighted)
    return int(rows[0]) if len(rows) == 1 else None


def file_digest(path: Path) -> str:
    """XXH3-128 of a file, as hexadecimal text."""
    digest = xxhash.xxh3_128()
    with path.open("rb") as file:
        while block := file.read(1 << 22):
            digest.update(block)
    return str(digest.hexdigest())
