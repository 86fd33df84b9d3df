"""Which rows stay in memory while a graph is visited in order, and how long: known before anything is read.

Destinations are visited in groups of consecutive tiles. A group's own rows are read in order. Rows that its in-edges need from
elsewhere are kept where memory holds them: a row whose group comes before its first use elsewhere stays from then on, any
other is read beforehand, in the order of the table; both until their last use. What is not kept is read for each group anew.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gids import _native
from gids.dataset import Dataset
from gids.dataset.rows import as_tensor, read_rows
from gids.infer.tiles import Tile
from gids.storage.curve import DeviceCurve
from gids.types import EdgeType

#: Memory of a survey and of the choice made of it, for each node.
SURVEYED_NODE_BYTES = 40
#: Rows are ranked by uses for each group in which they take memory, in steps of a quarter of a power of two.
LEVELS, STEPS, BEST = 64, 4, 6
#: Of the table, the most that is read to have rows beforehand, unless they are more themselves.
BEFOREHAND_SHARE = 0.48

Ids = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Group:
    """Consecutive tiles whose own rows are in memory together."""

    number: int
    tiles: Sequence[Tile]

    @property
    def begin(self) -> int:
        """First destination."""
        return self.tiles[0].begin

    @property
    def end(self) -> int:
        """Destination after the last one."""
        return self.tiles[-1].end


class StoredEdges:
    """In-edges of one type where they are stored, read piece by piece."""

    def __init__(self, dataset: Dataset, etype: EdgeType):
        self._offsets, self._sources = dataset.stored_offsets(etype), dataset.indices_table(etype)
        self.id_bytes, self.bytes_read = self._sources.row_bytes, 0

    def of(self, begin: int, end: int) -> tuple[Ids, npt.NDArray[Any]]:
        """Return offsets of consecutive destinations, counted from the first one's, and the sources of their edges."""
        offsets = np.array(self._offsets[begin : end + 1])
        sources = as_tensor(self._sources, read_rows(self._sources, int(offsets[0]), int(offsets[-1]))).numpy()
        self.bytes_read += sources.nbytes  # by one thread at a time
        offsets -= offsets[0]
        return offsets, sources


