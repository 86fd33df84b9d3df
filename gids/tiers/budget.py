"""Divides one memory budget between cache, host buffer, groups, window and staging, from a short profile."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from gids._native import row_map_entries
from gids.errors import ConfigError
from gids.storage import DeviceCurve
from gids.table import RowTable
from gids.tiers.hot_rows import HotRows
from gids.tiers.profile import DiskModel, Outcome, Profile, Trial
from gids.units import format_bytes

#: What the planner keeps of one row of one batch that waits: id, next use, and its entry in the map of last uses.
WINDOW_ROW_BYTES = 8 + 4 + 48
#: And of one that is planned and not gathered: its location, its place among the rows that are read, twice, its slot.
PLANNED_ROW_BYTES = 8 + 8 + 16 + 4
LEAST_STAGING_BYTES = 1 << 20
MOST_STAGING_BYTES = 32 << 20
#: A larger setting must save at least this share of the disk time, or the smaller one is kept.
WORTHWHILE = 0.01
#: Groups differ: room for one that is this much larger than the profile's largest.
GROUP_MARGIN = 1.05
WINDOWS = (0, 1, 2, 4, 8, 16, 32)
GROUPS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
#: The host buffer goes first: a constant row costs no planning, and is copied once for all epochs and processes.
HOST_SHARES = (1.0, 0.75, 0.5, 0.25, 0.0)
#: Parts of what groups would take without a cache that are tried as their room.
ROOMS = (0.35, 0.5, 0.65, 0.8, 1.0)
#: Knowing how popular every row of a table is takes one byte a row. Of a cache's memory, the most that may go there: it
#: adds 2 to 6 hits to a hundred requests where a cache holds many times the window, and the last 1/16 of a cache adds fewer.
POPULARITY_SHARE = 1 / 16
#: Parts in which memory is dealt out to tables.
PARTS = 16


def cache_bytes(rows: int, row_bytes: int) -> int:
    """Memory of a cache of ``rows`` slots: the rows, their states, and the map that finds them."""
    return rows * (row_bytes + 20) + 16 * (row_map_entries(rows + rows // 4) + row_map_entries(0)) if rows else 0


def divide_cache(
    memory: int, table: RowTable, most: int, popularity: bool | None, rows_in: Callable[[int], int]
) -> tuple[int, bool]:
    """Give the rows that a cache of ``memory`` bytes holds and whether it knows how popular every row of the table is.

    Parameters
    ----------
    memory : int
        Bytes of the cache with everything that belongs to it.
    table : RowTable
        Whose rows.
    most : int
        Rows that it can be asked for.
    popularity : bool or None
        What the user wants; None leaves it to :data:`POPULARITY_SHARE`.
    rows_in : callable
        Gives the rows, up to ``most``, for which so many bytes are enough.
    """
    rows = rows_in(memory)
    wanted = table.num_rows <= memory * POPULARITY_SHARE if popularity is None else popularity
    if not wanted or rows == most:  # nothing to choose where everything fits
        return rows, False
    left = rows_in(max(memory - table.num_rows, 0))
    return (left, True) if left else (rows, False)


def popularity_reason(share: TableShare, table: RowTable, memory: int, wanted: bool | None) -> str:
    """Say why the cache of a table knows how popular rows are, or does not."""
    cost = format_bytes(table.num_rows)
    if share.popular:
        return f"{table.name}: popularity of rows beyond the window is known, {cost}"
    why = f"of a cache of {format_bytes(memory)}"
    if wanted is None:
        return f"{table.name}: popularity of rows beyond the window is not known, {cost} is more than {POPULARITY_SHARE:.1%} {why}"
    return f"{table.name}: popularity of rows beyond the window is not known, {cost} {why} leaves no row"


def host_bytes(rows: int, row_bytes: int) -> int:
    """Memory of a host buffer of ``rows`` rows."""
    return rows * (row_bytes + 8) + 16 * row_map_entries(rows) if rows else 0


def rows_within(budget: int, row_bytes: int, most: int, cost: Callable[[int, int], int] = cache_bytes) -> int:
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
        int64 rows of consecutive batches; all tables have equally many. Windows and groups of up to half as many
        batches are considered.
    hot : HotRows, optional
        A ranking for the host buffer: :class:`RowScores` of :func:`rank_nodes`, :class:`EdgeScores` for edge features;
        by default accesses counted in the first half.
    """

    table: RowTable
    batches: Sequence[Tensor]
    hot: HotRows | None = None


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


