"""Which rows a ranking puts first: rows by their own scores, edges by the scores of the nodes they lead to."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gids.errors import ConfigError

#: Scores that are sorted to place a row among all; larger rankings are sampled evenly.
SORTED_SCORES = 1 << 20
#: The highest level whose uses fit in 32 bits (kernels/use_level.cuh).
MOST_POPULAR = 123
LEVELS_AT_A_TIME = 1 << 20


class HotRows(Protocol):
    """A ranking of a table's rows, for its host buffer and for what its cache keeps beyond the window."""

    def top(self, count: int) -> Tensor:
        """Return the ``count`` best rows at most, int64, ascending."""

    def places(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Say about how many rows rank before each of ``rows``; rows that :meth:`top` never gives are past the end."""

    def levels(self, rows: NDArray[np.int64] | None = None) -> NDArray[np.uint8]:
        """Return :func:`popularity_levels` of ``rows``, by default of all; levels of one call compare with each other."""


class RowScores:
    """Rows by scores of their own.

    Parameters
    ----------
    scores : array of numbers [rows]
        A ranking, counted accesses, or a user's own; not negative.
    """

    def __init__(self, scores: Tensor | NDArray[Any]):
        self._scores = scores.numpy() if isinstance(scores, Tensor) else np.asarray(scores)
        self._sorted: NDArray[Any] | None = None

    def top(self, count: int) -> Tensor:
        """See :func:`top_rows`."""
        return top_rows(self._scores, count)

    def places(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """See :class:`HotRows`."""
        every = max(1, len(self._scores) // SORTED_SCORES)
        if self._sorted is None:
            self._sorted = np.sort(self._scores[::every])
        own = self._scores[rows]
        # Equal scores share the middle of their places.
        after = (np.searchsorted(self._sorted, own) + np.searchsorted(self._sorted, own, side="right") + 1) // 2
        return np.where(own > 0, (len(self._sorted) - after) * every, len(self._scores)).astype(np.int64)

    def levels(self, rows: NDArray[np.int64] | None = None) -> NDArray[np.uint8]:
        """See :class:`HotRows`."""
        return popularity_levels(self._scores if rows is None else self._scores[rows])


class EdgeScores:
    """Edges by how often sampling takes them, see :func:`top_edges`.

    Parameters
    ----------
    node_scores : array of numbers [nodes]
        Ranking of the destination nodes.
    indptr : int64[nodes + 1]
        Offsets of their in-edges.
    """

    def __init__(self, node_scores: Tensor | NDArray[Any], indptr: NDArray[np.int64]):
        self._scores = node_scores.numpy() if isinstance(node_scores, Tensor) else np.asarray(node_scores)
        self._indptr = indptr
        self._sorted: tuple[NDArray[Any], NDArray[np.int64]] | None = None

    def top(self, count: int) -> Tensor:
        """See :func:`top_edges`."""
        return top_edges(self._scores, self._indptr, count)

    def places(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """See :class:`HotRows`."""
        if self._sorted is None:
            self._sorted = self._sort()
        chance, edges_before = self._sorted
        nodes = np.searchsorted(self._indptr, rows, side="right") - 1
        own = self._chance(nodes)
        # Whole neighbourhoods enter, so an edge is in when those before it and its own fit.
        before = edges_before[np.searchsorted(-chance, -own)]
        return np.where(own > 0, before, self._indptr[-1]).astype(np.int64)

    def levels(self, rows: NDArray[np.int64] | None = None) -> NDArray[np.uint8]:
        """See :class:`HotRows`."""
        if rows is not None:
            return popularity_levels(self._chance(np.searchsorted(self._indptr, rows, side="right") - 1))
        levels: NDArray[np.uint8] = np.repeat(
            popularity_levels(self._chance(np.arange(len(self._scores)))), np.diff(self._indptr)
        )
        return levels

    def _chance(self, nodes: NDArray[np.int64]) -> NDArray[Any]:
        chances: NDArray[Any] = self._scores[nodes] / np.maximum(self._indptr[nodes + 1] - self._indptr[nodes], 1)
        return chances

    def _sort(self) -> tuple[NDArray[Any], NDArray[np.int64]]:
        every = max(1, len(self._scores) // SORTED_SCORES)
        nodes = np.arange(0, len(self._scores), every)
        chance = self._chance(nodes)
        order = np.argsort(-chance, kind="stable")
        degrees = (self._indptr[nodes + 1] - self._indptr[nodes])[order]
        return chance[order], np.concatenate([[0], np.cumsum(degrees)]) * every


def popularity_levels(scores: Tensor | NDArray[Any]) -> NDArray[np.uint8]:
    """Return the use levels of kernels/use_level.cuh that stand for scores: 4 to a doubling below the highest, 0 for 0.

    One byte a row: the only thing that a planner may hold for rows that it does not hold.

    Parameters
    ----------
    scores : array of numbers [rows]
        Not negative; the more, the more often a row is used.
    """
    values = scores.numpy() if isinstance(scores, Tensor) else np.asarray(scores)
    levels = np.zeros(len(values), np.uint8)
    highest = float(values.max(initial=0))
    for begin in range(0, len(values), LEVELS_AT_A_TIME):
        part = values[begin : begin + LEVELS_AT_A_TIME].astype(np.float64)
        used = np.flatnonzero(part > 0)
        below = np.ceil(4 * np.log2(highest / part[used]))
        levels[begin + used] = np.maximum(MOST_POPULAR - below, 1)
    return levels


def top_rows(scores: Tensor | NDArray[Any], count: int) -> Tensor:
    """Return the ``count`` rows of the highest scores, ascending by row; ties go to the lower row. Rows of score 0 stay out.

    Parameters
    ----------
    scores : array of numbers [rows]
        A ranking, or a user's own scores; not negative, no NaN.
    count : int
        At most as many rows are given.
    """
    values = scores.numpy() if isinstance(scores, Tensor) else np.asarray(scores)
    if values.ndim != 1 or values.dtype.kind not in "iuf":
        raise ConfigError(f"scores must be a 1-dimensional array of numbers (got {values.dtype}, {values.shape})")
    if count < 0:
        raise ConfigError(f"count must not be negative (got {count})")
    if len(values) and not values.min() >= 0:
        raise ConfigError(f"scores must not be negative or NaN (got {values.min()})")
    positive = np.flatnonzero(values)
    if count == 0 or len(positive) <= count:
        return torch.from_numpy(positive[: count if count == 0 else None].astype(np.int64))
    limit = np.partition(values, len(values) - count)[len(values) - count]
    above = np.flatnonzero(values > limit)
    ties = np.flatnonzero(values == limit)[: count - len(above)]
    return torch.from_numpy(np.sort(np.concatenate([above, ties])).astype(np.int64))


def top_edges(node_scores: Tensor | NDArray[Any], indptr: NDArray[np.int64], count: int) -> Tensor:
    """Return up to ``count`` edge positions that sampling is most likely to take, for a buffer of edge features.

    An edge is taken about as often as its destination is expanded, divided by the destination's in-degree: whole
    neighbourhoods enter in that order.

    Parameters
    ----------
    node_scores : array of numbers [nodes]
        Ranking of the destination nodes.
    indptr : int64[nodes + 1]
        Offsets of their in-edges.
    count : int
        At most as many positions are given, ascending.
    """
    values = node_scores.numpy() if isinstance(node_scores, Tensor) else np.asarray(node_scores)
    degrees = np.diff(indptr)
    nodes = np.flatnonzero((degrees > 0) & (values > 0))
    order = nodes[np.argsort(-(values[nodes] / degrees[nodes]), kind="stable")]
    fitting = int(np.searchsorted(np.cumsum(degrees[order]), count, side="right"))
    chosen = np.sort(order[:fitting])
    lengths = degrees[chosen]
    offsets = np.repeat(indptr[chosen] - np.concatenate([[0], np.cumsum(lengths)[:-1]]) if len(chosen) else [], lengths)
    return torch.from_numpy((offsets + np.arange(len(offsets))).astype(np.int64))
