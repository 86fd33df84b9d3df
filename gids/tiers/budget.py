"""Divides one memory budget between cache, host buffer, groups, window and staging, from a short profile."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from numpy.typing import NDArray
from torch import Tensor

from gids._native import row_map_entries
from gids.errors import ConfigError
from gids.table import RowTable
from gids.tiers.accumulator import AccessModel
from gids.tiers.profile import Profile, Trial
from gids.units import format_bytes

#: Ids, next uses and map entries of one row of one batch in the window.
WINDOW_ROW_BYTES = 8 + 4 + 48
LEAST_STAGING_BYTES = 1 << 20
MOST_STAGING_BYTES = 32 << 20
#: A larger setting must save at least this share of the disk time, or the smaller one is kept.
WORTHWHILE = 0.01


def cache_bytes(rows: int, row_bytes: int) -> int:
    """Memory of a cache of ``rows`` slots: the rows, their states, and the map that finds them."""
    return rows * (row_bytes + 20) + 16 * (row_map_entries(rows + rows // 4) + row_map_entries(0)) if rows else 0


def host_bytes(rows: int, row_bytes: int) -> int:
    """Memory of a host buffer of ``rows`` rows."""
    return rows * (row_bytes + 8) + 16 * row_map_entries(rows) if rows else 0


def rows_within(budget: int, row_bytes: int, most: int, cost: Any = cache_bytes) -> int:
    """Give the most rows, up to ``most``, whose ``cost(rows, row_bytes)`` is within ``budget``."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if cost(middle, row_bytes) <= budget else (low, middle - 1)
    return low


@dataclass(frozen=True)
class TableProfile:
    """One table and what a short run asked of it.

    Attributes
    ----------
    table : RowTable
        Node or edge features.
    batches : sequence of Tensor
        int64 rows of consecutive batches; all tables have equally many. About twice the window makes a good profile.
    scores : array, optional
        A ranking for the host buffer (:func:`gids.tiers.rank_nodes`); by default accesses counted in the first half.
    """

    table: RowTable
    batches: Sequence[Tensor]
    scores: NDArray[Any] | None = None


@dataclass(frozen=True)
class TableShare:
    """What one table gets."""

    cache_rows: int
    host_rows: int
    group_bytes: int


@dataclass(frozen=True)
class BudgetSplit:
    """A budget, divided. ``total <= budget``."""

    budget: int
    staging_bytes: int
    window: int
    window_bytes: int
    group_batches: int
    tables: dict[Hashable, TableShare]
    table_bytes: dict[Hashable, int]
    reasons: tuple[str, ...]

    @property
    def total(self) -> int:
        """Bytes that were given away."""
        return self.staging_bytes + self.window_bytes + sum(self.table_bytes.values())

    def __str__(self) -> str:
        return "\n".join([f"budget {format_bytes(self.budget)}, {format_bytes(self.total)} of it used", *self.reasons])


def split_budget(
    budget: int,
    profiles: Mapping[Hashable, TableProfile],
    model: AccessModel,
    *,
    bandwidth: float = 3e9,
    cache: int | None = None,
    host: int | None = None,
    group: int | None = None,
    staging: int | None = None,
    window: int | None = None,
    groups_in_flight: int = 2,
) -> BudgetSplit:
    """Divide ``budget`` so that the profile's batches would have taken the least disk time.

    Every candidate is tried on the profile with the real planner, on a sample of the rows.

    Parameters
    ----------
    budget : int
        Bytes for everything that is divided here.
    profiles : mapping of table key to TableProfile
        The tables that share it.
    model : AccessModel
        The drives.
    bandwidth : float
        Bytes per second of large reads: no row costs less than its bytes.
    cache, host, group, staging : int, optional
        Bytes that the user fixed, over all tables; they are kept as they are.
    window : int, optional
        Batches to look ahead, if the user fixed them.
    groups_in_flight : int
        Groups whose rows are in memory at a time.
    """
    if not profiles or any(len(p.batches) < 2 for p in profiles.values()):
        raise ConfigError("profiles must have at least one table with two batches each")
    if len({len(p.batches) for p in profiles.values()}) != 1:
        raise ConfigError("profiles must have equally many batches of every table")
    chooser = _Chooser(
        budget, profiles, model, bandwidth, groups_in_flight, _Fixed(cache, host, group, staging, window)
    )
    return chooser.choose()


