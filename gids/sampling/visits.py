"""How often sampling comes by each node: what hot lists are chosen by."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gids import _native
from gids.dataset.scratch import load_arrays
from gids.errors import DatasetError
from gids.sampling.disk import stream
from gids.sampling.sample import EdgeType
from gids.table import RowTable

Visits = dict[str, npt.NDArray[np.float32]]


def expected_visits(
    num_nodes: Mapping[str, int],
    offsets: Mapping[EdgeType, _native.PackedOffsets],
    tables: Mapping[EdgeType, RowTable],
    fanout: int,
) -> Visits:
    """Estimate how often each node is reached when every node is a destination once: one pass over the edges."""
    visits = {ntype: np.zeros(count, np.float32) for ntype, count in num_nodes.items()}
    for etype, table in tables.items():
        for begin, values in stream(table):
            try:
                _native.count_visits(offsets[etype], begin, values, fanout, visits[etype[0]])
            except DatasetError as error:
                raise DatasetError(f"{table.name}: {error}") from error
    return visits


def load_visits(
    scratch: Path | None,
    num_nodes: Mapping[str, int],
    offsets: Mapping[EdgeType, _native.PackedOffsets],
    tables: Mapping[EdgeType, RowTable],
    fanout: int,
) -> Visits:
    """Return :func:`expected_visits`, from the file of an earlier run where there is one."""
    path = None if scratch is None else scratch / "expected-visits.npz"
    if path is not None and (saved := load_arrays(path)) is not None:
        kept = {ntype: saved.get(f"visits {ntype}") for ntype in num_nodes}
        if all(_fits(kept[ntype], count) for ntype, count in num_nodes.items()):
            return {ntype: array for ntype, array in kept.items() if array is not None}
    visits = expected_visits(num_nodes, offsets, tables, fanout)
    if path is not None:
        temporary = path.with_name(f".{path.name}.tmp.npz")
        with contextlib.suppress(OSError):  # a read-only dataset works too, only slower to open
            named: dict[str, Any] = {f"visits {ntype}": array for ntype, array in visits.items()}
            np.savez(temporary, **named)
            temporary.replace(path)
    return visits


def _fits(visits: npt.NDArray[Any] | None, nodes: int) -> bool:
    return visits is not None and visits.shape == (nodes,) and visits.dtype == np.float32