@dataclass(frozen=True)
class BudgetSplit:
    """A budget, divided. ``total <= budget``.

    Attributes
    ----------
    budget : int
        What there was.
    staging_bytes : int
        Memory that the device writes to.
    window, group_batches : int
        Batches to look ahead, and to read together.
    waiting_bytes : int
        Sampled batches of window and group.
    tables : dict of table key to TableShare
        The rest.
    table_bytes : dict of table key to int
        Memory of each table's share.
    seconds : float
        Disk time of a batch that the profile predicts.
    disk_rows : float
        Rows that it predicts a batch reads.
    reasons : tuple of str
        What was chosen and why, a line each.
    """

    budget: int
    staging_bytes: int
    window: int
    group_batches: int
    waiting_bytes: int
    tables: dict[Hashable, TableShare]
    table_bytes: dict[Hashable, int]
    seconds: float
    disk_rows: float
    reasons: tuple[str, ...]

    @property
    def total(self) -> int:
        """Bytes that were given away."""
        return self.staging_bytes + self.waiting_bytes + sum(self.table_bytes.values())

    def __str__(self) -> str:
        return "\n".join([f"budget {format_bytes(self.budget)}, {format_bytes(self.total)} of it used", *self.reasons])


def split_budget(
    budget: int,
    profiles: Mapping[Hashable, TableProfile],
    curve: DeviceCurve,
    *,
    cache: int | None = None,
    host: int | None = None,
    group: int | None = None,
    staging: int | None = None,
    window: int | None = None,
    max_group: int = 16,
    sample_bytes: int = 0,
    merge_gap_bytes: int | None = None,
    popularity: Mapping[Hashable, bool | None] | None = None,
) -> BudgetSplit:
    """Divide ``budget`` so that the profile's batches would have taken the least disk time.

    Candidates are tried on the profile with the real planners, on a sample of the rows: a larger group reads more rows
    once and merges more neighbours, a larger cache or host buffer leaves fewer rows to read, a longer window makes
    better use of the cache; each takes memory from the others.

    Parameters
    ----------
    budget : int
        Bytes for everything that is divided here.
    profiles : mapping of table key to TableProfile
        The tables that share it.
    curve : DeviceCurve
        The device, from :func:`gids.storage.load_curve`.
    cache, host, group, staging : int, optional
        Bytes that the user fixed, over all tables; they are kept as they are.
    window : int, optional
        Batches to look ahead, if the user fixed them.
    max_group : int
        Most batches in a group.
    sample_bytes : int
        Memory of a sampled batch that waits in the window or group, beyond what the planner keeps of it.
    merge_gap_bytes : int, optional
        As readers will be told; by default what they take from the curve.
    popularity : mapping of table key to bool or None, optional
        Whether a table's cache is to know how popular every row is; None where its memory decides, which is the default
        for tables with a ranking.
    """
    if not profiles or any(len(p.batches) < 2 for p in profiles.values()):
        raise ConfigError("profiles must have at least one table with two batches each")
    if len({len(p.batches) for p in profiles.values()}) != 1:
        raise ConfigError("profiles must have equally many batches of every table")
    if max_group < 1:
        raise ConfigError(f"max_group must be at least 1 (got {max_group})")
    disk = DiskModel.of(curve, merge_gap_bytes)
    fixed = _Fixed(cache, host, group, staging, window)
    wanted = {key: p.hot is not None and (popularity or {}).get(key) for key, p in profiles.items()}
    return _Chooser(budget, profiles, disk, fixed, max_group, sample_bytes, wanted).choose()


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


@dataclass(frozen=True)
class _Fit:
    """A setting worked out: rows of each table's tiers, and what the profile says of them."""

    shares: dict[Hashable, TableShare]
    outcomes: dict[Hashable, Outcome]

    @property
    def seconds(self) -> float:
        return sum(outcome.seconds for outcome in self.outcomes.values())


