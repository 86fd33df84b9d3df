"""How a loader's budget is divided: by a short profile, or by rule where there is nothing to weigh up.

What is weighed up: a batch asks for rows. The constant host buffer serves some, the cache some; what is left of the n
batches of a group is read once, u(n) rows. On a device that takes ``per_read_s`` for a read and ``per_byte_s`` for a byte,
neighbours closer than ``per_read_s / per_byte_s`` are one read, so a batch costs

    (reads(u) * per_read_s + bytes(u) * per_byte_s) / n

and memory is ``host + cache + arena + samples + outputs``, with an arena of little more than u(n) / 2 rows: the batches
that share reads began at different places of the sweep over the table (:class:`gids.tiers.FeatureStore`), so on average
half of each one's rows are there. A larger group reads fewer rows, closer together; a larger host buffer leaves
fewer rows, farther apart; a longer window makes better use of a cache and holds more samples. Which of them is worth its
memory depends on the graph, so :func:`gids.tiers.split_budget` tries them on a profile, with the planners of the run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gids.loader.memory import Allotment, Fixed, TableDemand, allot, held_batches
from gids.storage import DeviceCurve
from gids.storage.curve import DEFAULT_CURVE
from gids.table import RowTable
from gids.tiers import AccessModel, HotRows, TableProfile, TableShare, split_budget
from gids.tiers.budget import cache_bytes, host_bytes, rows_within

#: Sampled batches in channels and in the hands of a stage.
SAMPLES_ON_THE_WAY = 5
#: Share of the device's peak that the accesses of a step aim for.
EFFICIENCY = 0.95


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
    window, max_group : int
        Batches to look ahead, and to plan as one group.
    rotation : int
        Groups that share each read.
    disk_share : float
        Of the rows that batches ask for, those that the profile expects to be read.
    reasons : tuple of str
        What was chosen and why, a line each.
    """

    allotment: Allotment
    shares: dict[Hashable, TableShare]
    window: int
    max_group: int
    rotation: int = 1
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
    window, max_group, prefetch : int
        As in :class:`gids.Loader`, where the user did not fix them.
    merge_gap_bytes : int, optional
        As readers will be told.
    """
    window = window if asked.window is None else asked.window
    together = max_group if asked.max_group is None else asked.max_group
    plain = allot(
        budget,
        fixed,
        demand,
        ahead=window + together + SAMPLES_ON_THE_WAY,
        planned=window + together,
        held=held_batches(together),
        prefetch=prefetch,
        cache_bytes=asked.cache,
        host_bytes=asked.host,
        group_bytes=asked.groups,
    )
    rows = sum(need.rows for need in demand.values())
    ruled = Division(plain, weighted_shares(plain, demand, tables), window, *grouped(together, rows, curve))
    if None not in (asked.cache, asked.host, asked.groups):
        return replace(ruled, reasons=("cache, host buffer and groups as asked for",))
    if all(share.cache_rows == tables[key].num_rows for key, share in ruled.shares.items()):
        return replace(ruled, reasons=("every table fits in the cache",))
    batches = min((len(rows) for rows in profiled.values()), default=0)
    if batches < 2 or curve is None:
        return replace(ruled, reasons=("divided by rule: there were no two batches to learn from",))
    outputs, ranked = plain.outputs, hot()
    split = split_budget(
        budget - fixed.topology_bytes - fixed.labels_bytes - outputs - SAMPLES_ON_THE_WAY * fixed.sample_bytes,
        {key: TableProfile(tables[key], profiled[key], ranked.get(key, NeverHot())) for key in tables},
        curve,
        cache=asked.cache,
        host=asked.host,
        group=asked.groups,
        staging=asked.staging,
        window=asked.window,
        max_group=together,
        sample_bytes=fixed.sample_bytes,
        merge_gap_bytes=merge_gap_bytes,
    )
    shares = split.tables
    allotment = Allotment(
        budget,
        fixed.topology_bytes,
        fixed.labels_bytes,
        split.staging_bytes,
        split.waiting_bytes + SAMPLES_ON_THE_WAY * fixed.sample_bytes,
        outputs,
        sum(share.group_bytes for share in shares.values()),
        sum(host_bytes(share.host_rows, tables[key].row_bytes) for key, share in shares.items()),
        sum(cache_bytes(share.cache_rows, tables[key].row_bytes) for key, share in shares.items()),
    )
    return Division(
        allotment,
        shares,
        split.window,
        *grouped(split.group_batches, split.disk_rows, curve),
        min(1.0, split.disk_rows / max(rows, 1)),
        split.reasons,
    )


def grouped(together: int, rows: float, curve: DeviceCurve | None) -> tuple[int, int]:
    """Divide the batches that share each read into groups that keep the device busy: (batches in a group, groups).

    A step reads about as many rows as one group needs, ``rows`` for each of its batches. They are enough by the model of
    the device, or where the time in which its queue runs empty at the end is a small part of the whole.
    """
    curve = DEFAULT_CURVE if curve is None else curve
    accesses = min(AccessModel.from_curve(curve).accesses_for(EFFICIENCY), curve.best_depth / (1 - EFFICIENCY))
    size = min(together, max(1, math.ceil(accesses / max(rows, 1.0))))
    return size, together // size


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
