"""How a loader's memory is divided: by a short profile, or by rule where there is nothing to weigh up.

What is weighed up: a batch asks for rows. The constant host buffer serves some, the cache some; what is left of n
batches that are read together is read once, u(n) rows. On a device that takes ``per_read_s`` for a read and
``per_byte_s`` for a byte, neighbours closer than ``per_read_s / per_byte_s`` are one read, so a batch costs

    (reads(u) * per_read_s + bytes(u) * per_byte_s) / n

and memory is ``host + cache + groups + samples + outputs``. In a sweep (the CPU's way) the n batches began at different
places of the table, so on average half of each one's rows are in memory; a device that reads a group whole holds all of
them. Reading more together reads fewer rows, closer together; a larger host buffer leaves fewer rows, farther apart; a
longer window makes better use of a cache and holds more samples. Which of them is worth its memory depends on the graph,
so :func:`gids.budget.split.split_pool` tries them on a profile, with the planners of the run.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gids.budget.parts import (
    HELD_BY_CONSUMER,
    LEAST_STAGING_BYTES,
    MOST_STAGING_BYTES,
    SAMPLED_AHEAD,
    Allotment,
    Demand,
    Request,
    SpillPlan,
    TableShare,
    cache_bytes,
    require,
    rows_within,
)
from gids.budget.parts import (
    host_bytes as host_buffer_bytes,
)
from gids.budget.split import (
    FAR_ROW_BYTES,
    PLANNED_ROW_BYTES,
    WINDOW_ROW_BYTES,
    BudgetSplit,
    Pool,
    TableProfile,
    divide_cache,
    map_bytes,
    popularity_reason,
    spilled_bytes,
    split_pool,
)
from gids.errors import ConfigError
from gids.storage import DeviceCurve
from gids.table import RowTable
from gids.tiers.accumulator import AccessModel
from gids.tiers.hot_rows import HotRows
from gids.types import TableKey

#: Where no profile chooses and the user fixed nothing.
DEFAULT_WINDOW = 16
DEFAULT_SWEEP_BATCHES = 32
#: Of the memory for rows, what goes to groups by rule; the rest is cache. Large groups read rows once for many batches
#: *and* make neighbours on disk that merge; measured on a 4 M-row table with 20 % of it in memory, 1/4, 1/2 and 3/4 need
#: 26 k, 17 k and 13 k reads a batch, and all of it (no cache) 15 k.
GROUP_SHARE = 0.75
#: Most of the budget for samples of groups that wait to begin, or are gathered, beside those that share each read.
AROUND_SHARE = 1 / 16
#: Most of the budget for the rows' ids and next uses of a superbatch.
SUPERBATCH_SHARE = 1 / 4
#: Share of the device's peak that the accesses of a step aim for.
EFFICIENCY = 0.95
#: By rule, of a table's rows, what a host buffer with memory of its own (CUDA) holds.
HOST_RULE_SHARE = 0.1


@dataclass(frozen=True)
class Memory:
    """What there is, in bytes.

    Attributes
    ----------
    host : int
        Of the machine.
    device : int or None
        Of the GPU, where samples, groups, cache and delivered batches are; None where all of it is host memory.
    """

    host: int
    device: int | None = None


@dataclass(frozen=True)
class Pace:
    """How far the pipeline may run ahead, and what its backend's way of reading holds.

    Attributes
    ----------
    prefetch : int
        Batches that are finished, or being made, while the consumer works on another.
    groups_in_flight : int
        Groups that are read to their end, or about to be, and wait to be gathered.
    sample_workers : int
        Sampling threads.
    sweeps : bool
        Whether groups share each read in a sweep over the table; otherwise a group is read whole.
    plan_row_bytes, scratch_bytes : int
        Scratch for every row of a group that is planned, and scratch that does not grow.
    scratch_samples : int
        Sampling works in as much memory as so many samples, beside what the demand says.
    most_staging_bytes : int
        Beyond which memory that drives write to is of no use.
    """

    prefetch: int = 2
    groups_in_flight: int = 2
    sample_workers: int = 1
    sweeps: bool = True
    plan_row_bytes: int = 0
    scratch_bytes: int = 0
    scratch_samples: int = 0
    most_staging_bytes: int = MOST_STAGING_BYTES

    def held_batches(self, together: int) -> float:
        """Return the batches whose rows are in memory at once where ``together`` batches are read together.

        In a sweep they began at different times, so half of their rows are there; one batch is gathered while the next
        step is read.
        """
        if not self.sweeps:
            return together * self.groups_in_flight
        return together // 2 + 2 if together > 1 else 1


@dataclass(frozen=True)
class Profiled:
    """What was seen of a run.

    Attributes
    ----------
    batches : mapping of TableKey to sequence of Tensor
        Rows that consecutive batches asked for, equally many of every table.
    hot : callable
        Returns rankings for the host buffer by table, when they are needed; tables without one get none.
    """

    batches: Mapping[TableKey, Sequence[Tensor]]
    hot: Callable[[], Mapping[TableKey, HotRows]]


@dataclass(frozen=True)
class Division:
    """A budget, divided.

    Attributes
    ----------
    allotment : Allotment
        Parts of the whole loader.
    shares : dict of TableKey to TableShare
        Rows of cache and host buffer, and memory for groups, of every table.
    window : int
        Batches to look ahead.
    group_batches : int
        Batches to plan as one group, at most.
    sweep_groups : int
        Groups that share each read.
    prefetch, groups_in_flight : int
        As in :class:`Pace`, less where the memory does not hold so much.
    reasons : tuple of str
        What was chosen and why, a line each.
    window_map_bytes : int
        Of the samples' memory, what finds the rows of a window whose batches wait on disk.
    seconds : float or None
        Disk time of a batch's rows that a profile predicts; None where nothing was weighed up.
    list_bytes : int
        Of the topology's memory, what is left to neighbour lists of a graph on disk.
    spill : SpillPlan or None
        How rows of the window are spilled; None where they are read online.
    """

    allotment: Allotment
    shares: dict[TableKey, TableShare]
    window: int
    group_batches: int
    sweep_groups: int = 1
    prefetch: int = 2
    groups_in_flight: int = 2
    reasons: tuple[str, ...] = ()
    window_map_bytes: int = 0
    seconds: float | None = None
    list_bytes: int = 0
    spill: SpillPlan | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        plain = asdict(self)
        plain["shares"] = [[list(key), asdict(share)] for key, share in self.shares.items()]
        return plain

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> Division:
        """Take what :meth:`as_dict` returned, as JSON gives it back."""
        shares = {
            TableKey(kind if isinstance(kind, str) else tuple(kind), name): TableShare(**share)
            for (kind, name), share in plain["shares"]
        }
        fields = dict(plain) | {
            "allotment": Allotment(**plain["allotment"]),
            "shares": shares,
            "reasons": tuple(plain["reasons"]),
        }
        if fields.get("spill") is not None:
            fields["spill"] = SpillPlan(**fields["spill"])
        return cls(**fields)


@dataclass(frozen=True)
class _Attempt:
    """Sizes by rule, largest first; what the user fixed stays."""

    window: int
    together: int
    staging: int
    prefetch: int
    groups_in_flight: int


def divide(
    memory: Memory,
    demand: Demand,
    tables: Mapping[TableKey, RowTable],
    request: Request,
    pace: Pace,
    *,
    curve: DeviceCurve,
    drives: int = 1,
    profiled: Profiled | None = None,
    merge_gap_bytes: int | None = None,
    popularity: Mapping[TableKey, bool | None] | None = None,
) -> Division:
    """Divide memory between what must be there and the tiers of every table.

    Parameters
    ----------
    memory : Memory
        What there is. A budget that cannot be honoured is refused with the minimum; before that window, groups,
        prefetch and staging become smaller.
    demand : Demand
        What a batch needs.
    tables : mapping of TableKey to RowTable
        The tables.
    request : Request
        What the user fixed.
    pace : Pace
        How the pipeline runs.
    curve : DeviceCurve
        Of the device that holds the tables.
    drives : int
        Distinct devices under the tables' stripes.
    profiled : Profiled, optional
        What was seen; without it memory is divided by rule.
    merge_gap_bytes : int, optional
        Largest gap that a read spans, as the user gave it; None: what the curve advises.
    popularity : mapping of TableKey to bool or None, optional
        As for :func:`gids.budget.split.split_pool`; none by default.
    """
    popularity = dict.fromkeys(tables, False) if popularity is None else popularity
    if request.spill_bytes is not None and request.window is None:
        request = replace(request, window=_superbatch(memory, demand, request.spill_bytes))
    if request.window is not None:  # nothing is sampled beyond the end of an epoch
        request = replace(request, window=min(request.window, demand.batches))
    ruled = _by_rule(memory, demand, tables, request, pace, curve, drives, popularity)
    if None not in (request.cache, request.host_buffer, request.groups):
        return replace(ruled, reasons=("cache, host buffer and groups as asked for", *ruled.reasons))
    if all(share.cache_rows == tables[key].num_rows for key, share in ruled.shares.items()):
        return replace(ruled, reasons=("every table fits in the cache",))
    batches = 0 if profiled is None else min((len(rows) for rows in profiled.batches.values()), default=0)
    if profiled is None or batches < 2:
        return replace(ruled, reasons=("divided by rule: there were no two batches to learn from", *ruled.reasons))
    return _by_profile(
        memory, demand, tables, request, pace, curve, drives, profiled, merge_gap_bytes, popularity, ruled
    )


def _superbatch(memory: Memory, demand: Demand, spill_bytes: int) -> int:
    """Return the batches of a window whose samples are on disk: what a part of the memory, and the disk space, hold."""
    most = min(demand.batches, spill_bytes // max(1, demand.sample_bytes))

    def held_bytes(batches: int) -> int:
        return batches * demand.rows * FAR_ROW_BYTES + _far_map_bytes(demand, batches, memory.device is not None)

    share = int(memory.host * SUPERBATCH_SHARE)
    found = bisect.bisect_right(range(most + 1), share, key=held_bytes) - 1
    return max(DEFAULT_WINDOW, found)


def _far_map_bytes(demand: Demand, far: int, on_device: bool) -> int:
    return map_bytes({key: table.rows for key, table in demand.tables.items()}, demand.tables, far, on_device)


def _around(demand: Demand, budget: int, groups_in_flight: int) -> tuple[int, int]:
    """Return the most batches of a group, and the memory of the groups in flight for each of them."""
    around = groups_in_flight * (demand.sample_bytes + demand.rows * PLANNED_ROW_BYTES)
    return max(1, int(budget * AROUND_SHARE) // max(around, 1)), around


def _on_the_way(pace: Pace, prefetch: int) -> int:
    """Count the sampled batches that are in no window and no group: just made, or delivered."""
    return SAMPLED_AHEAD + pace.sample_workers + prefetch + HELD_BY_CONSUMER


def _attempts(demand: Demand, request: Request, pace: Pace, budget: int) -> Iterator[_Attempt]:
    staging = request.staging
    if staging is None:
        staging = min(pace.most_staging_bytes, max(LEAST_STAGING_BYTES, budget // 16)) if demand.tables else 0
    window = min(DEFAULT_WINDOW, demand.batches) if request.window is None else request.window
    together = min(DEFAULT_SWEEP_BATCHES, demand.batches) if request.sweep_batches is None else request.sweep_batches
    attempt = _Attempt(window, max(1, together), staging, pace.prefetch, pace.groups_in_flight)
    yield attempt
    while (attempt.together > 1 and request.sweep_batches is None) or (attempt.window > 0 and request.window is None):
        attempt = replace(
            attempt,
            window=attempt.window // 2 if request.window is None else attempt.window,
            together=max(1, attempt.together // 2) if request.sweep_batches is None else attempt.together,
        )
        yield attempt
    if request.staging is None and attempt.staging > LEAST_STAGING_BYTES:
        attempt = replace(attempt, staging=LEAST_STAGING_BYTES)
        yield attempt
    while attempt.prefetch > 1 or attempt.groups_in_flight > 1:
        attempt = replace(
            attempt, prefetch=max(1, attempt.prefetch - 1), groups_in_flight=max(1, attempt.groups_in_flight - 1)
        )
        yield attempt


def _by_rule(
    memory: Memory,
    demand: Demand,
    tables: Mapping[TableKey, RowTable],
    request: Request,
    pace: Pace,
    curve: DeviceCurve,
    drives: int,
    popularity: Mapping[TableKey, bool | None],
) -> Division:
    attempts = list(_attempts(demand, request, pace, memory.host))
    for number, attempt in enumerate(attempts):
        try:
            return _allot(memory, demand, tables, request, pace, attempt, curve, drives, popularity)
        except ConfigError:
            if number == len(attempts) - 1:
                raise
    raise AssertionError("there is always an attempt")


def _allot(
    memory: Memory,
    demand: Demand,
    tables: Mapping[TableKey, RowTable],
    request: Request,
    pace: Pace,
    attempt: _Attempt,
    curve: DeviceCurve,
    drives: int,
    popularity: Mapping[TableKey, bool | None],
) -> Division:
    """Divide by rule with the sizes of one attempt, or say what memory it takes."""
    pace = replace(pace, prefetch=attempt.prefetch, groups_in_flight=attempt.groups_in_flight)
    on_device = memory.device is not None
    pool = memory.host if memory.device is None else memory.device
    scratch = (demand.scratch_bytes + pace.scratch_samples * demand.sample_bytes) * pace.sample_workers
    scratch += pace.scratch_bytes + pace.plan_row_bytes * demand.rows * (1 if pace.sweeps else attempt.together)
    outputs = demand.output_bytes * (attempt.prefetch + HELD_BY_CONSUMER)
    groups = max(demand.batch_bytes * (1 if pace.sweeps else attempt.groups_in_flight), request.groups or 0)
    fixed = {"topology": demand.topology_bytes, "labels": demand.labels_bytes, "staging": attempt.staging}
    buffer = {"host buffer": request.host_buffer or 0}

    far = request.far_batches(attempt.window)
    # Spilled rows are found by their batch: no planner needs to find them by the row.
    far_map = 0 if request.spill_memory is not None else _far_map_bytes(demand, far, on_device)

    def parts(largest: int) -> tuple[int, dict[str, int]]:
        """Return the memory of samples, and of all that runs, with groups of so many batches."""
        waiting = attempt.window + 1 + attempt.together + attempt.groups_in_flight * largest
        ahead = waiting + _on_the_way(pace, attempt.prefetch)
        samples = demand.sample_bytes * ahead + demand.rows * WINDOW_ROW_BYTES * waiting
        samples += far_map - far * spilled_bytes(demand.sample_bytes, demand.rows)
        return samples, {
            f"{ahead} sampled batches": samples,
            "sampling and planning": scratch,
            f"{attempt.prefetch + HELD_BY_CONSUMER} batches in delivery": outputs,
            "rows being read": groups,
            "cache": request.cache or 0,
            "embeddings": demand.embeddings_bytes,
            "spilling": request.spill_memory or 0,
        }

    largest, _ = _around(demand, pool, attempt.groups_in_flight)
    largest = min(largest, attempt.together)
    samples, run = parts(largest)
    # Groups become smaller before a budget is refused: the minimum that the refusal names is then enough when given.
    while largest > 1 and sum(run.values()) > pool - (0 if on_device else sum((fixed | buffer).values())):
        largest //= 2
        samples, run = parts(largest)
    if on_device:
        require(pool, run, "device_budget")
        require(memory.host, fixed | buffer)
    else:
        require(pool, fixed | run | buffer)
    whole = sum(cache_bytes(table.num_rows, table.row_bytes) for table in tables.values())
    rest = pool - sum(run.values()) - (0 if on_device else sum(fixed.values()) + (request.host_buffer or 0))
    if request.groups is None:
        room = rest + groups
        whole_groups = demand.batch_bytes * attempt.together * attempt.groups_in_flight
        too_large = not pace.sweeps and attempt.together > 1 and whole_groups > room * GROUP_SHARE
        if too_large and request.sweep_batches is None:
            raise ConfigError("a group that is read whole must fit; a smaller one is tried next")
        most = int(demand.batch_bytes * pace.held_batches(attempt.together))
        groups = min(most, max(groups, int(room * GROUP_SHARE)))
        if request.cache is None and room - groups >= whole:
            groups = min(most, room - whole)
        rest = room - groups
    cache = min(rest, whole) if request.cache is None else request.cache
    host = request.host_buffer or 0
    if on_device and request.host_buffer is None:
        free = memory.host - sum(fixed.values())
        host = min(free, int(sum(table.total_bytes for table in tables.values()) * HOST_RULE_SHARE))
    allotment = Allotment(
        pool,
        demand.topology_bytes,
        demand.labels_bytes,
        attempt.staging,
        samples,
        outputs,
        groups,
        max(host, 0),
        cache,
        scratch,
        demand.embeddings_bytes,
        request.spill_memory or 0,
    )
    shares = _weighted_shares(allotment, demand, tables, popularity)
    group_batches, sweep_groups = group_size(
        attempt.together, demand.rows, curve, largest, drives, pace.sweeps, request.accesses
    )
    return Division(
        allotment,
        shares,
        attempt.window,
        group_batches,
        sweep_groups,
        attempt.prefetch,
        attempt.groups_in_flight,
        tuple(_popularity_reasons(allotment, shares, demand, tables, popularity)),
        far_map,
    )


def _by_profile(
    memory: Memory,
    demand: Demand,
    tables: Mapping[TableKey, RowTable],
    request: Request,
    pace: Pace,
    curve: DeviceCurve,
    drives: int,
    profiled: Profiled,
    merge_gap_bytes: int | None,
    popularity: Mapping[TableKey, bool | None],
    ruled: Division,
) -> Division:
    pace = replace(pace, prefetch=ruled.prefetch, groups_in_flight=ruled.groups_in_flight)
    on_device = memory.device is not None
    pool_bytes = memory.host if memory.device is None else memory.device
    plain = ruled.allotment
    together = ruled.group_batches * ruled.sweep_groups
    largest, around = _around(demand, pool_bytes, pace.groups_in_flight)
    largest = min(largest, together)
    fixed = 0 if on_device else demand.topology_bytes + demand.labels_bytes
    sampling = (demand.scratch_bytes + pace.scratch_samples * demand.sample_bytes) * pace.sample_workers
    sampling += pace.scratch_bytes
    sampling += _on_the_way(pace, pace.prefetch) * demand.sample_bytes + largest * around
    plan_row_bytes = pace.plan_row_bytes * demand.rows
    pool = Pool(
        pool_bytes - fixed - plain.outputs - sampling - demand.embeddings_bytes,
        host=memory.host - demand.topology_bytes - demand.labels_bytes - plain.staging if on_device else None,
        staging=plain.staging if on_device else None,
        held_batches=pace.held_batches,
        scratch_bytes=lambda batches: plan_row_bytes * (1 if pace.sweeps else batches),
    )
    ranked = profiled.hot()
    found: BudgetSplit | None = split_pool(
        pool,
        {key: TableProfile(tables[key], profiled.batches[key], ranked.get(key, NeverHot())) for key in tables},
        curve,
        request,
        most_together=max(1, together),
        most_window=demand.batches,
        sample_bytes=demand.sample_bytes,
        merge_gap_bytes=merge_gap_bytes,
        popularity=popularity,
    )
    if found is None:
        return replace(ruled, reasons=("divided by rule: the smallest setting only just fits", *ruled.reasons))
    shares = found.tables
    allotment = Allotment(
        pool_bytes,
        demand.topology_bytes,
        demand.labels_bytes,
        plain.staging if on_device else found.staging_bytes,
        found.waiting_bytes + sampling,
        plain.outputs,
        sum(share.group_bytes for share in shares.values()),
        sum(share.host_bytes(tables[key]) for key, share in shares.items()),
        sum(share.cache_bytes(tables[key]) for key, share in shares.items()),
        embeddings=demand.embeddings_bytes,
    )
    group_batches, sweep_groups = group_size(
        found.sweep_batches, found.disk_rows, curve, largest, drives, pace.sweeps, request.accesses
    )
    return Division(
        allotment,
        shares,
        found.window,
        group_batches,
        sweep_groups,
        pace.prefetch,
        pace.groups_in_flight,
        found.reasons,
        _far_map_bytes(demand, request.far_batches(found.window), on_device),
        seconds=found.seconds,
    )


def group_size(
    together: int,
    rows: float,
    curve: DeviceCurve,
    largest: int,
    drives: int = 1,
    sweeps: bool = True,
    accesses: float | None = None,
) -> tuple[int, int]:
    """Divide the batches that are read together into groups that keep the devices busy: (batches in a group, groups).

    A step reads about as many rows as one group needs by the model of the devices (or ``accesses``, where the user said
    how many), ``rows`` for each of its batches. No
    group is larger than ``largest`` batches: some wait, with their samples, beside those that are read. Without sweeps
    all of them are one group.
    """
    if not sweeps:
        return together, 1
    if accesses is None:
        accesses = AccessModel.from_curve(curve, drives).accesses_for(EFFICIENCY)
    size = min(together, largest, max(1, math.ceil(accesses / max(rows, 1.0))))
    return size, together // size


class NeverHot:
    """A ranking that puts no row first."""

    def top(self, count: int) -> Tensor:
        """Return no rows."""
        return torch.empty(0, dtype=torch.int64)

    def places(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Say that everything ranks before each of ``rows``."""
        return np.full(len(rows), np.iinfo(np.int64).max)

    def levels(self, rows: NDArray[np.int64] | None = None) -> NDArray[np.uint8]:
        """Say of each of ``rows`` that it is never used."""
        return np.zeros(0 if rows is None else len(rows), np.uint8)