@dataclass(frozen=True)
class _Fixed:
    cache: int | None
    host: int | None
    group: int | None
    staging: int | None
    window: int | None


@dataclass(frozen=True)
class _Setting:
    """A candidate: batches in the window, batches in a group, share of the row memory that is host buffer."""

    window: int
    group: int
    host_share: float


class _Chooser:
    def __init__(
        self,
        budget: int,
        profiles: Mapping[Hashable, TableProfile],
        model: AccessModel,
        bandwidth: float,
        in_flight: int,
        fixed: _Fixed,
    ):
        self.budget, self.model, self.in_flight, self.fixed = budget, model, in_flight, fixed
        self.tables = {key: p.table for key, p in profiles.items()}
        self.profiles = {key: Profile(p.table.num_rows, p.batches, p.scores) for key, p in profiles.items()}
        self.row_cost = {key: max(1 / model.peak_iops, t.row_bytes / bandwidth) for key, t in self.tables.items()}
        self.batch_rows = sum(profile.largest for profile in self.profiles.values())
        self.batch_bytes = sum(self.profiles[key].largest * table.row_bytes for key, table in self.tables.items())
        self.staging = (
            min(MOST_STAGING_BYTES, max(LEAST_STAGING_BYTES, budget // 16)) if fixed.staging is None else fixed.staging
        )
        self.half = next(iter(self.profiles.values())).count // 2
        self.reasons: list[str] = []
        self.weights = dict.fromkeys(self.tables, 1.0 / len(self.tables))
        self._check()

    def window_bytes(self, window: int) -> int:
        return window * self.batch_rows * WINDOW_ROW_BYTES

    def _check(self) -> None:
        parts = {
            "staging": LEAST_STAGING_BYTES if self.fixed.staging is None else self.staging,
            "window": self.window_bytes(self.fixed.window or 0),
            "rows of one batch": self.batch_bytes if self.fixed.group is None else self.fixed.group,
            "cache": self.fixed.cache or 0,
            "host buffer": self.fixed.host or 0,
        }
        least = sum(parts.values())
        if self.fixed.group is not None and self.fixed.group < self.batch_bytes:
            raise ConfigError(f"group must hold one batch, {self.batch_bytes} bytes (got {self.fixed.group})")
        if self.budget < least:
            listed = ", ".join(f"{name} {format_bytes(value)}" for name, value in parts.items() if value)
            raise ConfigError(
                f"budget must be at least {format_bytes(least)} ({least} bytes): {listed} (got {format_bytes(self.budget)})"
            )
        if self.budget < least + self.staging - parts["staging"]:
            self.staging = parts["staging"]

    def choose(self) -> BudgetSplit:
        windows = [w for w in (0, 1, 2, 4, 8, 16, 32) if w <= self.half]
        groups = [g for g in (1, 2, 4, 8) if g <= max(self.half, 1)]
        fixed = self.fixed
        setting = _Setting(windows[-1] if fixed.window is None else fixed.window, 1, 0.0)
        while fixed.window is None and setting.window and self._row_bytes(setting) < 0:
            setting = replace(setting, window=windows[windows.index(setting.window) - 1])
        self._weigh(setting)
        if fixed.group is None:
            setting = self._best("group", "batches in a group", [replace(setting, group=g) for g in groups])
        if fixed.window is None:
            setting = self._best("window", "batches of window", [replace(setting, window=w) for w in windows])
        if fixed.cache is None and fixed.host is None:
            shares = [replace(setting, host_share=s) for s in (0.0, 0.25, 0.5, 0.75, 1.0)]
            setting = self._best("host_share", "of the rows' memory as host buffer", shares)
        return self._split(setting)

    def _group_bytes(self, setting: _Setting) -> int:
        """Memory for the rows of groups, as if every row of a batch had to be read."""
        if self.fixed.group is not None:
            return self.fixed.group
        wanted = setting.group * self.batch_bytes * self.in_flight
        # Where memory is scarce, groups of one batch do without the one that is read ahead.
        spare = self.budget - self.staging - self.window_bytes(setting.window)
        return wanted if setting.group > 1 else min(wanted, max(self.batch_bytes, spare // 4))

    def _row_bytes(self, setting: _Setting) -> int:
        """Memory left for cache and host buffer; negative if the setting does not fit."""
        asked = (self.fixed.cache or 0) + (self.fixed.host or 0)
        rest = self.budget - self.staging - self.window_bytes(setting.window) - self._group_bytes(setting)
        return rest if rest >= asked else -1

    def _memory(self, setting: _Setting) -> tuple[int, int]:
        """Bytes of cache and of host buffer, over all tables."""
        rest = self._row_bytes(setting)
        cache, host = self.fixed.cache, self.fixed.host
        if cache is not None and host is not None:
            return cache, host
        if cache is not None:
            return cache, rest - cache
        if host is not None:
            return rest - host, host
        taken = int(rest * setting.host_share)
        return rest - taken, taken

    def _rows(self, key: Hashable, setting: _Setting, weight: float) -> tuple[int, int]:
        cache, host = self._memory(setting)
        table = self.tables[key]
        held = rows_within(int(host * weight), table.row_bytes, table.num_rows, host_bytes)
        return rows_within(int(cache * weight), table.row_bytes, table.num_rows - held), held

    def _seconds(self, key: Hashable, setting: _Setting, weight: float) -> float:
        """Disk time of one batch of the profile for one table."""
        cache, host = self._rows(key, setting, weight)
        rows = self.profiles[key].disk_rows(Trial(cache, host, setting.window, setting.group))
        return rows * self.row_cost[key] + self.model.overhead_s / setting.group

    def _time(self, setting: _Setting) -> float:
        if self._row_bytes(setting) < 0:
            return float("inf")
        return sum(self._seconds(key, setting, weight) for key, weight in self.weights.items())

    def _weigh(self, setting: _Setting) -> None:
        """Give memory to tables in sixteenths, each to the table whose disk time it shortens most."""
        if len(self.tables) == 1 or self._row_bytes(setting) <= 0:
            return
        steps = 16
        given = dict.fromkeys(self.tables, 0)
        seconds = {key: [self._seconds(key, setting, n / steps) for n in range(steps + 1)] for key in self.tables}
        for _ in range(steps):
            # The gain of a step may only come with the next ones (a loop over rows), so look at the best average.
            def gain(key: Hashable) -> float:
                at, times = given[key], seconds[key]
                return max(((times[at] - times[n]) / (n - at) for n in range(at + 1, steps + 1)), default=-1.0)

            given[max(self.tables, key=gain)] += 1
        self.weights = {key: count / steps for key, count in given.items()}
        shares = ", ".join(f"{self.tables[key].name} {weight:.0%}" for key, weight in self.weights.items())
        self.reasons.append(f"tables: {shares} of the memory for rows, by the disk time that each part saves")

    def _best(self, name: str, words: str, settings: list[_Setting]) -> _Setting:
        """Take the smallest value that is within WORTHWHILE of the best, and say why."""
        times = [self._time(setting) for setting in settings]
        least = min(times)
        chosen = next(i for i, time in enumerate(times) if time <= least * (1 + WORTHWHILE))
        tried = ", ".join(
            f"{getattr(setting, name):g}: {time * 1e3:.1f}" for setting, time in zip(settings, times, strict=True)
        )
        self.reasons.append(
            f"{getattr(settings[chosen], name):g} {words}: disk time of a batch in ms by {name}: {tried}"
        )
        return settings[chosen]

    def _split(self, setting: _Setting) -> BudgetSplit:
        tables, used = {}, {}
        groups = self._group_bytes(setting)
        demand = {key: self.profiles[key].largest * table.row_bytes for key, table in self.tables.items()}
        for key, weight in self.weights.items():
            cache, host = self._rows(key, setting, weight)
            part = groups * demand[key] // max(self.batch_bytes, 1)
            tables[key] = TableShare(cache, host, part)
            row_bytes = self.tables[key].row_bytes
            used[key] = cache_bytes(cache, row_bytes) + host_bytes(host, row_bytes) + part
            self.reasons.append(
                f"{self.tables[key].name}: cache {cache} rows, host buffer {host} rows, groups {format_bytes(part)}"
            )
        kept = {name: value for name, value in vars(self.fixed).items() if value is not None}
        if kept:
            self.reasons.append("fixed by the user: " + ", ".join(f"{name} {value}" for name, value in kept.items()))
        self.reasons.append(
            f"staging {format_bytes(self.staging)}, window {format_bytes(self.window_bytes(setting.window))}"
        )
        return BudgetSplit(
            self.budget,
            self.staging,
            setting.window,
            self.window_bytes(setting.window),
            setting.group,
            tables,
            used,
            tuple(self.reasons),
        )
