"""How a loader's budget is divided: by a short profile, or by rule where there is nothing to weigh up.

What is weighed up: a batch asks for rows. The constant host buffer serves some, the cache some; what is left of the n
batches of a group is read once, u(n) rows. On a device that takes ``per_read_s`` for a read and ``per_byte_s`` for a byte,
neighbours closer than ``per_read_s / per_byte_s`` are one read, so a batch costs

    (reads(u) * per_read_s + bytes(u) * per_byte_s) / n

and memory is ``host + cache + arena + samples + outputs``, with an arena of u(n) rows and a tenth: rows of the next group
take the slots that gathered batches leave. A larger group reads fewer rows, closer together; a larger host buffer leaves
fewer rows, farther apart; a longer window makes better use of a cache and holds more samples. Which of them is worth its
memory depends on the graph, so :func:`gids.tiers.split_budget` tries them on a profile, with the planners of the run.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gids.loader.memory import Allotment, Fixed, TableDemand, allot
from gids.storage import DeviceCurve
from gids.table import RowTable
from gids.tiers import HotRows, TableProfile, TableShare, split_budget
from gids.tiers.budget import cache_bytes, host_bytes, rows_within

#: Scratch for one row of one batch of a group that is planned, and what its plan keeps until it is gathered: two sort
#: buffers of 16 bytes, its state, its location, its slot, its turn to leave.
PLAN_ROW_BYTES = 64


@dataclass(frozen=True)
class Asked:
    """What the user fixed, in bytes and batches; None is left to the loader."""

    cache: int | None = None
    host: int | None = None
    groups: int | None = None
    staging: int | None = None
    window: int | None = None
    max_group: int | None = None


@dataclass(frozen=True)
class Division:
    """A budget, divided.

    Attributes
    ----------
    allotment : Allotment
        Parts of the whole loader.
    shares : dict of table key to TableShare
        Rows of cache and host buffer, and memory for groups, of every table.
    window, group_batches, max_group : int
        Batches to look ahead, to read together where they fit, and to read together at most.
    disk_share : float
        Of the rows that batches ask for, those that the profile expects to be read.
    reasons : tuple of str
        What was chosen and why, a line each.
    """

    allotment: Allotment
    shares: dict[Hashable, TableShare]
    window: int
    group_batches: int
    max_group: int
    disk_share: float = 1.0
    reasons: tuple[str, ...] = ()


def divide(
    budget: int,
    fixed: Fixed,
    demand: Mapping[Hashable, TableDemand],
    tables: Mapping[Hashable, RowTable],
    profiled: Mapping[Hashable, list[Tensor]],
    hot: Callable[[], Mapping[Hashable, HotRows]],
    curve: DeviceCurve | None,
    asked: Asked,
    *,
    window: int,
    max_group: int,
    prefetch: int,
    groups_in_flight: int,
    merge_gap_bytes: int | None = None,
) -> Division:
    """Divide a budget between what must be there and the tiers of every table.

    Parameters
    ----------
    budget, fixed, demand
        As in :func:`gids.loader.memory.allot`.
    tables : mapping of table key to RowTable
        The tables.
    profiled : mapping of table key to list of Tensor
        Rows that consecutive batches asked for; of tables that not every batch names, empty lists.
    hot : callable
        Gives rankings for the host buffer by table key, when they are needed; tables without one get none.
    curve : DeviceCurve, optional
        Of the device that holds the tables.
    asked : Asked
        What the user fixed.
    window, max_group, prefetch, groups_in_flight : int
        As in :class:`gids.Loader`, where the user did not fix them.
    merge_gap_bytes : int, optional
        As readers will be told.
    """
    plain = allot(
        budget,
        fixed,
        demand,
        window=window if asked.window is None else asked.window,
        max_group=max_group if asked.max_group is None else asked.max_group,
        prefetch=prefetch,
        groups_in_flight=groups_in_flight,
        cache_bytes=asked.cache,
        host_bytes=asked.host,
        group_bytes=asked.groups,
    )
    ruled = Division(
        plain,
        weighted_shares(plain, demand, tables),
        window if asked.window is None else asked.window,
        max_group if asked.max_group is None else asked.max_group,
        max_group if asked.max_group is None else asked.max_group,
    )
    if None not in (asked.cache, asked.host, asked.groups):
        return replace(ruled, reasons=("cache, host buffer and groups as asked for",))
    if all(share.cache_rows == tables[key].num_rows for key, share in ruled.shares.items()):
        return replace(ruled, reasons=("every table fits in the cache",))
    batches = min((len(rows) for rows in profiled.values()), default=0)
    if batches < 2 or curve is None:
        return replace(ruled, reasons=("divided by rule: there were no two batches to learn from",))
    outputs, ranked = plain.outputs, hot()
    split = split_budget(
        budget - fixed.topology_bytes - fixed.labels_bytes - outputs - 3 * fixed.sample_bytes,
        {key: TableProfile(tables[key], profiled[key], ranked.get(key, NeverHot())) for key in tables},
        curve,
        cache=asked.cache,
        host=asked.host,
        group=asked.groups,
        staging=asked.staging,
        window=asked.window,
        max_group=max_group if asked.max_group is None else asked.max_group,
        groups_in_flight=1,  # they share an arena
        # One group waits to be planned while another waits to be gathered.
        sample_bytes=2 * fixed.sample_bytes + PLAN_ROW_BYTES * sum(need.rows for need in demand.values()),
        merge_gap_bytes=merge_gap_bytes,
    )
    shares = split.tables
    allotment = Allotment(
        budget,
        fixed.topology_bytes,
        fixed.labels_bytes,
        split.staging_bytes,
        split.waiting_bytes + 3 * fixed.sample_bytes,
        outputs,
        sum(share.group_bytes for share in shares.values()),
        sum(host_bytes(share.host_rows, tables[key].row_bytes) for key, share in shares.items()),
        sum(cache_bytes(share.cache_rows, tables[key].row_bytes) for key, share in shares.items()),
    )
    rows = sum(need.rows for need in demand.values())
    return Division(
        allotment,
        shares,
        split.window,
        split.group_batches,
        max(split.group_batches, asked.max_group or 1),
        min(1.0, split.disk_rows / max(rows, 1)),
        split.reasons,
    )


class NeverHot:
    """A ranking that puts no row first."""

    def top(self, count: int) -> Tensor:
        """Give no rows."""
        return torch.empty(0, dtype=torch.int64)

    def places(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Say that everything ranks before each of ``rows``."""
        return np.full(len(rows), np.iinfo(np.int64).max)


def weighted_shares(
    allotment: Allotment, demand: Mapping[Hashable, TableDemand], tables: Mapping[Hashable, RowTable]
) -> dict[Hashable, TableShare]:
    """Share an allotment between tables by the bytes that a batch asks of them."""
    weight = {key: max(1, need.rows * need.row_bytes) for key, need in demand.items()}
    total = sum(weight.values())
    shares = {}
    for key, table in tables.items():
        slot_bytes = table.row_bytes + demand[key].slot_overhead_bytes
        cache = min(int(allotment.cache * (weight[key] / total)) // slot_bytes, table.num_rows)
        host = rows_within(allotment.host_buffer * weight[key] // total, table.row_bytes, table.num_rows, host_bytes)
        shares[key] = TableShare(cache, host, allotment.groups * weight[key] // total)
    return shares
