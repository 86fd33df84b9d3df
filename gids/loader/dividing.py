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

import functools
import math
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gids.errors import ConfigError
from gids.loader.memory import Allotment, Fixed, TableDemand, allot, held_batches
from gids.storage import DeviceCurve
from gids.storage.curve import DEFAULT_CURVE
from gids.table import RowTable
from gids.tiers import AccessModel, HotRows, TableProfile, TableShare, split_budget
from gids.tiers.budget import (
    LEAST_STAGING_BYTES,
    PLANNED_ROW_BYTES,
    divide_cache,
    host_bytes,
    popularity_reason,
    rows_within,
)

#: Most of the budget for samples of groups that wait to begin, or are gathered, beside those that share each read.
AROUND_SHARE = 1 / 16
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
    groups_in_flight: int,
    on_the_way: int,
    merge_gap_bytes: int | None = None,
    popularity: Mapping[Hashable, bool | None] | None = None,
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
        As in :class:`gids.Loader`, where the user did not fix them: window and group become smaller where the budget
        cannot hold so many samples.
    groups_in_flight : int
        Groups beyond those that share each read, whose samples are held as well.
    on_the_way : int
        Sampled batches that are in no window and no group: just made, or delivered.
    merge_gap_bytes : int, optional
        As readers will be told.
    popularity : mapping of table key to bool or None, optional
        As for :func:`gids.tiers.split_budget`; none by default.
    """
    popularity = dict.fromkeys(tables, False) if popularity is None else popularity
    rows = sum(need.rows for need in demand.values())
    around_bytes = groups_in_flight * (fixed.sample_bytes + rows * PLANNED_ROW_BYTES)  # with groups of one batch
    most = max(1, int(budget * AROUND_SHARE) // max(around_bytes, 1))
    attempts = list(_attempts(window, max_group, fixed.staging_bytes, asked))
    for looks, together, staging in attempts:
        largest = min(most, together)
        waiting = looks + 1 + together + groups_in_flight * largest
        try:
            plain = allot(
                budget,
                replace(fixed, staging_bytes=staging),
                demand,
                ahead=waiting + on_the_way,
                planned=waiting,
                held=held_batches(together),
                prefetch=prefetch,
                cache_bytes=asked.cache,
                host_bytes=asked.host,
                group_bytes=asked.groups,
            )
            break
        except ConfigError:
            if (looks, together, staging) == attempts[-1]:
                raise
    shares = weighted_shares(plain, demand, tables, popularity)
    ruled = Division(plain, shares, looks, *grouped(together, rows, curve, largest))
    known = popularity_reasons(plain, shares, demand, tables, popularity)
    if None not in (asked.cache, asked.host, asked.groups):
        return replace(ruled, reasons=("cache, host buffer and groups as asked for", *known))
    if all(share.cache_rows == tables[key].num_rows for key, share in ruled.shares.items()):
        return replace(ruled, reasons=("every table fits in the cache",))
    batches = min((len(rows) for rows in profiled.values()), default=0)
    if batches < 2 or curve is None:
        return replace(ruled, reasons=("divided by rule: there were no two batches to learn from", *known))
    outputs, ranked = plain.outputs, hot()
    sampling = fixed.scratch_bytes + on_the_way * fixed.sample_bytes + largest * around_bytes
    split = split_budget(
        budget - fixed.topology_bytes - fixed.labels_bytes - outputs - sampling,
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
        popularity=popularity,
    )
    shares = split.tables
    allotment = Allotment(
        budget,
        fixed.topology_bytes,
        fixed.labels_bytes,
        split.staging_bytes,
        split.waiting_bytes + sampling,
        outputs,
        sum(share.group_bytes for share in shares.values()),
        sum(host_bytes(share.host_rows, tables[key].row_bytes) for key, share in shares.items()),
        sum(share.cache_bytes(tables[key]) for key, share in shares.items()),
    )
    return Division(
        allotment,
        shares,
        split.window,
        *grouped(split.group_batches, split.disk_rows, curve, largest),
        min(1.0, split.disk_rows / max(rows, 1)),
        split.reasons,
    )


def _attempts(window: int, max_group: int, staging: int, asked: Asked) -> Iterator[tuple[int, int, int]]:
    """Give windows, groups and bytes of staging to try, largest first; what the user fixed stays."""
    looks = window if asked.window is None else asked.window
    together = max_group if asked.max_group is None else asked.max_group
    yield looks, together, staging
    while (together > 1 and asked.max_group is None) or (looks > 0 and asked.window is None):
        looks = looks // 2 if asked.window is None else looks
        together = max(1, together // 2) if asked.max_group is None else together
        yield looks, together, staging
    if asked.staging is None and staging > LEAST_STAGING_BYTES:
        yield looks, together, LEAST_STAGING_BYTES


def grouped(together: int, rows: float, curve: DeviceCurve | None, largest: int) -> tuple[int, int]:
    """Divide the batches that share each read into groups that keep the device busy: (batches in a group, groups).

    A step reads about as many rows as one group needs by the model of the device, ``rows`` for each of its batches. No
    group is larger than ``largest`` batches: some wait, with their samples, beside those that are read.
    """
    curve = DEFAULT_CURVE if curve is None else curve
    accesses = AccessModel.from_curve(curve).accesses_for(EFFICIENCY)
    size = min(together, largest, max(1, math.ceil(accesses / max(rows, 1.0))))
    return size, together // size


class NeverHot:
    """A ranking that puts no row first."""

    def top(self, count: int) -> Tensor:
        """Give no rows."""
        return torch.empty(0, dtype=torch.int64)

    def places(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Say that everything ranks before each of ``rows``."""
        return np.full(len(rows), np.iinfo(np.int64).max)

    def levels(self, rows: NDArray[np.int64] | None = None) -> NDArray[np.uint8]:
        """Say of each of ``rows`` that it is never used."""
        return np.zeros(0 if rows is None else len(rows), np.uint8)


