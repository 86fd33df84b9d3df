"""The memory budget: what must be there, what may grow, and the error that says the minimum."""

from __future__ import annotations

import os
from collections.abc import Hashable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from gids.errors import ConfigError
from gids.tiers.budget import WINDOW_ROW_BYTES
from gids.units import format_bytes

#: Batches that the consumer holds: the one in training, and the one before it, which lives until the loop variable is
#: bound again.
BATCHES_IN_HANDS = 2
#: Of the memory for rows, what goes to groups; the rest is cache. Large groups read rows once for many batches *and*
#: make neighbours on disk that merge; measured on a 4 M-row table with 20 % of it in memory, 1/4, 1/2 and 3/4 need
#: 26 k, 17 k and 13 k reads a batch, and all of it (no cache) 15 k.
GROUP_SHARE = 0.75


@dataclass(frozen=True)
class TableDemand:
    """What one batch asks of one table, at most, over the batches of a short profile.

    Attributes
    ----------
    rows : int
        Rows of a batch.
    row_bytes : int
        Bytes of a row in the table.
    out_row_bytes : int
        Bytes of a row in the batch, after conversion.
    num_rows : int
        Rows of the table: the most that a cache can use.
    slot_overhead_bytes : int
        Lookup structures for each row of the cache.
    """

    rows: int
    row_bytes: int
    out_row_bytes: int
    num_rows: int
    slot_overhead_bytes: int = 64


@dataclass(frozen=True)
class Fixed:
    """Memory that does not depend on how the rest is divided."""

    topology_bytes: int = 0
    labels_bytes: int = 0
    staging_bytes: int = 0
    sample_bytes: int = 0  # of one sampled batch
    scratch_bytes: int = 0  # that sampling works in, beyond what it returns


@dataclass(frozen=True)
class Allotment:
    """How a budget is divided. All in bytes, for the whole loader; tables share by what a batch asks of them."""

    budget: int
    topology: int
    labels: int
    staging: int
    samples: int
    outputs: int
    groups: int
    host_buffer: int
    cache: int

    @property
    def total(self) -> int:
        """Sum of the parts; at most :attr:`budget`."""
        return sum(value for name, value in asdict(self).items() if name != "budget")

    def __str__(self) -> str:
        parts = ", ".join(f"{name} {format_bytes(value)}" for name, value in asdict(self).items() if name != "budget")
        return f"budget {format_bytes(self.budget)}: {parts}"


def available_bytes() -> int:
    """Memory that this process could still take: the machine's, or its cgroup's where that is less."""
    from gids.bench.provenance import memory_limit_bytes

    fields = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    free = int(fields["MemAvailable"].split()[0]) * 1024
    limit = memory_limit_bytes()
    return free if limit is None else min(free, limit)


def default_budget() -> int:
    """Half of what is available, shared by the ranks on this machine; rounded, so that they agree on it."""
    return max(available_bytes() // (2 * local_processes()) >> 26 << 26, 1 << 26)


def local_processes() -> int:
    """Give the number of ranks that torchrun started on this machine."""
    return max(1, int(os.environ.get("LOCAL_WORLD_SIZE", "1")))


def held_batches(together: int) -> int:
    """Give the batches whose rows are in memory at once where ``together`` batches share each read.

    They began at different times, so half of their rows are there; one batch is gathered while the next step is read.
    """
    return together // 2 + 2 if together > 1 else 1


def allot(
    budget: int,
    fixed: Fixed,
    demand: Mapping[Hashable, TableDemand],
    *,
    ahead: int,
    planned: int,
    held: int,
    prefetch: int,
    cache_bytes: int | None,
    host_bytes: int | None,
    group_bytes: int | None,
) -> Allotment:
    """Divide ``budget``; what the user fixed (not None) is kept, the rest is shared out.

    Rows that several batches need are read once when the batches are read together, and not at all when they stay in
    the cache: see :data:`GROUP_SHARE`.

    Parameters
    ----------
    budget, fixed, demand : int, Fixed, mapping of table key to TableDemand
        What there is, what is needed in any case, and what each batch asks for.
    ahead : int
        Batches that are sampled and not delivered.
    planned : int
        Batches of which the planner keeps every row.
    held : int
        Batches whose rows are in memory at once, at most, see :func:`held_batches`.
    prefetch : int
        As in :class:`gids.Loader`.
    cache_bytes, host_bytes, group_bytes : int, optional
        What the user fixed.
    """
    batch = sum(table.rows * table.row_bytes for table in demand.values())
    outputs = sum(table.rows * table.out_row_bytes for table in demand.values()) * (prefetch + BATCHES_IN_HANDS)
    waiting = fixed.sample_bytes * ahead + sum(table.rows for table in demand.values()) * WINDOW_ROW_BYTES * planned
    samples = waiting + fixed.scratch_bytes
    rest = budget - fixed.topology_bytes - fixed.labels_bytes - fixed.staging_bytes - samples - outputs
    asked = (cache_bytes or 0) + (host_bytes or 0)
    least_groups = max(batch, group_bytes or 0)
    if rest < least_groups + asked:
        parts = {
            "topology": fixed.topology_bytes,
            "labels": fixed.labels_bytes,
            "staging": fixed.staging_bytes,
            f"{ahead} sampled batches": waiting,
            "sampling": fixed.scratch_bytes,
            f"{prefetch + BATCHES_IN_HANDS} batches in delivery": outputs,
            "rows being read": least_groups,
            "cache": cache_bytes or 0,
            "host buffer": host_bytes or 0,
        }
        least = budget - rest + least_groups + asked
        listed = ", ".join(f"{name} {format_bytes(value)}" for name, value in parts.items() if value)
        raise ConfigError(
            f"budget must be at least {format_bytes(least)} ({least} bytes): {listed} (got {format_bytes(budget)})"
        )
    rest -= asked
    groups = min(batch * held, max(batch, int(rest * GROUP_SHARE))) if group_bytes is None else group_bytes
    host = host_bytes or 0
    whole = sum(table.num_rows * (table.row_bytes + table.slot_overhead_bytes) for table in demand.values())
    cache = min(rest - groups, whole) if cache_bytes is None else cache_bytes
    if group_bytes is None and cache_bytes is None and cache == whole:
        groups = min(batch * held, rest - cache)
    return Allotment(
        budget,
        fixed.topology_bytes,
        fixed.labels_bytes,
        fixed.staging_bytes,
        samples,
        outputs,
        groups,
        host,
        cache,
    )
