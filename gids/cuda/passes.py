"""Passes that the stages are built from: prefix sums, compaction, stable sorting. Counts stay on the device."""

from __future__ import annotations

import numpy as np

from gids.cuda.array import DeviceArray
from gids.cuda.session import Session, grid_blocks

_DIGIT_BITS, _DIGITS = 4, 16  # of kernels/entry_scan.cuh


def full(session: Session, count: int, value: int) -> DeviceArray:
    """Give int64[count] of one value; a count that kernels read through a pointer is ``full(session, 1, n)``."""
    out = session.empty(count, np.int64)
    if count:
        session.launch("set_values", count, np.int64(value), np.int64(count), out)
    return out


def exclusive_scan(session: Session, values: DeviceArray, count: DeviceArray, bound: int) -> DeviceArray:
    """Give ``out[i] = sum(values[:i])`` for ``i <= count``.

    Parameters
    ----------
    session : Session
        Where.
    values : DeviceArray
        int64[bound].
    count : DeviceArray
        int64[1], at most ``bound``.
    bound : int
        Known to the host: what is allocated.
    """
    threads = session.block_threads
    tiles = max(1, -(-bound // threads))
    out = session.empty(bound + 1, np.int64)
    sums = session.empty(tiles + 1, np.int64)
    blocks = grid_blocks(tiles * threads, 1, threads)
    session.launch("scan_tiles", 0, values, count, np.int64(tiles), out, sums, blocks=blocks)
    session.launch("scan_sums", 0, sums, np.int64(tiles), blocks=1)
    session.launch("scan_add", 0, sums, count, np.int64(tiles), out, blocks=blocks)
    return out


def compact(
    session: Session, flags: DeviceArray, count: DeviceArray, bound: int, limit: int | None = None
) -> tuple[DeviceArray, DeviceArray]:
    """Give the indices of the set flags in order (the first ``limit`` of them), and how many are set: int64[1]."""
    before = exclusive_scan(session, flags, count, bound)
    room = bound if limit is None else min(bound, limit)
    out = session.empty(room, np.int64)
    session.launch("compact_indices", bound, flags, before, count, np.int64(room), out)
    total = session.empty(1, np.int64)
    session.launch("take_values", 1, before, count, np.int64(1), total)
    return out, total


def sort_pairs(
    session: Session, keys: DeviceArray, values: DeviceArray, count: DeviceArray, bound: int, key_limit: int
) -> tuple[DeviceArray, DeviceArray]:
    """Sort pairs by key, stably; keys are in ``[0, key_limit)``. The inputs are overwritten."""
    threads = session.block_threads
    tiles = max(1, -(-bound // threads))
    blocks = grid_blocks(tiles * threads, 1, threads)
    other_keys, other_values = session.empty(bound, np.int64), session.empty(bound, np.int64)
    counts = session.empty(_DIGITS * tiles, np.int64)
    total = full(session, 1, _DIGITS * tiles)
    for shift in range(0, max(key_limit - 1, 0).bit_length(), _DIGIT_BITS):
        session.launch("radix_count", 0, keys, count, np.int64(tiles), np.int32(shift), counts, blocks=blocks)
        starts = exclusive_scan(session, counts, total, _DIGITS * tiles)
        session.launch(
            "radix_scatter", 0, keys, values, count, np.int64(tiles), np.int32(shift), starts, other_keys, other_values,
            blocks=blocks,
        )  # fmt: skip
        keys, values, other_keys, other_values = other_keys, other_values, keys, values
    return keys, values
