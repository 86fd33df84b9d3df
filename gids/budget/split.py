"""Divides memory between cache, host buffer, groups, window and staging: candidates are tried on a profile."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from gids.budget.parts import (
    LEAST_STAGING_BYTES,
    MOST_STAGING_BYTES,
    Request,
    TableDemand,
    TableShare,
    host_bytes,
    rows_within,
)
from gids.budget.trial import DiskModel, Outcome, Profile, Trial
from gids.errors import ConfigError
from gids.storage import DeviceCurve
from gids.table import RowTable
from gids.tiers.hot_rows import HotRows
from gids.types import TableKey
from gids.units import format_bytes

#: What the planner keeps of one row of one batch that waits: id, next use, and its entry in the map of last uses.
WINDOW_ROW_BYTES = 8 + 4 + 48
#: The last of these: one for each distinct row of the window. Where it would be larger, a planner on the host has an
#: entry of a list for every row of the table instead.
MAP_ROW_BYTES = 48
LIST_ROW_BYTES = 8
#: What stays in memory of one row of a batch whose sample is on disk, beside that entry: its id and its next use.
FAR_ROW_BYTES = 8 + 4
#: And of one that is planned and not gathered: its location, its place among the rows that are read, twice, its slot.
PLANNED_ROW_BYTES = 8 + 8 + 16 + 4
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


def divide_cache(memory: int, table: RowTable, most: int, popularity: bool | None) -> tuple[int, bool]:
    """Return the rows that a cache of ``memory`` bytes holds and whether it knows how popular every row of the table is.

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
    """
    rows = rows_within(memory, table.row_bytes, most)
    wanted = table.num_rows <= memory * POPULARITY_SHARE if popularity is None else popularity
    if not wanted or rows == most:  # nothing to choose where everything fits
        return rows, False
    left = rows_within(max(memory - table.num_rows, 0), table.row_bytes, most)
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
class Pool:
    """The memory that is split, and how a run uses it.

    Attributes
    ----------
    budget : int
        Bytes for staging, sampled batches that wait, groups, cache and, unless it has memory of its own, host buffer.
    host : int or None
        Bytes of other memory for the host buffer; None where it shares ``budget``.
    staging : int or None
        Bytes that staging is given elsewhere; None where it shares ``budget``.
    held_batches : callable
        Says of how many of a group's batches all rows are in memory at once, given the batches that are read together.
    scratch_bytes : callable
        Memory that planning so many batches as one group works in.
    """

    budget: int
    host: int | None = None
    staging: int | None = None
    held_batches: Callable[[int], float] = lambda together: together / 2 + 2
    scratch_bytes: Callable[[int], int] = lambda together: 0


@dataclass(frozen=True)
class BudgetSplit:
    """A pool, split. ``total <= pool.budget``.

    Attributes
    ----------
    staging_bytes : int
        Memory that the device writes to.
    window, sweep_batches : int
        Batches to look ahead, and to read together.
    waiting_bytes : int
        Sampled batches of window and group, with the planner's scratch.
    tables : dict of TableKey to TableShare
        The rest.
    seconds : float
        Disk time of a batch that the profile predicts.
    disk_rows : float
        Rows that it predicts a batch reads.
    reasons : tuple of str
        What was chosen and why, a line each.
    """

    staging_bytes: int
    window: int
    sweep_batches: int
    waiting_bytes: int
    tables: dict[TableKey, TableShare]
    seconds: float
    disk_rows: float
    reasons: tuple[str, ...]


def split_pool(
    pool: Pool,
    profiles: Mapping[TableKey, TableProfile],
    curve: DeviceCurve,
    request: Request,
    *,
    most_together: int = 16,
    most_window: int = 1 << 30,
    sample_bytes: int = 0,
    merge_gap_bytes: int | None = None,
    popularity: Mapping[TableKey, bool | None] | None = None,
) -> BudgetSplit | None:
    """Split a pool so that the profile's batches would have taken the least disk time; None if nothing fits.

    Candidates are tried on the profile with the real planners, on a sample of the rows: a larger group reads more rows
    once and merges more neighbours, a larger cache or host buffer leaves fewer rows to read, a longer window makes
    better use of the cache; each takes memory from the others.

    Parameters
    ----------
    pool : Pool
        The memory.
    profiles : mapping of TableKey to TableProfile
        The tables that share it.
    curve : DeviceCurve
        The device, from :func:`gids.storage.load_curve`.
    request : Request
        What the user fixed; it is kept as it is.
    most_together, most_window : int
        Most batches that are read together, and most that are looked at ahead.
    sample_bytes : int
        Memory of a sampled batch that waits in the window or group, beyond what the planner keeps of it.
    merge_gap_bytes : int, optional
        Largest gap that a read spans; by default what readers take from the curve.
    popularity : mapping of TableKey to bool or None, optional
        Whether a table's cache is to know how popular every row is; None where its memory decides, which is the default
        for tables with a ranking.
    """
    if not profiles or any(len(p.batches) < 2 for p in profiles.values()):
        raise ConfigError("profiles must have at least one table with two batches each")
    if len({len(p.batches) for p in profiles.values()}) != 1:
        raise ConfigError("profiles must have equally many batches of every table")
    if most_together < 1:
        raise ConfigError(f"most_together must be at least 1 (got {most_together})")
    disk = DiskModel.of(curve, merge_gap_bytes)
    wanted = {key: p.hot is not None and (popularity or {}).get(key) for key, p in profiles.items()}
    return _Chooser(pool, profiles, disk, request, most_together, most_window, sample_bytes, wanted).choose()


def spilled_bytes(sample_bytes: int, rows: int) -> int:
    """Return the memory that a sampled batch gives back when it goes to disk."""
    return max(0, sample_bytes + rows * (WINDOW_ROW_BYTES - FAR_ROW_BYTES))


def map_bytes(
    rows: Mapping[TableKey, int], tables: Mapping[TableKey, RowTable | TableDemand], far: int, on_device: bool = False
) -> int:
    """Return the memory in which the rows of ``far`` batches on disk are found, where a batch has so many of each table."""
    most = MAP_ROW_BYTES if on_device else LIST_ROW_BYTES
    return sum(min(MAP_ROW_BYTES * far * count, most * tables[key].num_rows) for key, count in rows.items())


@dataclass(frozen=True)
class _Setting:
    """A candidate: batches in the window, batches read together, share of the row memory that is host buffer."""

    window: int
    group: int
    host_share: float


@dataclass(frozen=True)
class _Fit:
    """A setting worked out: rows of each table's tiers, and what the profile says of them."""

    shares: dict[TableKey, TableShare]
    outcomes: dict[TableKey, Outcome]

    @property
    def seconds(self) -> float:
        return sum(outcome.seconds for outcome in self.outcomes.values())


