"""The page cache before a contender's first batch. Needs the standard library alone, as ``hashing.py`` does, and why."""

from __future__ import annotations

import os

CHUNK_BYTES = 4 << 20


def fill(path: str | os.PathLike[str]) -> None:
    """Read a file from its end to its beginning, so that as much of it is cached as the memory limit lets stay.

    Stands in for the thousand iterations with which paper 004 warms the page cache: batches alone would take minutes to
    fill it. What is read last stays, and rows with low numbers are the busiest of an R-MAT graph: kind to those who use it.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        size = os.fstat(descriptor).st_size
        for offset in range((size - 1) // CHUNK_BYTES * CHUNK_BYTES, -1, -CHUNK_BYTES):
            os.pread(descriptor, CHUNK_BYTES, offset)
    finally:
        os.close(descriptor)
