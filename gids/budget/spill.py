"""Whether rows are worth spilling, and for how many batches at once: by probed speeds, beside what reading online costs.

One pass reads the tables in order and writes the rows of S batches, which are then read in order:

    tables / (S * read) + rows of a batch / write + rows of a batch / read back     seconds a batch

The larger S, the less of a pass each batch pays for, and the more memory its row ids and buffers take from the host
buffer, which leaves more rows to be written.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from gids.budget.division import Division, Memory, Pace, Profiled, divide
from gids.budget.parts import Demand, Request, SpillPlan
from gids.budget.split import FAR_ROW_BYTES
from gids.errors import ConfigError
from gids.storage import DeviceCurve
from gids.storage.write_probe import WriteRates
from gids.table import RowTable
from gids.tiers.hot_rows import HotRows
from gids.tiers.spill import BLOCK_BYTES
from gids.types import TableKey
from gids.units import format_bytes

#: Parts of the memory that row ids and buffers of a superbatch may take; the best of them is taken.
SHARES = (1 / 16, 1 / 8, 1 / 4, 3 / 8, 1 / 2)
#: Rows of a batch that are collected before they are written, and what else a chunk takes.
BUFFER_BYTES = 64 << 10
CHUNK_BYTES = 2 * 4096 + 256
#: Of a row that is spilled, beside its id in the sampled batch: the sorted list of its batch, and that of the pass.
SPILLED_ROW_BYTES = 8 + 8
LEAST_BLOCK_BYTES = 1 << 20
#: Bytes that a group of batches should read: a step of the pipeline then costs little beside it.
GROUP_BYTES = 32 << 20
MOST_GROUP_BATCHES = 16
#: Groups are divided by bytes alone: a chunk is one access however many rows it has.
ANY_ACCESSES = 1 << 40
#: Predictions are not exact: spilling must promise at least so much less time than reading online.
WORTH = 0.9
#: Batches of a profile that are looked at for what the host buffer serves.
LOOKED_AT = 8


@dataclass(frozen=True)
class SpillRequest:
    """What the user allows.

    Attributes
    ----------
    disk_bytes : int
        Most space.
    batches : int or None
        That one pass serves; None: as many as are best, where it pays at all.
    """

    disk_bytes: int
    batches: int | None = None


@dataclass(frozen=True)
class SpillCost:
    """Speeds and sizes that decide.

    Attributes
    ----------
    rates : WriteRates
        Of the disk that rows are spilled to.
    read : float
        Bytes per second of the tables in order.
    tables_bytes : int
        That a pass reads.
    """

    rates: WriteRates
    read: float
    tables_bytes: int

    def seconds(self, batches: int, rows_bytes: float) -> float:
        """Return the disk time of a batch with so many bytes of rows, where a pass serves so many batches."""
        each = rows_bytes / self.rates.write + rows_bytes / self.rates.read_back
        return self.tables_bytes / (batches * self.read) + each

    def fewest_batches(self, rows_bytes: float, online_seconds: float) -> int:
        """Return the fewest batches with which a pass costs no more than reading online."""
        left = online_seconds - rows_bytes / self.rates.write - rows_bytes / self.rates.read_back
        return math.ceil(self.tables_bytes / (self.read * left)) if left > 0 else 1 << 30


def divide_with_spill(
    online: Division,
    memory: Memory,
    demand: Demand,
    tables: Mapping[TableKey, RowTable],
    request: Request,
    pace: Pace,
    *,
    curve: DeviceCurve,
    rates: WriteRates,
    spill: SpillRequest,
    profiled: Profiled | None,
    ranked: bool,
) -> Division:
    """Return a division that spills rows, where that pays or is insisted on; else the one that reads online, and why.

    Parameters
    ----------
    online : Division
        How the budget is divided without.
    memory, demand, tables, request, pace, curve, profiled
        As for :func:`gids.budget.divide`.
    rates : WriteRates
        Of the disk that rows are spilled to.
    spill : SpillRequest
        What the user allows.
    ranked : bool
        Whether there is a ranking for a host buffer.
    """
    if all(share.cache_rows == tables[key].num_rows for key, share in online.shares.items()):
        return online
    cost = SpillCost(rates, curve.bandwidth, sum(table.total_bytes for table in tables.values()))
    found = [
        division
        for batches in _candidates(memory, demand, spill)
        if (division := _divided(memory, demand, tables, request, pace, curve, cost, spill, profiled, ranked, batches))
    ]
    if not found:
        return replace(online, reasons=(*online.reasons, "rows are not spilled: nothing fits beside the batches"))
    best = min(found, key=_seconds)
    plan = best.spill
    assert plan is not None
    at = (
        f"{plan.seconds * 1e3:.1f} ms a batch in passes for {plan.batches} "
        f"(written at {format_bytes(rates.write)}/s, read back at {format_bytes(rates.read_back)}/s)"
    )
    if spill.batches is None:
        if online.seconds is None:
            return replace(online, reasons=(*online.reasons, "rows are not spilled: no profile says what that saves"))
        beside = f"{online.seconds * 1e3:.1f} ms online"
        if plan.seconds > WORTH * online.seconds:
            return replace(online, reasons=(*online.reasons, f"rows are not spilled: {at}, {beside}"))
        rows_bytes = (plan.seconds - cost.seconds(plan.batches, 0)) / (1 / rates.write + 1 / rates.read_back)
        least = cost.fewest_batches(rows_bytes, online.seconds)
        plan = replace(plan, fewest_batches=min(plan.batches, least))
        at = f"{at}, {beside}"
    reasons = (f"rows are spilled: {at}", *(("as asked for",) if spill.batches is not None else ()))
    return replace(best, spill=plan, reasons=reasons, seconds=plan.seconds, list_bytes=online.list_bytes)


def _seconds(division: Division) -> float:
    assert division.spill is not None
    return division.spill.seconds


def _candidates(memory: Memory, demand: Demand, spill: SpillRequest) -> list[int]:
    """Return numbers of batches to try: what parts of the memory hold, no more than the disk does, in equal passes."""
    most = min(demand.batches, spill.disk_bytes // max(1, demand.batch_bytes + demand.sample_bytes))
    if most < 2:
        return []
    if spill.batches is not None:
        return [min(spill.batches, most)]
    each = demand.rows * (FAR_ROW_BYTES + SPILLED_ROW_BYTES) + BUFFER_BYTES + CHUNK_BYTES
    held = {min(most, int(memory.host * share) // each) for share in SHARES}
    return sorted({math.ceil(demand.batches / math.ceil(demand.batches / n)) for n in held if n > 1})


def _divided(
    memory: Memory,
    demand: Demand,
    tables: Mapping[TableKey, RowTable],
    request: Request,
    pace: Pace,
    curve: DeviceCurve,
    cost: SpillCost,
    spill: SpillRequest,
    profiled: Profiled | None,
    ranked: bool,
    batches: int,
) -> Division | None:
    """Divide for passes that serve so many batches: no cache, small groups, and all that is left holds hot rows."""
    block = min(BLOCK_BYTES, max(LEAST_BLOCK_BYTES, memory.host // 32))
    buffer = min(BUFFER_BYTES, demand.batch_bytes)
    asked = replace(
        request,
        cache=0,
        host_buffer=0,
        window=batches,
        accesses=ANY_ACCESSES,
        spill_bytes=spill.disk_bytes,
        spill_memory=block + batches * (buffer + CHUNK_BYTES + demand.rows * SPILLED_ROW_BYTES),
    )
    together = request.sweep_batches or max(1, min(MOST_GROUP_BATCHES, GROUP_BYTES // max(1, demand.batch_bytes)))
    for group in range(together, 0, -1):
        groups = int(2.5 * group * demand.batch_bytes) if request.groups is None else request.groups
        asked = replace(asked, sweep_batches=group, groups=groups)
        try:
            without = divide(memory, demand, tables, asked, pace, curve=curve)
            left = memory.host - without.allotment.total
            host = request.host_buffer if request.host_buffer is not None else (left if ranked else 0)
            found = divide(memory, demand, tables, replace(asked, host_buffer=max(0, host)), pace, curve=curve)
        except ConfigError:
            continue
        rows_bytes = _rows_bytes(found, demand, tables, profiled)
        seconds = cost.seconds(batches, rows_bytes)
        return replace(found, spill=SpillPlan(batches, 1, spill.disk_bytes, buffer, block, seconds))
    return None


def _rows_bytes(
    division: Division, demand: Demand, tables: Mapping[TableKey, RowTable], profiled: Profiled | None
) -> float:
    """Return the bytes of a batch's rows that the host buffer does not serve."""
    total = 0.0
    hot: Mapping[TableKey, HotRows] = {} if profiled is None else profiled.hot()
    for key, table in tables.items():
        rows = [] if profiled is None else list(profiled.batches.get(key, []))[:LOOKED_AT]
        if not rows:
            total += demand.tables[key].rows * table.row_bytes
            continue
        wanted = sum(len(ids) for ids in rows)
        if key in hot and division.shares[key].host_rows:
            held = sum(int((hot[key].places(ids.numpy()) < division.shares[key].host_rows).sum()) for ids in rows)
            wanted -= held
        total += wanted / len(rows) * table.row_bytes
    return total