class _Chooser:
    def __init__(
        self,
        budget: int,
        profiles: Mapping[Hashable, TableProfile],
        disk: DiskModel,
        fixed: _Fixed,
        max_group: int,
        sample_bytes: int,
        popularity: Mapping[Hashable, bool | None],
    ):
        self.budget, self.fixed, self.popularity = budget, fixed, popularity
        self.tables = {key: p.table for key, p in profiles.items()}
        self.profiles = {key: Profile(p.table, p.batches, disk, p.hot) for key, p in profiles.items()}
        rows = {key: profile.largest for key, profile in self.profiles.items()}
        self.batch_bytes = {key: rows[key] * table.row_bytes for key, table in self.tables.items()}
        self.waiting_batch_bytes = sample_bytes + sum(rows.values()) * WINDOW_ROW_BYTES
        self.planned_batch_bytes = sample_bytes + sum(rows.values()) * PLANNED_ROW_BYTES
        half = next(iter(self.profiles.values())).half
        self.windows = [w for w in WINDOWS if w <= half] if fixed.window is None else [fixed.window]
        self.groups = [g for g in GROUPS if g <= min(half, max_group)] or [1]
        self.staging = (
            min(MOST_STAGING_BYTES, max(LEAST_STAGING_BYTES, budget // 16)) if fixed.staging is None else fixed.staging
        )
        self.reasons: list[str] = []
        self._fits: dict[_Setting, _Fit | None] = {}
        self.weights = dict.fromkeys(self.tables, 1.0 / len(self.tables))
        self._check()

    def waiting_bytes(self, setting: _Setting) -> int:
        # One is planned while the others of its group are read.
        return (setting.window + 1) * self.waiting_batch_bytes + setting.group * self.planned_batch_bytes

    def _check(self) -> None:
        batch = sum(self.batch_bytes.values())
        smallest = _Setting(self.windows[0], 1, 0.0)
        parts = {
            "staging": LEAST_STAGING_BYTES if self.fixed.staging is None else self.staging,
            "sampled batches": self.waiting_bytes(smallest),
            "rows of one batch": batch if self.fixed.group is None else self.fixed.group,
            "cache": self.fixed.cache or 0,
            "host buffer": self.fixed.host or 0,
        }
        least = sum(parts.values())
        if self.fixed.group is not None and self.fixed.group < batch:
            raise ConfigError(f"group must hold one batch, {batch} bytes (got {self.fixed.group})")
        if self.budget < least:
            listed = ", ".join(f"{name} {format_bytes(value)}" for name, value in parts.items() if value)
            raise ConfigError(
                f"budget must be at least {format_bytes(least)} ({least} bytes): {listed} (got {format_bytes(self.budget)})"
            )
        if self.budget < least + self.staging - parts["staging"]:
            self.staging = parts["staging"]

    def choose(self) -> BudgetSplit:
        fitting = [w for w in self.windows if self._row_bytes(_Setting(w, 1, 0.0)) >= 0]
        setting = _Setting(fitting[-1], 1, 0.0)
        self._weigh(setting)
        host_free = self.fixed.cache is None and self.fixed.host is None
        chosen: dict[str, str] = {}
        options: dict[str, tuple[str, Sequence[Any]]] = {
            "group": ("batches in a group", self.groups),
            "window": ("batches of window", self.windows),
            "host_share": ("of the rows' memory as host buffer", HOST_SHARES if host_free else (0.0,)),
        }
        for name in (*options, "group"):  # groups once more, in the light of the others
            words, values = options[name]
            if len(values) > 1:
                settings = [replace(setting, **{name: value}) for value in values]
                setting, chosen[name] = self._best(name, words, settings)
        if host_free and 0 in self.windows:
            # Without a cache nobody needs a window: its memory makes groups and host buffer larger.
            constant = [replace(setting, window=0, group=group, host_share=1.0) for group in self.groups]
            without, why = self._best("group", "batches in a group, host buffer alone, no window", constant)
            if self._time(without) <= self._time(setting) * (1 + WORTHWHILE):
                setting, chosen = without, chosen | {"alone": why}
        self.reasons += chosen.values()
        return self._split(setting)

    def _row_bytes(self, setting: _Setting) -> int:
        """Memory for cache, host buffer and groups; negative if the setting leaves too little for them."""
        asked = (self.fixed.cache or 0) + (self.fixed.host or 0)
        rest = self.budget - self.staging - self.waiting_bytes(setting)
        least = sum(self.batch_bytes.values()) if self.fixed.group is None else self.fixed.group
        return rest if rest >= asked + least else -1

    def _memory(self, setting: _Setting, groups: int) -> tuple[int, int]:
        """Bytes of cache and of host buffer, over all tables, beside groups of so many bytes."""
        rest = self._row_bytes(setting) - groups
        cache, host = self.fixed.cache, self.fixed.host
        if cache is not None and host is not None:
            return cache, host
        if cache is not None:
            return cache, max(rest - cache, 0)
        if host is not None:
            return max(rest - host, 0), host
        taken = int(rest * setting.host_share)
        return rest - taken, taken

    def _rows(self, key: Hashable, memory: tuple[int, int], weight: float) -> tuple[int, int, bool]:
        """Rows of cache and host buffer, and whether the cache knows how popular rows are."""
        cache, host = memory
        table = self.tables[key]
        held = rows_within(int(host * weight), table.row_bytes, table.num_rows, host_bytes)
        most = table.num_rows - held
        rows, popular = divide_cache(
            int(cache * weight),
            table,
            most,
            self.popularity[key],
            lambda memory: rows_within(memory, table.row_bytes, most),
        )
        return rows, held, popular

    def _fit(self, setting: _Setting) -> _Fit | None:
        if setting not in self._fits:
            self._fits[setting] = self._work_out(setting)
        return self._fits[setting]

    def _work_out(self, setting: _Setting) -> _Fit | None:
        """Find how large the groups become beside a cache that gets the rest; None if it cannot be."""
        if self._row_bytes(setting) < 0:
            return None
        available = self._row_bytes(setting) - (self.fixed.cache or 0) - (self.fixed.host or 0)
        batch = sum(self.batch_bytes.values())
        if self.fixed.group is not None:
            return self._tried(setting, {key: self.fixed.group * b // batch for key, b in self.batch_bytes.items()})
        if setting.group == 1:
            # A batch must fit whole, for the cache may have none of it; one that is read ahead of it only if it can.
            times = min(max(available / 4 / batch, 1.0), 2 * GROUP_MARGIN)
            return self._tried(setting, {key: int(times * b) for key, b in self.batch_bytes.items()})
        # What the cache serves needs no room in the group, and room saved makes the cache larger: the least that does.
        unions = {key: profile.union_rows(setting.group) for key, profile in self.profiles.items()}
        most = self._rooms(setting.group, unions)
        largest = min(1.0, available / sum(most.values()))
        for part in ROOMS:
            rooms = {key: max(int(part * largest * room), self.batch_bytes[key]) for key, room in most.items()}
            fit = self._tried(setting, rooms) if sum(rooms.values()) <= available else None
            if fit is not None:
                needed = self._rooms(setting.group, {key: o.group_rows for key, o in fit.outcomes.items()})
                return self._tried(
                    setting, {key: min(rooms[key], max(needed[key], self.batch_bytes[key])) for key in rooms}
                )
        return None

    def _rooms(self, group: int, group_rows: dict[Hashable, int]) -> dict[Hashable, int]:
        """Bytes for batches that share each read: half of their rows are there, and what two of them need besides."""
        held = (group / 2 + 2) / group
        return {key: int(held * rows * GROUP_MARGIN) * self.tables[key].row_bytes for key, rows in group_rows.items()}

    def _tried(self, setting: _Setting, rooms: dict[Hashable, int]) -> _Fit | None:
        """Try the setting with so many bytes for groups; None if they do not fit."""
        memory = self._memory(setting, sum(rooms.values()))
        shares, outcomes = {}, {}
        for key, weight in self.weights.items():
            cache, host, popular = self._rows(key, memory, weight)
            outcome = self.profiles[key].run(Trial(cache, host, setting.window, setting.group, popular))
            if setting.group > 1 and self._rooms(setting.group, {key: outcome.group_rows})[key] > rooms[key]:
                return None
            shares[key], outcomes[key] = TableShare(cache, host, rooms[key], popular), outcome
        return _Fit(shares, outcomes)

    def _time(self, setting: _Setting) -> float:
        fit = self._fit(setting)
        return float("inf") if fit is None else fit.seconds

    def _weigh(self, setting: _Setting) -> None:
        """Give memory to tables in parts, each to the table whose disk time it shortens most."""
        if len(self.tables) == 1:
            return
        memory = self._memory(setting, sum(self.batch_bytes.values()))
        given = dict.fromkeys(self.tables, 0)
        seconds = {
            key: [self._alone(key, setting, self._rows(key, memory, n / PARTS)) for n in range(PARTS + 1)]
            for key in self.tables
        }
        for _ in range(PARTS):
            # The gain of a part may only come with the next ones (a loop over rows), so look at the best average.
            def gain(key: Hashable) -> float:
                at, times = given[key], seconds[key]
                return max(((times[at] - times[n]) / (n - at) for n in range(at + 1, PARTS + 1)), default=-1.0)

            given[max(self.tables, key=gain)] += 1
        self.weights = {key: count / PARTS for key, count in given.items()}
        shares = ", ".join(f"{self.tables[key].name} {weight:.0%}" for key, weight in self.weights.items())
        self.reasons.append(f"tables: {shares} of the memory for rows, by the disk time that each part saves")

    def _alone(self, key: Hashable, setting: _Setting, rows: tuple[int, int, bool]) -> float:
        cache, host, popular = rows
        return self.profiles[key].run(Trial(cache, host, setting.window, setting.group, popular)).seconds

    def _best(self, name: str, words: str, settings: list[_Setting]) -> tuple[_Setting, str]:
        """Take the smallest value that is within WORTHWHILE of the best, and say why."""
        times = [self._time(setting) for setting in settings]
        chosen = next(i for i, time in enumerate(times) if time <= min(times) * (1 + WORTHWHILE))
        tried = ", ".join(
            f"{getattr(setting, name):g}: {time * 1e3:.1f}"
            for setting, time in zip(settings, times, strict=True)
            if time < float("inf")
        )
        value = getattr(settings[chosen], name)
        return settings[chosen], f"{value:g} {words}: disk time of a batch in ms by {name}: {tried}"

    def _split(self, setting: _Setting) -> BudgetSplit:
        fit = self._fit(setting)
        assert fit is not None  # the smallest setting fits, or _check had refused the budget
        used = {}
        for key, share in fit.shares.items():
            table = self.tables[key]
            used[key] = share.cache_bytes(table) + host_bytes(share.host_rows, table.row_bytes) + share.group_bytes
            self.reasons.append(
                f"{table.name}: cache {share.cache_rows} rows, host buffer {share.host_rows} rows, "
                f"groups {format_bytes(share.group_bytes)}; a batch reads {fit.outcomes[key].disk_rows:.0f} of "
                f"{self.profiles[key].largest} rows"
            )
            partly = 0 < share.cache_rows < table.num_rows - share.host_rows
            if partly and self.popularity[key] is not False:
                self.reasons.append(popularity_reason(share, table, share.cache_bytes(table), self.popularity[key]))
        kept = {name: value for name, value in vars(self.fixed).items() if value is not None}
        if kept:
            self.reasons.append("fixed by the user: " + ", ".join(f"{name} {value}" for name, value in kept.items()))
        waiting = self.waiting_bytes(setting)
        self.reasons.append(f"staging {format_bytes(self.staging)}, sampled batches {format_bytes(waiting)}")
        return BudgetSplit(
            self.budget,
            self.staging,
            setting.window,
            setting.group,
            waiting,
            fit.shares,
            used,
            fit.seconds,
            sum(outcome.disk_rows for outcome in fit.outcomes.values()),
            tuple(self.reasons),
        )