class _Chooser:
    def __init__(
        self,
        pool: Pool,
        profiles: Mapping[TableKey, TableProfile],
        disk: DiskModel,
        request: Request,
        most_together: int,
        most_window: int,
        sample_bytes: int,
        popularity: Mapping[TableKey, bool | None],
    ):
        self.pool, self.request, self.popularity = pool, request, popularity
        self.tables = {key: p.table for key, p in profiles.items()}
        self.profiles = {key: Profile(p.table, p.batches, disk, p.hot) for key, p in profiles.items()}
        rows = {key: profile.largest for key, profile in self.profiles.items()}
        self.largest = rows
        self.batch_bytes = {key: rows[key] * table.row_bytes for key, table in self.tables.items()}
        self.waiting_batch_bytes = sample_bytes + sum(rows.values()) * WINDOW_ROW_BYTES
        self.planned_batch_bytes = sample_bytes + sum(rows.values()) * PLANNED_ROW_BYTES
        self.spilled_batch_bytes = spilled_bytes(sample_bytes, sum(rows.values()))
        half = next(iter(self.profiles.values())).half
        self.windows = [w for w in WINDOWS if w <= min(half, most_window)]
        if request.window is not None:
            self.windows = [request.window]
        self.groups = [g for g in GROUPS if g <= min(half, most_together)] or [1]
        self.staging = self._staging()
        self.reasons: list[str] = []
        self._fits: dict[_Setting, _Fit | None] = {}
        self.weights = dict.fromkeys(self.tables, 1.0 / len(self.tables))

    def _staging(self) -> int:
        """Bytes of the pool that staging takes: what the user says, or a sixteenth, or as little as leaves room for a batch."""
        if self.pool.staging is not None:
            return 0
        if self.request.staging is not None:
            return self.request.staging
        wanted = min(MOST_STAGING_BYTES, max(LEAST_STAGING_BYTES, self.pool.budget // 16))
        self.staging = wanted
        smallest = _Setting(self.windows[0], 1, 0.0)
        return wanted if self._row_bytes(smallest) >= 0 else LEAST_STAGING_BYTES

    def waiting_bytes(self, setting: _Setting) -> int:
        # One is planned while the others of its group are read.
        far = self.request.far_batches(setting.window)
        waiting = (setting.window + 1) * self.waiting_batch_bytes + setting.group * self.planned_batch_bytes
        on_device = self.pool.host is not None
        waiting += map_bytes(self.largest, self.tables, far, on_device) - far * self.spilled_batch_bytes
        return waiting + self.pool.scratch_bytes(setting.group)

    @property
    def _asked(self) -> int:
        """Bytes of the pool that the user fixed for cache and host buffer."""
        host = 0 if self.pool.host is not None else self.request.host_buffer or 0
        return (self.request.cache or 0) + host

    def choose(self) -> BudgetSplit | None:
        fitting = [w for w in self.windows if self._row_bytes(_Setting(w, 1, 0.0)) >= 0]
        if not fitting:
            return None
        setting = _Setting(fitting[-1], 1, 0.0)
        self._weigh(setting)
        own = self.pool.host is not None
        host_free = self.request.host_buffer is None and (own or self.request.cache is None)
        count = next(iter(self.profiles.values())).count
        if host_free and not own and self.request.window is not None and self.request.window > count:
            # A few batches, from an empty cache, cannot show what knowing a superbatch is worth (Ginex has no host buffer).
            host_free = False
            self.reasons.append(
                f"no host buffer: a window of {setting.window} batches is for the cache ({count} profiled)"
            )
        # Memory of its own is pinned for the run: no more of it than is worth its while.
        shares = tuple(reversed(HOST_SHARES)) if own else HOST_SHARES
        chosen: dict[str, str] = {}
        options: dict[str, tuple[str, Sequence[Any]]] = {
            "group": ("batches read together", self.groups),
            "window": ("batches of window", self.windows),
            "host_share": ("of the rows' memory as host buffer", shares if host_free else (0.0,)),
        }
        for name in (*options, "group"):  # groups once more, in the light of the others
            words, values = options[name]
            if len(values) > 1:
                settings = [replace(setting, **{name: value}) for value in values]
                setting, chosen[name] = self._best(name, words, settings)
        if host_free and not own and 0 in self.windows:
            # Without a cache nobody needs a window: its memory makes groups and host buffer larger.
            constant = [replace(setting, window=0, group=group, host_share=1.0) for group in self.groups]
            without, why = self._best("group", "batches read together, host buffer alone, no window", constant)
            if self._time(without) <= self._time(setting) * (1 + WORTHWHILE):
                setting, chosen = without, chosen | {"alone": why}
        self.reasons += chosen.values()
        return self._split(setting)

    def _row_bytes(self, setting: _Setting) -> int:
        """Memory for cache, host buffer and groups; negative if the setting leaves too little for them."""
        rest = self.pool.budget - self.staging - self.waiting_bytes(setting)
        least = sum(self.batch_bytes.values()) if self.request.groups is None else self.request.groups
        return rest if rest >= self._asked + least else -1

    def _memory(self, setting: _Setting, groups: int) -> tuple[int, int]:
        """Bytes of cache and of host buffer, over all tables, beside groups of so many bytes."""
        rest = self._row_bytes(setting) - groups
        cache, host = self.request.cache, self.request.host_buffer
        if self.pool.host is not None:
            own = int(self.pool.host * setting.host_share) if host is None else host
            return (max(rest, 0) if cache is None else cache), own
        if cache is not None and host is not None:
            return cache, host
        if cache is not None:
            return cache, max(rest - cache, 0)
        if host is not None:
            return max(rest - host, 0), host
        taken = int(rest * setting.host_share)
        return rest - taken, taken

    def _rows(self, key: TableKey, memory: tuple[int, int], weight: float) -> tuple[int, int, bool]:
        """Rows of cache and host buffer, and whether the cache knows how popular rows are."""
        cache, host = memory
        table = self.tables[key]
        held = rows_within(int(host * weight), table.row_bytes, table.num_rows, host_bytes)
        most = table.num_rows - held
        rows, popular = divide_cache(int(cache * weight), table, most, self.popularity[key])
        return rows, held, popular

    def _fit(self, setting: _Setting) -> _Fit | None:
        if setting not in self._fits:
            self._fits[setting] = self._work_out(setting)
        return self._fits[setting]

    def _work_out(self, setting: _Setting) -> _Fit | None:
        """Find how large the groups become beside a cache that gets the rest; None if it cannot be."""
        if self._row_bytes(setting) < 0:
            return None
        available = self._row_bytes(setting) - self._asked
        batch = sum(self.batch_bytes.values())
        if self.request.groups is not None:
            return self._tried(setting, {key: self.request.groups * b // batch for key, b in self.batch_bytes.items()})
        if setting.group == 1:
            # A batch must fit whole, for the cache may have none of it; one that is read ahead of it only if it can.
            times = min(max(available / 4 / batch, 1.0), 2 * GROUP_MARGIN)
            return self._tried(setting, {key: int(times * b) for key, b in self.batch_bytes.items()})
        # What the cache serves needs no room in the group, and room saved makes the cache larger: the least that does.
        unions = {key: profile.union_rows(setting.group) for key, profile in self.profiles.items()}
        most = self._rooms(setting.group, unions)
        largest = min(1.0, available / sum(most.values()))
        tried = [
            {key: max(int(part * largest * room), self.batch_bytes[key]) for key, room in most.items()}
            for part in ROOMS
        ]
        least: tuple[dict[TableKey, int], _Fit] | None = None

        def fits(rooms: dict[TableKey, int]) -> bool:
            nonlocal least
            fit = self._tried(setting, rooms)
            least = least if fit is None else (rooms, fit)  # of those that fit, the last one tried is the smallest
            return fit is not None

        bisect.bisect_left([rooms for rooms in tried if sum(rooms.values()) <= available], True, key=fits)
        if least is None:
            return None
        rooms, fit = least
        needed = self._rooms(setting.group, {key: o.group_rows for key, o in fit.outcomes.items()})
        return self._tried(setting, {key: min(rooms[key], max(needed[key], self.batch_bytes[key])) for key in rooms})

    def _rooms(self, group: int, group_rows: dict[TableKey, int]) -> dict[TableKey, int]:
        """Bytes for the rows of batches that are read together, as many of them as are in memory at once."""
        held = self.pool.held_batches(group) / group
        return {key: int(held * rows * GROUP_MARGIN) * self.tables[key].row_bytes for key, rows in group_rows.items()}

    def _tried(self, setting: _Setting, rooms: dict[TableKey, int]) -> _Fit | None:
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
        """Allot memory to tables in parts, each to the table whose disk time it shortens most."""
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
            def gain(key: TableKey) -> float:
                at, times = given[key], seconds[key]
                return max(((times[at] - times[n]) / (n - at) for n in range(at + 1, PARTS + 1)), default=-1.0)

            given[max(self.tables, key=gain)] += 1
        self.weights = {key: count / PARTS for key, count in given.items()}
        shares = ", ".join(f"{self.tables[key].name} {weight:.0%}" for key, weight in self.weights.items())
        self.reasons.append(f"tables: {shares} of the memory for rows, by the disk time that each part saves")

    def _alone(self, key: TableKey, setting: _Setting, rows: tuple[int, int, bool]) -> float:
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
        assert fit is not None  # the smallest setting fits, or choose() had ended
        for key, share in fit.shares.items():
            table = self.tables[key]
            self.reasons.append(
                f"{table.name}: cache {share.cache_rows} rows, host buffer {share.host_rows} rows, "
                f"groups {format_bytes(share.group_bytes)}; a batch reads {fit.outcomes[key].disk_rows:.0f} of "
                f"{self.profiles[key].largest} rows"
            )
            partly = 0 < share.cache_rows < table.num_rows - share.host_rows
            if partly and self.popularity[key] is not False:
                self.reasons.append(popularity_reason(share, table, share.cache_bytes(table), self.popularity[key]))
        kept = {name: value for name, value in vars(self.request).items() if value is not None}
        if kept:
            self.reasons.append(
                "fixed by the user: " + ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in kept.items())
            )
        waiting = self.waiting_bytes(setting)
        self.reasons.append(f"staging {format_bytes(self.staging)}, sampled batches {format_bytes(waiting)}")
        return BudgetSplit(
            self.staging,
            setting.window,
            setting.group,
            waiting,
            fit.shares,
            fit.seconds,
            sum(outcome.disk_rows for outcome in fit.outcomes.values()),
            tuple(self.reasons),
        )
