"""Passes that the stages are built from: prefix sums, compaction, stable sorting. Counts stay on the device."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gids.cuda.array import DeviceArray
from gids.cuda.session import Session

#: Bits of a digit of the radix sort: one round of two launches for each (kernels/entry_scan.cuh).
DIGIT_BITS = 8
_DIGITS = 1 << DIGIT_BITS


def full(session: Session, count: int, value: int) -> DeviceArray:
    """Return int64[count] of one value; a count that kernels read through a pointer is ``full(session, 1, n)``."""
    out = session.empty(count, np.int64)
    if count:
        session.launch("set_values", count, np.int64(value), np.int64(count), out)
    return out


class Prefix(NamedTuple):
    """Prefix sums as ``Prefix`` of kernels/entry_scan.cuh reads them.

    Attributes
    ----------
    within : int64[bound]
        Sums within tiles of a block's size.
    before : int64[tiles]
        What comes before each tile.
    total : int64[1]
        The sum of all.
    """

    within: DeviceArray
    before: DeviceArray
    total: DeviceArray


def empty_prefix(session: Session, bound: int, total: DeviceArray | None = None) -> Prefix:
    """Allocate prefix sums of at most ``bound`` values; ``total`` is where their sum goes, if it has a place."""
    tiles = max(1, -(-bound // session.block_threads))
    return Prefix(
        session.empty(bound, np.int64),
        session.empty(tiles, np.int64),
        session.empty(1, np.int64) if total is None else total,
    )


def turnstile(session: Session) -> DeviceArray:
    """Return the counter by which a launch knows its last block: zero between launches, one for each stream."""
    if "turnstile" not in session.scratch:
        session.scratch["turnstile"] = session.empty(1, np.uint32)
        session.fill(session.scratch["turnstile"], 0)
    return session.scratch["turnstile"]


def prefix_sums(
    session: Session, values: DeviceArray, count: DeviceArray, bound: int, total: DeviceArray | None = None
) -> Prefix:
    """Return the prefix sums of ``values[:count]``, with one launch."""
    prefix = empty_prefix(session, bound, total)
    session.launch("scan_tiles", bound, values, count, *prefix, turnstile(session))
    return prefix


def exclusive_scan(session: Session, values: DeviceArray, count: DeviceArray, bound: int) -> DeviceArray:
    """Return ``out[i] = sum(values[:i])`` for ``i <= count``.

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
    prefix = empty_prefix(session, bound + 1)
    session.launch("scan_tiles", bound, values, count, *prefix, turnstile(session))
    session.launch("scan_add", bound, prefix.before, prefix.total, count, prefix.within)
    return prefix.within


def compact(
    session: Session, flags: DeviceArray, count: DeviceArray, bound: int, limit: int | None = None
) -> tuple[DeviceArray, DeviceArray]:
    """Return the indices of the set flags in order (the first ``limit`` of them), and how many are set: int64[1]."""
    before = exclusive_scan(session, flags, count, bound)
    room = bound if limit is None else min(bound, limit)
    out = session.empty(room, np.int64)
    session.launch("compact_indices", bound, flags, before, count, np.int64(room), out)
    total = session.empty(1, np.int64)
    session.launch("take_values", 1, before, count, None, np.int64(1), total)
    return out, total


def sort_rounds(key_limit: int) -> int:
    """Return how many digits keys in ``[0, key_limit)`` have."""
    return -(-max(key_limit - 1, 0).bit_length() // DIGIT_BITS)


def sort_pairs(
    session: Session, keys: DeviceArray, values: DeviceArray, count: DeviceArray, bound: int, key_limit: int
) -> tuple[DeviceArray, DeviceArray]:
    """Sort pairs by key, stably; keys are in ``[0, key_limit)``. The inputs are overwritten."""
    tiles, gate = max(1, -(-bound // session.block_threads)), turnstile(session)
    other_keys, other_values = session.empty(bound, np.int64), session.empty(bound, np.int64)
    counts, totals = session.empty(_DIGITS * tiles, np.int64), session.empty(_DIGITS, np.int64)
    for turn in range(sort_rounds(key_limit)):
        shift = np.int32(turn * DIGIT_BITS)
        session.launch("radix_count", bound, keys, count, shift, counts, totals, gate)
        session.launch("radix_scatter", bound, keys, values, count, shift, counts, totals, other_keys, other_values)
        keys, values, other_keys, other_values = other_keys, other_values, keys, values
    return keys, values
