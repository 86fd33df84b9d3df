"""The parts of a budget: what a batch demands, what the user fixed, and what every part is allotted."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass

from gids._native import row_map_entries
from gids.errors import ConfigError
from gids.table import RowTable
from gids.types import TableKey
from gids.units import format_bytes

#: Batches that the consumer holds: the one in training, and the one before it, which lives until the loop variable is
#: bound again.
HELD_BY_CONSUMER = 2
#: Sampled batches between the sampling and the planning thread; the window itself waits with the planner.
SAMPLED_AHEAD = 2
#: Batches differ; the largest that was seen is taken for this much more.
DEMAND_MARGIN = 1.1
#: Batches of a window that stay in memory where the others wait on disk.
NEAR_BATCHES = 8
LEAST_STAGING_BYTES = 1 << 20
MOST_STAGING_BYTES = 32 << 20


@dataclass(frozen=True)
class TableDemand:
    """What one batch asks of one table, at most, over the batches that were seen.

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
    """

    rows: int
    row_bytes: int
    out_row_bytes: int
    num_rows: int

    @classmethod
    def of(cls, table: RowTable, rows: int, out_item_bytes: int) -> TableDemand:
        """Take the largest batch that was seen, with a margin."""
        most = max(1, min(int(rows * DEMAND_MARGIN) + 1, table.num_rows))
        return cls(most, table.row_bytes, table.dim * out_item_bytes, table.num_rows)


@dataclass(frozen=True)
class Demand:
    """What the run needs, whoever samples it.

    Attributes
    ----------
    tables : mapping of TableKey to TableDemand
        Of one batch.
    sample_bytes : int
        Memory of one sampled batch.
    scratch_bytes : int
        Memory that the sampling of one batch works in, beyond what it returns.
    topology_bytes, labels_bytes : int
        Memory of the graph and of the labels.
    batches : int
        Of an epoch: no window or group is larger.
    made_bytes : int
        Memory of what a feed makes of one batch's rows ahead of training.
    embeddings_bytes : int
        Memory of a history's embeddings, where batches are delivered.
    """

    tables: Mapping[TableKey, TableDemand]
    sample_bytes: int = 0
    scratch_bytes: int = 0
    topology_bytes: int = 0
    labels_bytes: int = 0
    batches: int = 1 << 30
    made_bytes: int = 0
    embeddings_bytes: int = 0

    @property
    def rows(self) -> int:
        """Rows of one batch over all tables."""
        return sum(table.rows for table in self.tables.values())

    @property
    def batch_bytes(self) -> int:
        """Bytes of one batch's rows as they lie on disk."""
        return sum(table.rows * table.row_bytes for table in self.tables.values())

    @property
    def output_bytes(self) -> int:
        """Bytes of one batch as it is delivered: its rows, and what was made of them."""
        return self.made_bytes + sum(table.rows * table.out_row_bytes for table in self.tables.values())

    def weights(self) -> dict[TableKey, float]:
        """Return each table's share of the bytes that a batch asks for."""
        sizes = {key: max(1, table.rows * table.row_bytes) for key, table in self.tables.items()}
        return {key: size / sum(sizes.values()) for key, size in sizes.items()}


@dataclass(frozen=True)
class Request:
    """What the user fixed, in bytes and batches; None is left to the budget.

    Attributes
    ----------
    cache, host_buffer, groups, staging : int or None
        Bytes over all tables.
    window : int or None
        Batches to look ahead.
    sweep_batches : int or None
        Most batches that share each read.
    accesses : int or None
        Accesses that a group should have, rather than as many as the drives' curve asks for.
    spill_bytes : int or None
        Disk space for sampled batches of the window beyond the next :data:`NEAR_BATCHES`; None: all wait in memory.
    spill_memory : int or None
        Memory that a pass works in which spills the rows of the window; None: rows are not spilled.
    """

    cache: int | None = None
    host_buffer: int | None = None
    groups: int | None = None
    staging: int | None = None
    window: int | None = None
    sweep_batches: int | None = None
    accesses: int | None = None
    spill_bytes: int | None = None
    spill_memory: int | None = None

    def far_batches(self, window: int) -> int:
        """Return how many batches of a window wait on disk."""
        return 0 if self.spill_bytes is None else max(0, window - NEAR_BATCHES)