def grouped(tiles: Sequence[Tile], rows: int) -> list[Group]:
    """Cut tiles into groups of about so many rows, each of as many tiles but for the last."""
    together = max(1, rows // (tiles[0].end - tiles[0].begin))
    return [Group(n, tiles[at : at + together]) for n, at in enumerate(range(0, len(tiles), together))]


@dataclass(frozen=True)
class Survey:
    """What one pass over the in-edges found.

    Attributes
    ----------
    groups : list of Group
        In the order in which they are visited.
    first, last : int32[nodes]
        Groups that need a row first and last, of those that do not own it; -1: none.
    count : uint16[nodes]
        How many groups do; stays at its highest value.
    outside : int64[tiles]
        Distinct rows of every tile that its group does not own.
    most_sources, most_edges : int
        Of a tile and of a group.
    most_blocks : int
        Distinct rows of the tiles of a group, added up.
    """

    groups: list[Group]
    first: npt.NDArray[np.int32]
    last: npt.NDArray[np.int32]
    count: npt.NDArray[np.uint16]
    outside: Ids
    most_sources: int
    most_edges: int
    most_blocks: int


def survey(edges: StoredEdges, groups: list[Group], num_nodes: int) -> Survey:
    """Look at every in-edge of the tiles once."""
    first, last = np.full(num_nodes, -1, np.int32), np.full(num_nodes, -1, np.int32)
    count, seen = np.zeros(num_nodes, np.uint16), np.zeros(num_nodes, np.int32)
    outside: list[int] = []
    most_sources = most_edges = most_blocks = 0
    for group in groups:
        offsets, sources = edges.of(group.begin, group.end)
        most_edges, blocks = max(most_edges, len(sources)), 0
        for tile in group.tiles:
            mine = sources[offsets[tile.begin - group.begin] : offsets[tile.end - group.begin]]
            others, away = _native.note_uses(
                mine,
                (tile.begin, tile.end),
                (group.begin, group.end),
                group.number,
                len(outside),
                first,
                last,
                count,
                seen,
            )
            outside.append(away)
            most_sources = max(most_sources, tile.end - tile.begin + others)
            blocks += tile.end - tile.begin + others
        most_blocks = max(most_blocks, blocks)
    return Survey(groups, first, last, count, np.array(outside), most_sources, most_edges, most_blocks)


@dataclass(frozen=True)
class Keeping:
    """Rows that are kept.

    Attributes
    ----------
    slots : int
        Most rows that are kept at once.
    beforehand : int64[n]
        Those that are read before the first group, ascending.
    taken : int64[n]
        The others, ascending: each is kept from its own group on.
    by_last : int64[n]
        All, by the last group that needs them; ``last_ends[g]`` of them are not needed after group ``g``.
    last_ends : int64[groups]
        See ``by_last``.
    """

    slots: int
    beforehand: Ids
    taken: Ids
    by_last: Ids
    last_ends: Ids

    def taken_of(self, group: Group) -> Ids:
        """Return rows of a group that stay when it was visited."""
        begin, end = np.searchsorted(self.taken, [group.begin, group.end])
        return self.taken[begin:end]

    def done_after(self, number: int) -> Ids:
        """Return rows whose last use is in a group."""
        return self.by_last[self.last_ends[number - 1] if number else 0 : self.last_ends[number]]


def keep(found: Survey, capacity: Callable[[int], int]) -> Keeping:
    """Choose which rows to keep: those with most uses for each group in which they take memory.

    Parameters
    ----------
    found : Survey
        Of the groups.
    capacity : callable
        Returns how many rows are kept at most, of how many are worth it at the same time.
    """
    groups = found.groups
    rows = np.flatnonzero(found.count)
    own = np.searchsorted(np.array([group.begin for group in groups]), rows, "right") - 1
    own[rows >= groups[-1].end] = -1  # of no group, as those that were visited before a kill
    begin, end = np.where((own >= 0) & (own < found.first[rows]), own, 0), found.last[rows]
    beforehand = (own < 0) | (own > found.first[rows])
    score = found.count[rows] / (end - begin + 1)
    level = np.clip(np.rint(STEPS * (BEST - np.log2(score))), 0, LEVELS - 1).astype(np.int64)
    width = len(groups) + 1
    change = np.bincount(level * width + begin, minlength=LEVELS * width)
    change -= np.bincount(level * width + end + 1, minlength=LEVELS * width)
    peaks = change.reshape(LEVELS, width).cumsum(0).cumsum(1).max(1)  # of all levels up to each one
    chosen = level < np.searchsorted(peaks, capacity(int(peaks[-1])), "right")
    slots = int(peaks[level[chosen].max()]) if chosen.any() else 0
    rows, end, beforehand = rows[chosen], end[chosen], beforehand[chosen]
    order = np.argsort(end, kind="stable")
    ends = np.searchsorted(end[order], np.arange(len(groups)), "right")
    return Keeping(slots, rows[beforehand], rows[~beforehand], rows[order], ends)


def gap_beforehand(rows: Ids, num_rows: int, row_bytes: int, curve: DeviceCurve) -> int:
    """Return which gap between rows is read with them, in bytes: as fast as possible within a share of the table."""
    holes, counts = np.unique(np.diff(rows) - 1, return_counts=True)
    size = len(rows) + np.concatenate([[0], (holes * counts).cumsum()])  # rows read, for a gap up to each hole
    reads = 1 + counts.sum() - np.concatenate([[0], counts.cumsum()])
    allowed = size <= max(len(rows), BEFOREHAND_SHARE * num_rows)
    cost = curve.cost.per_read_s * reads + curve.cost.per_byte_s * size * row_bytes
    best = int(np.where(allowed, cost, np.inf).argmin())
    return 0 if best == 0 else int(holes[best - 1]) * row_bytes