def weighted_shares(
    allotment: Allotment,
    demand: Mapping[Hashable, TableDemand],
    tables: Mapping[Hashable, RowTable],
    popularity: Mapping[Hashable, bool | None] | None = None,
) -> dict[Hashable, TableShare]:
    """Share an allotment between tables by the bytes that a batch asks of them; ``popularity`` as for :func:`divide`."""
    part = _weights(demand)
    shares = {}
    for key, table in tables.items():
        host = rows_within(int(allotment.host_buffer * part[key]), table.row_bytes, table.num_rows, host_bytes)
        wanted = False if popularity is None else popularity[key]
        slot_bytes = table.row_bytes + demand[key].slot_overhead_bytes
        slots_in = functools.partial(_slots_in, slot_bytes, table.num_rows)
        memory = int(allotment.cache * part[key])
        cache, popular = divide_cache(memory, table, table.num_rows, wanted, slots_in)
        shares[key] = TableShare(cache, host, int(allotment.groups * part[key]), popular)
    return shares


def _slots_in(slot_bytes: int, most: int, memory: int) -> int:
    return min(memory // slot_bytes, most)


def popularity_reasons(
    allotment: Allotment,
    shares: Mapping[Hashable, TableShare],
    demand: Mapping[Hashable, TableDemand],
    tables: Mapping[Hashable, RowTable],
    popularity: Mapping[Hashable, bool | None],
) -> tuple[str, ...]:
    """Say of every table that a cache holds in part whether the popularity of its rows is known, and why."""
    return tuple(
        popularity_reason(shares[key], table, int(allotment.cache * _weights(demand)[key]), popularity[key])
        for key, table in tables.items()
        if popularity[key] is not False and 0 < shares[key].cache_rows < table.num_rows
    )


def _weights(demand: Mapping[Hashable, TableDemand]) -> dict[Hashable, float]:
    weight = {key: max(1, need.rows * need.row_bytes) for key, need in demand.items()}
    return {key: value / sum(weight.values()) for key, value in weight.items()}