def _weighted_shares(
    allotment: Allotment,
    demand: Demand,
    tables: Mapping[TableKey, RowTable],
    popularity: Mapping[TableKey, bool | None],
) -> dict[TableKey, TableShare]:
    """Share an allotment between tables by the bytes that a batch asks of them; what one cannot use, others get."""
    left = {"cache": allotment.cache, "host": allotment.host_buffer}
    weights, shares = demand.weights(), {}
    # Small tables first: what they leave of their part is there for the large ones.
    for key in sorted(tables, key=lambda key: tables[key].total_bytes):
        table, weight = (
            tables[key],
            weights[key] / max(sum(weights[other] for other in tables if other not in shares), 1e-9),
        )
        host = rows_within(int(left["host"] * weight), table.row_bytes, table.num_rows, host_buffer_bytes)
        cache, popular = divide_cache(int(left["cache"] * weight), table, table.num_rows, popularity[key])
        share = TableShare(cache, host, int(allotment.groups * weights[key]), popular)
        left["cache"] -= share.cache_bytes(table)
        left["host"] -= share.host_bytes(table)
        shares[key] = share
    return {key: shares[key] for key in tables}


def _popularity_reasons(
    allotment: Allotment,
    shares: Mapping[TableKey, TableShare],
    demand: Demand,
    tables: Mapping[TableKey, RowTable],
    popularity: Mapping[TableKey, bool | None],
) -> Iterator[str]:
    """Say of every table that a cache holds in part whether the popularity of its rows is known, and why."""
    weights = demand.weights()
    for key, table in tables.items():
        if popularity[key] is not False and 0 < shares[key].cache_rows < table.num_rows:
            yield popularity_reason(shares[key], table, int(allotment.cache * weights[key]), popularity[key])
