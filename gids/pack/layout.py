"""Where every row goes: hot rows, segments with a disk cache, chunks of batches. Moves no bytes and knows no files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from gids._native import NEVER_COUNTED, mark_rows
from gids.errors import ConfigError
from gids.units import format_bytes

Ids = NDArray[Any]  # ascending row ids of one batch, uint32 or int64
Positions = NDArray[np.int64]

#: Hash functions of the order within a segment's cache; more than this many rarely break a tie.
HASHES = 8
#: Rows with one signature that take at least so much are written as they come; fewer are held until the pass ends.
APPENDED_BYTES = 256 << 10
PLACED_BYTES = 1 << 20
#: Rows whose uses are sorted into a histogram at once.
COUNTED_ROWS = 4 << 20
PAGE_BYTES = 4096


class Batches(Protocol):
    """Rows of several batches, which may be read anew each time they are gone through: all of them can be many."""

    def __len__(self) -> int:
        """Count the batches."""

    def __iter__(self) -> Iterator[Ids]:
        """Yield the rows of each batch, ascending."""


def choose_hot(counts: NDArray[np.uint32], most_rows: int) -> Positions:
    """Return the rows that are worth memory, most wanted first, ties by id; a row that is wanted once is not.

    Parameters
    ----------
    counts : uint32[rows]
        Batches that want each row.
    most_rows : int
        Room for so many.
    """
    if most_rows <= 0:
        return np.empty(0, np.int64)
    by_count: NDArray[np.int64] = np.zeros(int(counts.max(initial=0)) + 1, np.int64)
    for first in range(0, len(counts), COUNTED_ROWS):  # not at once: it takes eight bytes for each
        by_count += np.bincount(counts[first : first + COUNTED_ROWS], minlength=len(by_count))
    at_least = np.cumsum(by_count[::-1])[::-1]  # rows that are wanted so often, or more
    enough = np.flatnonzero(at_least >= most_rows)  # the last rows that fit are wanted so often
    candidates = np.flatnonzero(counts >= max(2, int(enough[-1]) if len(enough) else 0))
    uses = counts[candidates]
    descending = uses.max(initial=0) - uses
    if not descending.max(initial=0) >> 16:
        descending = descending.astype(np.uint16)  # integers so short are sorted by their digits, much faster
    return candidates[np.argsort(descending, kind="stable")][:most_rows].astype(np.int64)


def distinct_rows(batches: Iterable[Ids], segment: int, hot: Positions, num_rows: int) -> int:
    """Count the rows on disk with segments of so many batches: in each, every row that is not hot once.

    Parameters
    ----------
    batches : iterable of uint32 or int64 arrays
        Rows of every batch.
    segment : int
        Batches of a segment.
    hot : int64[h]
        Rows in memory.
    num_rows : int
        Of the table.
    """
    marks = np.full(num_rows, -1, np.int32)
    marks[hot] = NEVER_COUNTED
    return sum(mark_rows(ids, number // segment, marks) for number, ids in enumerate(batches))


def smallest_segment(count: int, size_bytes: Callable[[int], int], limit_bytes: int | None) -> int:
    """Return the fewest batches of a segment with which everything fits, found by counting; refuses what never fits.

    Sizes shrink as segments grow, but for what the segments' borders do by chance: so it is a search by halves.

    Parameters
    ----------
    count : int
        Batches in all.
    size_bytes : callable
        Counts the bytes on disk for a size of segments.
    limit_bytes : int, optional
        The budget; without one every row is packed for its batch, which is a segment of 1.
    """
    if limit_bytes is None or size_bytes(1) <= limit_bytes:
        return 1
    least = size_bytes(count)
    if least > limit_bytes:
        raise ConfigError(
            f"disk must be at least {format_bytes(least)} ({least} bytes), with one segment of all {count} batches "
            f"(got {format_bytes(limit_bytes)})"
        )
    low, high = 1, 2  # low never fits, high may
    while high < count and size_bytes(high) > limit_bytes:
        low, high = high, high * 2
    high = min(high, count)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if size_bytes(middle) <= limit_bytes else (middle, high)
    return high


def shared_rows(batches: Batches, num_rows: int) -> Ids:
    """Return the rows that at least two of the batches want, ascending."""
    if len(batches) < 2:
        return np.empty(0, np.int64)
    found = []
    seen = np.zeros(num_rows, np.uint8)  # by how many batches each row was wanted so far: none, one, or more
    for ids in batches:
        before = seen[ids]
        found.append(ids[before == 1])
        seen[ids] = before + (before < 2)
    return np.sort(np.concatenate(found))


def members(ids: Ids, shared: Ids) -> tuple[NDArray[np.bool_], Positions]:
    """Return which of the ids are shared, and where those are; both ascend, and are searched rather than sorted again."""
    if not len(shared):
        return np.zeros(len(ids), bool), np.empty(0, np.int64)
    found = np.minimum(np.searchsorted(shared, ids), len(shared) - 1)
    inside = shared[found] == ids
    return inside, found[inside]


def minhash_order(shared: Ids, batches: Batches, seed: int) -> tuple[Positions, Positions]:
    """Return an order of shared rows in which rows of the same batches are neighbours, and where each group begins.

    Every row is described by the smallest number that each of k random numberings gives to one of its batches; rows are
    sorted by these k numbers, the first one first (DiskGNN, algorithm 1, with a signature of k values rather than one).

    Parameters
    ----------
    shared : array [c]
        Rows, ascending.
    batches : Batches
        Rows of the segment's batches.
    seed : int
        Of the numberings.
    """
    if not len(shared):
        return np.empty(0, np.int64), np.empty(0, np.int64)
    generator = np.random.default_rng([seed, len(batches)])
    numbers = np.stack([generator.permutation(len(batches)) for _ in range(HASHES)])
    numbers = numbers.astype(np.min_scalar_type(len(batches)))
    signature = np.full((HASHES, len(shared)), len(batches), numbers.dtype)
    for batch, ids in enumerate(batches):
        _, places = members(ids, shared)
        signature[:, places] = np.minimum(signature[:, places], numbers[:, batch, None])
    order = np.lexsort(signature[::-1])  # stable: rows of one signature stay in the order of the table
    changes: NDArray[np.bool_] = np.zeros(len(shared) - 1, bool)
    for values in signature:
        ordered = values[order]
        changes |= ordered[1:] != ordered[:-1]
    return order, np.concatenate([[0], np.flatnonzero(changes) + 1])


class Segment:
    """Where the rows on disk are that a few batches use: first what they share, then what each has for itself.

    Batches are laid out one after the other, so that memory is needed only for the rows that they share.

    Parameters
    ----------
    batches : Batches
        Rows of the batches that are not hot.
    num_rows : int
        Of the table.
    seed : int
        Of the order of shared rows.

    Attributes
    ----------
    cached : int64[c]
        Rows that are shared, as they follow each other on disk.
    rows : int
        Laid out so far; ``cached`` are the first.
    """

    def __init__(self, batches: Batches, num_rows: int, seed: int):
        self._shared = shared_rows(batches, num_rows)
        order, groups = minhash_order(self._shared, batches, seed)
        self._place: Positions = np.empty(len(order), np.int64)
        self._place[order] = np.arange(len(order))
        self.cached = self._shared[order].astype(np.int64)
        self.rows = len(order)
        self._groups = [groups]

    def add(self, ids: Ids) -> tuple[Positions, Positions]:
        """Lay out the next batch: return where in the segment each of its rows is, and which of them follow on disk."""
        is_cached, found = members(ids, self._shared)
        where: Positions = np.empty(len(ids), np.int64)
        where[is_cached] = self._place[found]
        own: Positions = ids[~is_cached].astype(np.int64)
        where[~is_cached] = self.rows + np.arange(len(own))
        if len(own):
            self._groups.append(np.array([self.rows]))
        self.rows += len(own)
        return where, own

    @property
    def groups(self) -> Positions:
        """Where rows begin that ascend: of one signature, or of one batch."""
        return np.concatenate(self._groups).astype(np.int64)


def regions_of(begin: int, groups: Positions, end: int, row_bytes: int) -> list[tuple[int, bool]]:
    """Cut rows ``begin..end`` of a packed table into regions: where each begins, and whether its rows come in any order.

    Parameters
    ----------
    begin, end : int
        First row, and the one after the last.
    groups : int64[g]
        Where rows begin that ascend, counted from ``begin``; large ones become regions of their own.
    row_bytes : int
        Of the table.
    """
    edges = np.append(groups + begin, end)
    large = np.diff(edges) * row_bytes >= APPENDED_BYTES
    regions: list[tuple[int, bool]] = []
    step = max(1, PLACED_BYTES // row_bytes)
    number = 0
    while number < len(groups):
        if large[number]:
            regions.append((int(edges[number]), False))
            number += 1
            continue
        following = np.flatnonzero(large[number:])
        last = number + int(following[0]) if len(following) else len(groups)
        single = last == number + 1
        starts = [int(edges[number])] if single else range(int(edges[number]), int(edges[last]), step)
        regions += [(start, not single) for start in starts]
        number = last
    return regions


def pages_bytes(positions: Positions, row_bytes: int) -> int:
    """Return the bytes of all pages that hold one of the rows, each once: what reading them without gaps takes."""
    if not len(positions):
        return 0
    begin, end = int(positions.min()), int(positions.max()) + 1
    if end - begin == len(positions):  # side by side
        return (-(-end * row_bytes // PAGE_BYTES) - begin * row_bytes // PAGE_BYTES) * PAGE_BYTES
    rows = np.sort(positions)
    first, last = rows * row_bytes // PAGE_BYTES, ((rows + 1) * row_bytes - 1) // PAGE_BYTES
    pages = int((last - first + 1).sum()) - int((first[1:] == last[:-1]).sum())  # those that two rows share, once
    return pages * PAGE_BYTES
