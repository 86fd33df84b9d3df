"""Topology on disk: only offsets and the hottest neighbour lists are in memory; the rest is read when it is sampled."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from gids import _native
from gids.dataset.rows import as_tensor, read_rows
from gids.errors import ConfigError, DatasetError
from gids.sampling.sample import EdgeType
from gids.storage import RowReader, StorageOptions
from gids.table import RowTable

Array = npt.NDArray[Any]

#: Bytes that one random read moves at least; lists up to this long cost one read, longer ones up to a read per edge.
READ_BYTES = 4096
#: Edges per node that hotness assumes; only the ranking depends on it.
TYPICAL_FANOUT = 10
#: Where a list begins, on disk and in memory.
LIST_OVERHEAD_BYTES = 16
_PIECE_NODES = 1 << 18
_PIECE_ROWS = 1 << 20


class PositionReader:
    """Reads values of a one-column table by edge position, bypassing the page cache.

    Parameters
    ----------
    table : RowTable
        Neighbours, edge ids or weights.
    options : StorageOptions, optional
        Engine, depth and staging memory.
    """

    def __init__(self, table: RowTable, options: StorageOptions | None) -> None:
        if table.dim != 1:
            raise ConfigError(f"{table.name} must have dim 1 to be read by edge position (got {table.dim})")
        self.table = table
        self.reader = RowReader(table, options)

    def __call__(self, positions: npt.NDArray[np.int64], out: Array) -> None:
        """Fill ``out[i]`` with the value at ``positions[i]``."""
        target = torch.from_numpy(out)
        if target.dtype == self.table.torch_dtype:
            self.reader.read(positions, out=target.view(-1, 1))
        else:
            target.copy_(self.reader.read(positions).view(-1))

    def close(self) -> None:
        """Give back buffers and files."""
        self.reader.close()


def stream(table: RowTable) -> Iterator[tuple[int, Array]]:
    """Pass over a one-column table in order: (first position, values)."""
    for begin in range(0, table.num_rows, _PIECE_ROWS):
        end = min(begin + _PIECE_ROWS, table.num_rows)
        yield begin, as_tensor(table, read_rows(table, begin, end)).numpy()


def expected_visits(
    num_nodes: Mapping[str, int], offsets: Mapping[EdgeType, Array], tables: Mapping[EdgeType, RowTable]
) -> dict[str, npt.NDArray[np.float32]]:
    """Estimate how often each node is reached when every node is a destination once: one pass over the edges."""
    visits = {ntype: np.zeros(count, np.float32) for ntype, count in num_nodes.items()}
    for etype, table in tables.items():
        for begin, values in stream(table):
            if len(values) and not 0 <= values.min() <= values.max() < num_nodes[etype[0]]:
                raise DatasetError(f"{table.name} must be in [0, {num_nodes[etype[0]]})")
            _native.count_visits(offsets[etype], begin, values, TYPICAL_FANOUT, visits[etype[0]])
    return visits


def load_visits(
    scratch: Path | None,
    num_nodes: Mapping[str, int],
    offsets: Mapping[EdgeType, Array],
    tables: Mapping[EdgeType, RowTable],
) -> dict[str, npt.NDArray[np.float32]]:
    """Give :func:`expected_visits`, from the file of an earlier run where there is one."""
    path = None if scratch is None else scratch / "expected-visits.npz"
    if path is not None and path.exists():
        with contextlib.suppress(OSError, ValueError, KeyError), np.load(path) as saved:
            visits = {ntype: saved[f"visits {ntype}"] for ntype in num_nodes}
            if all(len(visits[ntype]) == count for ntype, count in num_nodes.items()):
                return visits
    visits = expected_visits(num_nodes, offsets, tables)
    if path is not None:
        temporary = path.with_name(f".{path.name}.tmp.npz")
        with contextlib.suppress(OSError):  # a read-only dataset works too, only slower to open
            named: dict[str, Any] = {f"visits {ntype}": array for ntype, array in visits.items()}
            np.savez(temporary, **named)
            temporary.replace(path)
    return visits


def choose_hot(
    indptr: npt.NDArray[np.int64], visits: npt.NDArray[np.float32], item_bytes: int, budget_bytes: int
) -> npt.NDArray[np.int64]:
    """Choose the nodes whose lists save the most reads per byte of memory; ascending.

    Works in pieces, so that choosing takes no more memory than one number per node.
    """
    num_nodes = len(indptr) - 1
    budget = budget_bytes - len(indptr) * 3 // 16  # the bitmap and its ranks
    worth = np.empty(num_nodes, np.float32)

    def pieces() -> Iterator[tuple[int, int, npt.NDArray[np.int64]]]:
        for begin in range(0, num_nodes, _PIECE_NODES):
            end = min(begin + _PIECE_NODES, num_nodes)
            yield begin, end, np.diff(indptr[begin : end + 1]) * item_bytes

    for begin, end, list_bytes in pieces():
        reads = np.minimum(np.minimum(list_bytes // item_bytes, TYPICAL_FANOUT), 1 + list_bytes / READ_BYTES)
        worth[begin:end] = visits[begin:end] * reads / (list_bytes + LIST_OVERHEAD_BYTES)

    def cost(least: float) -> int:
        """Bytes of all lists that are worth at least that much."""
        return sum(
            int((list_bytes + LIST_OVERHEAD_BYTES)[worth[begin:end] >= least].sum())
            for begin, end, list_bytes in pieces()
        )

    high = np.nextafter(worth.max(initial=0), np.float32(np.inf), dtype=np.float32)  # nothing is worth that much
    low = np.nextafter(np.float32(0), np.float32(1), dtype=np.float32)  # everything of use is worth that much
    if cost(low) <= budget:
        return np.flatnonzero(worth >= low)
    while (middle := low + (high - low) / np.float32(2)) not in (low, high):
        low, high = (low, middle) if cost(middle) <= budget else (middle, high)
    # Lists worth `high` fit, those worth `low` do not all: take as many of the latter as there is room for.
    chosen = np.flatnonzero(worth >= high)
    ties = np.flatnonzero((worth >= low) & (worth < high))
    sizes = (indptr[ties + 1] - indptr[ties]) * item_bytes + LIST_OVERHEAD_BYTES
    return np.sort(np.concatenate([chosen, ties[np.cumsum(sizes) <= budget - cost(high)]]))


def keep_hot(
    table: RowTable, indptr: npt.NDArray[np.int64], visits: npt.NDArray[np.float32], budget_bytes: int
) -> _native.HotLists | None:
    """Load the hottest lists of one relation within a budget; None where not one fits."""
    nodes = choose_hot(indptr, visits, table.item_bytes, budget_bytes)
    if len(nodes) == 0:
        return None
    lists = _native.HotLists(nodes, indptr, table.dtype == "int64")
    for begin, values in stream(table):
        lists.fill(begin, values)
    return lists