@dataclass(frozen=True)
class SpillPlan:
    """How the rows of many batches are spilled by one pass, and read in order afterwards.

    Attributes
    ----------
    batches : int
        That one pass serves, at most.
    fewest_batches : int
        A pass for fewer does not pay.
    disk_bytes : int
        Most space for rows, over all tables.
    buffer_bytes, block_bytes : int
        Of a batch's rows that are collected before they are written; of the table that are read before they are copied.
    seconds : float
        Disk time of a batch, predicted.
    """

    batches: int
    fewest_batches: int
    disk_bytes: int
    buffer_bytes: int
    block_bytes: int
    seconds: float


@dataclass(frozen=True)
class TableShare:
    """What one table gets.

    Attributes
    ----------
    cache_rows, host_rows : int
        Rows of cache and host buffer.
    group_bytes : int
        Memory for the rows of all groups in flight together.
    popular : bool
        Whether the cache knows how popular every row of the table is, see :class:`gids.tiers.Planner`.
    """

    cache_rows: int
    host_rows: int
    group_bytes: int
    popular: bool = False

    def cache_bytes(self, table: RowTable) -> int:
        """Memory of the cache with everything that belongs to it."""
        return cache_bytes(self.cache_rows, table.row_bytes) + (table.num_rows if self.popular else 0)

    def host_bytes(self, table: RowTable) -> int:
        """Memory of the host buffer."""
        return host_bytes(self.host_rows, table.row_bytes)


@dataclass(frozen=True)
class Allotment:
    """How a budget is divided. All in bytes, for the whole loader."""

    budget: int
    topology: int = 0
    labels: int = 0
    staging: int = 0
    samples: int = 0
    outputs: int = 0
    groups: int = 0
    host_buffer: int = 0
    cache: int = 0
    scratch: int = 0
    embeddings: int = 0
    spill: int = 0

    @property
    def parts(self) -> dict[str, int]:
        """Return the parts by name."""
        return {name: value for name, value in asdict(self).items() if name != "budget"}

    @property
    def total(self) -> int:
        """Sum of the parts; at most :attr:`budget`."""
        return sum(self.parts.values())

    def __str__(self) -> str:
        parts = ", ".join(
            f"{name.replace('_', ' ')} {format_bytes(value)}" for name, value in self.parts.items() if value
        )
        return f"budget {format_bytes(self.budget)}: {parts}"


def require(budget: int, parts: Mapping[str, int], name: str = "budget") -> None:
    """Refuse a budget that is smaller than its parts, with the minimum and what it consists of."""
    least = sum(parts.values())
    if budget < least:
        listed = ", ".join(f"{part} {format_bytes(value)}" for part, value in parts.items() if value)
        raise ConfigError(
            f"{name} must be at least {format_bytes(least)} ({least} bytes): {listed} (got {format_bytes(budget)})"
        )


def cache_bytes(rows: int, row_bytes: int) -> int:
    """Memory of a cache of ``rows`` slots: the rows, their states, and the map that finds them."""
    return rows * (row_bytes + 20) + 16 * (row_map_entries(rows + rows // 4) + row_map_entries(0)) if rows else 0


def host_bytes(rows: int, row_bytes: int) -> int:
    """Memory of a host buffer of ``rows`` rows."""
    return rows * (row_bytes + 8) + 16 * row_map_entries(rows) if rows else 0


def rows_within(budget: int, row_bytes: int, most: int, cost: Callable[[int, int], int] = cache_bytes) -> int:
    """Return the most rows, up to ``most``, whose ``cost(rows, row_bytes)`` is within ``budget``."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if cost(middle, row_bytes) <= budget else (low, middle - 1)
    return low
