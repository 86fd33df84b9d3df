"""When edges and nodes came to be: read from a dataset's tables, and the draws that must not look ahead of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from gids import _native
from gids.dataset.rows import as_tensor, read_rows
from gids.errors import ConfigError
from gids.sampling.sample import EdgeType, SampleKey
from gids.table import RowTable

Times = npt.NDArray[np.int64]
_DRAWN = 1 << 53  # draws are exact as floating-point numbers


class TimedDataset(Protocol):
    """A dataset whose feature tables may be times; :class:`gids.Dataset` is one."""

    def feature_names(self, ntype: str | None = None) -> list[str]:
        """Names of a node type's tables."""

    def feature_table(self, ntype: str | None = None, name: str = "feat") -> RowTable:
        """Return one of them."""

    def edge_feature_names(self, etype: EdgeType | None = None) -> list[str]:
        """Names of an edge type's tables."""

    def edge_feature_table(self, etype: EdgeType | None = None, name: str = "feat") -> RowTable:
        """Return one of them."""


def node_time_table(dataset: TimedDataset, ntype: str, name: str) -> RowTable | None:
    """Return the table of that name where a node type has one; it must be int64 of dim 1."""
    return _checked(dataset.feature_table(ntype, name)) if name in dataset.feature_names(ntype) else None


def edge_time_table(dataset: TimedDataset, etype: EdgeType, name: str) -> RowTable | None:
    """Return the table of that name where an edge type has one; its rows are by edge id."""
    return _checked(dataset.edge_feature_table(etype, name)) if name in dataset.edge_feature_names(etype) else None


def _checked(table: RowTable) -> RowTable:
    if table.dtype != "int64" or table.dim != 1:
        raise ConfigError(f"times must be int64 of dim 1 (got {table.name}: {table.dtype} of dim {table.dim})")
    return table


def read_times(table: RowTable) -> Times:
    """Read a whole table of times."""
    return np.ascontiguousarray(as_tensor(table, read_rows(table)).numpy())


class TimesById:
    """Times on disk that are stored by edge id, read by edge position.

    Parameters
    ----------
    ids, times : callable
        ``read(positions, out)`` of the edge ids, and of the times by id.
    """

    def __init__(self, ids: Callable[[Times, Times], None], times: Callable[[Times, Times], None]) -> None:
        self._ids, self._times = ids, times

    def __call__(self, positions: Times, out: Times) -> None:
        """Fill ``out[i]`` with the time of edge position ``positions[i]``."""
        named = np.empty(len(positions), np.int64)
        self._ids(positions, named)
        self._times(named, out)


def draw_causal(times: Times, until: Times, per_edge: int, key: SampleKey, first: int = 0) -> Times:
    """Draw ``per_edge`` nodes for each time in ``until``, uniformly among those that existed by then.

    Parameters
    ----------
    times : int64 array
        When each node came to be.
    until : int64 array
        The latest time allowed, per edge.
    per_edge : int
        Nodes for each.
    key : SampleKey
        Names the draws.
    first : int
        Draws of the key's sequence that others take.
    """
    order = np.argsort(times, kind="stable")
    existing = np.searchsorted(times[order], until, side="right")
    if len(existing) and not existing.all():
        early = int(until[int(np.argmin(existing))])
        raise ConfigError(f"negatives need a node that exists at the time of every edge (none does at {early})")
    count = first + len(until) * per_edge
    drawn: Any = _native.draw_negatives(count, 1, _DRAWN, key.seed, key.epoch, key.batch)[first:]
    ranks = (drawn / _DRAWN * np.repeat(existing, per_edge)).astype(np.int64)
    return np.asarray(order[ranks], np.int64)
