"""Plans groups of batches on a device: the passes of the CPU planner as kernels, with the same plans to the bit."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from gids._native import PolicyKind
from gids.cuda.array import DeviceArray
from gids.cuda.arrivals import Arrival
from gids.cuda.passes import empty_prefix, sort_pairs, turnstile
from gids.cuda.pinned import HostArray, host_array
from gids.cuda.session import Session
from gids.cuda.sieve import SieveQueue
from gids.errors import ConfigError
from gids.tiers.host_buffer import HostRows
from gids.tiers.plan import Counters, check_host_can_be_added
from gids.tiers.policies import Policy, parse_policy

Numbers = TypeVar("Numbers", DeviceArray, npt.NDArray[np.int64])

_NEVER, _VISITED = 0xFFFFFFFF, 0xFFFFFFFE  # kNever, kVisited of kernels/
_POLICY_NUMBERS = {
    PolicyKind.RANDOM: 0,
    PolicyKind.LRU: 1,
    PolicyKind.SIEVE: 2,
    PolicyKind.GIDS: 3,
    PolicyKind.WINDOW: 4,
}


@dataclass(frozen=True)
class DeviceBatchPlan:
    """One batch of a group: as :class:`gids.tiers.plan.BatchPlan`, with arrays on the device.

    Admissions ``admit_begin`` to ``admit_end`` of the group's lists are made after this batch is gathered.
    """

    location: DeviceArray
    admit_begin: int
    admit_end: int
    counters: Counters


@dataclass(frozen=True)
class DeviceGroupPlan:
    """A group of batches whose rows are read once: as :class:`gids.tiers.plan.GroupPlan`.

    The rows to read are on the device, ``device_rows``; on the host too, ``disk_rows``, where storage is asked from
    there. ``admissions`` are positions and slots of what the cache takes in, on the host, where the planner was asked
    for them.
    """

    device_rows: DeviceArray
    disk_rows: npt.NDArray[np.int64] | None
    admit_positions: DeviceArray
    admit_slots: DeviceArray
    batches: tuple[DeviceBatchPlan, ...]
    number: int
    generation: int
    capacity: int
    host_rows: int
    admissions: tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]] | None = None

    @property
    def num_disk_rows(self) -> int:
        """Count the rows to read."""
        return len(self.device_rows)

    @property
    def counters(self) -> Counters:
        """Rows of the whole group by source."""
        return sum((batch.counters for batch in self.batches), Counters())


class PendingGroup:
    """A group whose passes are queued; how many rows it reads, only the device knows yet.

    Attributes
    ----------
    number, generation : int
        As of its plan.
    batch_rows : tuple of int
        Rows of each batch.
    """

    def __init__(self, planner: CudaPlanner, group: _Group, moves: tuple[DeviceArray, DeviceArray], arrival: Arrival):
        self.number, self.generation = planner.number, planner.generation
        self.batch_rows = tuple(len(batch) for batch in group.batches)
        self._begins, self._location, self._moves, self._arrival = group.begins, group.location, moves, arrival
        self._disk_rows, self._rows_to_host = group.disk_rows, planner.rows_to_host
        self._capacity, self._host_rows, self._num_rows = planner.capacity, planner.host_rows, planner.num_rows
        self._plan: DeviceGroupPlan | None = None  # guarded by _lock
        self._lock = threading.Lock()

    def wait(self) -> DeviceGroupPlan:
        """Return the plan, once the device has made it; raise ConfigError for rows that the table does not have."""
        with self._lock:
            if self._plan is None:
                self._plan = self._read()
            return self._plan

    def _read(self) -> DeviceGroupPlan:
        found, *others = self._arrival.wait()
        rows, moves = (others[0], others[1:]) if self._rows_to_host else (None, others)
        begins, batches = self._begins, len(self.batch_rows)
        told = GroupNumbers(found, batches)
        if told.bad[0]:
            raise ConfigError(f"rows of a batch must be in [0, {self._num_rows})")
        unique, admitted = int(told.unique[0]), int(told.admitted[0])
        by_batch = told.by_batch if batches > 1 else told.admitted
        edges = np.concatenate([[0], np.cumsum(by_batch)]).astype(int)
        positions, slots = self._moves
        return DeviceGroupPlan(
            self._disk_rows[:unique],
            None if rows is None else rows[:unique],
            positions[:admitted],
            slots[:admitted],
            tuple(
                DeviceBatchPlan(
                    self._location[int(begins[b]) : int(begins[b + 1])],
                    int(edges[b]),
                    int(edges[b + 1]),
                    Counters(count, *(int(value) for value in told.counters[5 * b + 1 : 5 * b + 5])),
                )
                for b, count in enumerate(self.batch_rows)
            ),
            self.number,
            self.generation,
            self._capacity,
            self._host_rows,
            (moves[0][:admitted], moves[1][:admitted]) if moves else None,
        )


@dataclass(frozen=True)
class _Unsettled:
    """A group whose plan the planner has not looked at, and the keys that it may have added to the map ``entries``."""

    pending: PendingGroup
    assumed: int
    entries: DeviceArray


class DeviceRowMap:
    """Entries of a RowMap (kernels/row_map.cuh) on the device, with a bound on its keys that the host knows."""

    def __init__(self, session: Session, keys: int):
        self._session = session
        self._clear(keys)

    def _clear(self, keys: int) -> None:
        self.count = 16
        while self.count * 2 < keys * 3:
            self.count *= 2
        self.entries = self._session.empty(2 * self.count, np.int64)
        self.used = 0
        self._session.launch("map_clear", self.count, self.entries, np.int64(self.count))

    @property
    def arguments(self) -> tuple[DeviceArray, np.uint64]:
        """Entries and mask, as kernels take them."""
        return self.entries, np.uint64(self.count - 1)

    def make_room(self, more: int, live: int, first_batch: int = 0) -> None:
        """Forget dead entries if ``more`` keys may not fit; at most ``live`` are alive."""
        if (self.used + more) * 3 <= self.count * 2:
            return
        before, count = self.entries, self.count
        self._clear((live + 4 * more) * 3 // 2)  # for a few groups as large, until it is known what they added
        self._session.launch("map_rebuild", count, before, np.int64(count), np.uint32(first_batch), *self.arguments)
        self.used = live


class CudaPlanner:
    """Plans on a device what :class:`gids.tiers.plan.Planner` plans on the CPU.

    Parameters
    ----------
    session : Session
        Stream and memory.
    num_rows, capacity, policy, window, host, popularity, seed
        As for :class:`gids.tiers.plan.Planner`.
    rows_to_host, admissions_to_host : bool
        Whether plans say on the host, too, which rows are read, and what the cache takes in.
    """

    def __init__(
        self,
        session: Session,
        num_rows: int,
        capacity: int,
        policy: str | Policy = "window",
        *,
        window: int | None = None,
        host: HostRows | None = None,
        popularity: npt.NDArray[np.uint8] | None = None,
        seed: int = 0,
        rows_to_host: bool = True,
        admissions_to_host: bool = False,
    ):
        self._session = session
        self.rows_to_host, self._admissions_to_host = rows_to_host, admissions_to_host
        self.policy = parse_policy(policy, window)
        self.num_rows = num_rows
        self.capacity = min(capacity, num_rows)
        self.host_rows = 0
        self._host_map: HostArray | None = None
        self._kind = self.policy.kind
        self._key = (np.uint32(seed & 0xFFFFFFFF), np.uint32(seed >> 32))
        if host is not None:
            self._set_host(host)
        self._popularity = None if popularity is None else session.upload(popularity)
        self.number = 0  # of the next group
        self.generation = 0
        self._unsettled: deque[_Unsettled] = deque()
        self._first = 0  # sequence number of the next batch to plan
        state_bytes, self._classes = self._shape(0)
        self._classes_per_batch = self._shape(1)[1] - self._classes
        self._state_words = state_bytes // 4
        self._slots = session.empty((self.capacity, self._state_words), np.uint32)  # SlotState of kernels/next_use.cuh
        self._row_of = session.empty(self.capacity, np.int64)
        self._clear()

    def _set_host(self, host: HostRows) -> None:
        if len(host):
            self._host_map = host_array(self._session, host.entries.numpy(), "the host buffer's lookup map")
        self.host_rows = len(host)

    def add_host(self, host: HostRows) -> None:
        """Leave rows to a host buffer in the plans made from now on; of a planner that has none, and no cache."""
        check_host_can_be_added(self.capacity, self.host_rows)
        self._set_host(host)

    def _shape(self, ahead: int) -> tuple[int, int]:
        out = self._session.empty(2, np.int64)
        number = np.int32(_POLICY_NUMBERS[self._kind])
        self._session.launch("plan_shape", 1, number, np.uint32(ahead), out, blocks=1)
        state_bytes, classes = self._session.download(out)
        return int(state_bytes), int(classes)

    @property
    def looks_ahead(self) -> bool:
        """Whether batches are observed before they are planned."""
        return self.capacity > 0 and self._kind in (PolicyKind.WINDOW, PolicyKind.GIDS)

    def close(self) -> None:
        """Unpin the host buffer's map."""
        if self._host_map is not None:
            self._host_map.close()

    def reset(self) -> None:
        """Empty the cache and forget the window; plans made before are void."""
        self._settle(keep=0)
        self._clear()
        self.number = 0
        self.generation += 1

    def resident_rows(self) -> npt.NDArray[np.int64]:
        """Return int64[C]: the row that each slot will hold once all planned groups are executed, -1 if free. Waits."""
        return self._session.download(self._row_of)

    def _clear(self) -> None:
        self._cached = DeviceRowMap(self._session, self.capacity + self.capacity // 4)
        self._sieve = SieveQueue(self._session, self.capacity)
        self._forget_window(window_only=False)

    def _forget_window(self, window_only: bool = True) -> None:
        self._latest = DeviceRowMap(self._session, 0)
        self._observed: list[DeviceArray] = []
        self._uses: list[DeviceArray] = []
        if self.capacity:
            self._session.launch(
                "slots_reset", self.capacity, self._slots, self._row_of, np.int64(self.capacity), np.int32(window_only)
            )

    def plan_group(self, batches: Sequence[DeviceArray], lookahead: Sequence[DeviceArray] = ()) -> DeviceGroupPlan:
        """Plan the next group; see :meth:`gids.tiers.plan.Planner.plan_group`. Waits for the device."""
        try:
            return self.begin_group(batches, lookahead).wait()
        except ConfigError:
            self._settle(keep=0)
            self._clear()  # what it planned is not read
            raise

    def begin_group(self, batches: Sequence[DeviceArray], lookahead: Sequence[DeviceArray] = ()) -> PendingGroup:
        """Queue all passes of the next group. Waits for the plan of the group before last, no later one.

        After a group with rows that the table does not have, :meth:`reset` must be called.
        """
        future = [*batches, *lookahead[: self.policy.ahead]] if self.looks_ahead else list(batches)
        for rows in future:
            if rows.dtype != np.int64 or len(rows.shape) != 1:
                raise ConfigError(f"rows of a batch must be a 1-dimensional int64 array (got {rows.dtype})")
        self._settle(keep=1)
        known = self._known(future)
        group = _Group(self._session, list(batches))
        if self.looks_ahead:
            self._observe(future[known:], group.numbers.bad)
        return self._plan(group)

    def _known(self, future: list[DeviceArray]) -> int:
        known = len(self._observed)
        if known > len(future) or any(a is not b for a, b in zip(self._observed, future, strict=False)):
            self._forget_window()  # not the future that was announced
            known = 0
        return known

    def _observe(self, batches: list[DeviceArray], bad: DeviceArray) -> None:
        session, first = self._session, len(self._uses)
        self._uses += [session.empty(len(rows), np.uint32) for rows in batches]
        pointers = self._use_pointers()
        for number, rows in enumerate(batches, first):
            count = len(rows)
            self._latest.make_room(count, sum(len(batch) for batch in self._observed), self._first)
            self._observed.append(rows)
            if count:
                session.launch(
                    "observe_rows", count, *self._latest.arguments, *self._cached.arguments, self._slots, pointers,
                    np.uint32(self._first), np.uint32(self._first + number), np.int64(self.num_rows), rows,
                    np.int64(count), bad,
                )  # fmt: skip
                self._latest.used += count

    def _use_pointers(self) -> DeviceArray:
        return self._session.upload(np.array([uses.pointer for uses in self._uses], np.uint64))

    def _plan(self, group: _Group) -> PendingGroup:
        """Queue all passes, and the way of their numbers to the host."""
        session, batches = self._session, group.batches
        group_begin, group_end = self._first, self._first + len(batches)
        self._classify(group, group_begin, group_end)
        self._find_duplicates(group, group_begin)
        self._first = group_end
        if self.looks_ahead:
            self._uses, self._observed = self._uses[len(batches) :], self._observed[len(batches) :]
        positions, slots = self._select(group)
        positions, slots = self._spread(positions, slots, group, group_begin)
        self._apply(positions, slots, group)
        rows = [group.disk_rows] if self.rows_to_host else []
        told = [group.numbers.array, *rows, *((positions, slots) if self._admissions_to_host else ())]
        pending = PendingGroup(self, group, (positions, slots), session.download_later(told))
        self._cached.used += len(positions)  # at most; put right when the plan is known
        self._unsettled.append(_Unsettled(pending, len(positions), self._cached.entries))
        self.number += 1 if batches else 0  # there is nothing to gather of an empty group
        return pending

    def _settle(self, keep: int) -> None:
        """Put right how many keys the map of the cache has, by all plans but the last ``keep``."""
        while len(self._unsettled) > keep:
            last = self._unsettled.popleft()
            with suppress(ConfigError):  # whoever gathers the group is told
                admitted = len(last.pending.wait().admit_slots)
                if last.entries is self._cached.entries:  # else it was rebuilt since, without what is dead
                    self._cached.used -= last.assumed - admitted

    def _classify(self, group: _Group, group_begin: int, group_end: int) -> None:
        """Find every row in cache or host buffer."""
        hosted: tuple[DeviceArray | None, np.uint64] = (
            (None, np.uint64(0))
            if self._host_map is None
            else (self._host_map.array, np.uint64(self._host_map.array.size // 2 - 1))
        )
        unknown = np.uint32(_VISITED if self._kind == PolicyKind.SIEVE else _NEVER)
        for b, batch in enumerate(group.batches):
            if not len(batch):
                continue
            part = slice(int(group.begins[b]), int(group.begins[b + 1]))
            self._session.launch(
                "classify_rows", len(batch), *self._cached.arguments, *hosted, np.int64(self.capacity),
                np.int64(self.host_rows), np.int64(self.num_rows), self._popularity, self._slots, batch,
                np.int64(len(batch)), np.uint32(group_begin + b), self._uses[b] if self.looks_ahead else None, unknown,
                np.uint32(group_end), group.begins[b], group.keys[part], group.occurrences[part], group.location[part],
                group.numbers.counters[5 * b : 5 * b + 5], group.numbers.misses, group.numbers.bad,
            )  # fmt: skip

    def _find_duplicates(self, group: _Group, group_begin: int) -> None:
        """Sort the misses by row; the first of equal rows is read."""
        session, total, numbers = self._session, group.total, group.numbers
        if not total:
            return
        everything = group.device_begins[len(group.batches) :]
        rows, at = sort_pairs(session, group.keys, group.occurrences, everything, total, self.num_rows + 1)
        firsts = empty_prefix(session, total, numbers.unique)
        session.launch("flag_new_rows", total, rows, numbers.misses, *firsts, turnstile(session))
        group.states = session.empty((total, self._state_words), np.uint32)
        session.launch(
            "place_misses", total, rows, at, numbers.misses, *firsts, group.device_begins,
            np.int32(len(group.batches)), np.uint32(group_begin), self._use_pointers() if self.looks_ahead else None,
            np.int64(self.capacity + self.host_rows), self._popularity, group.location, group.disk_rows, group.states,
            numbers.counters,
        )  # fmt: skip

    def _select(self, group: _Group) -> tuple[DeviceArray, DeviceArray]:
        """Choose what enters the cache and the slots it goes to: positions and slots, as many as can be."""
        session, capacity, bound, numbers = self._session, self.capacity, group.total, group.numbers
        if capacity == 0 or bound == 0:
            return session.empty(0, np.int64), session.empty(0, np.int64)
        if self._kind == PolicyKind.SIEVE:
            positions, slots, admitted = self._sieve.select(self._slots, int(session.download(numbers.unique)[0]))
            session.copy(numbers.admitted, admitted)
            return positions, slots
        ahead = len(self._uses)
        classes = self._classes + ahead * self._classes_per_batch
        ranking = (np.int32(_POLICY_NUMBERS[self._kind]), *self._key, np.uint32(self._first), np.uint32(ahead))
        common = (*ranking, self._slots, np.int64(capacity), group.states, numbers.unique)
        items, limit, gate = capacity + bound, min(bound, capacity), turnstile(session)
        by_class, cut = session.empty(2 * classes, np.int64), session.empty(3, np.int64)
        session.fill(by_class, 0)
        session.launch(
            "count_classes", items, *common, np.uint32(classes), by_class[:classes], by_class[classes:], cut, gate
        )
        edge, moves = empty_prefix(session, items), empty_prefix(session, items)
        session.launch("rank_edge", items, *common, cut, *edge, gate)
        session.launch("rank_moves", items, *common, cut, *edge, *moves, gate)
        positions, slots = session.empty(limit, np.int64), session.empty(limit, np.int64)
        session.launch(
            "collect_moves", items, *moves, np.int64(capacity), numbers.unique, np.int64(limit), slots, positions,
            numbers.admitted,
        )  # fmt: skip
        return positions, slots

    def _spread(
        self, positions: DeviceArray, slots: DeviceArray, group: _Group, group_begin: int
    ) -> tuple[DeviceArray, DeviceArray]:
        """Order admissions by the batch after which they are made."""
        session, bound, batches, count = self._session, len(positions), len(group.batches), group.numbers.admitted
        if bound == 0 or batches == 1:
            return positions, slots
        turn, order = session.empty(bound, np.int64), session.empty(bound, np.int64)
        session.launch(
            "choose_turns", bound, self._slots, slots, count, np.int32(batches), np.uint32(group_begin), turn, order,
            group.numbers.by_batch,
        )  # fmt: skip
        _, order = sort_pairs(session, turn, order, count, bound, batches)
        out_slots, out_positions = session.empty(bound, np.int64), session.empty(bound, np.int64)
        session.launch("order_admissions", bound, order, count, slots, positions, out_slots, out_positions)
        return out_positions, out_slots

    def _apply(self, positions: DeviceArray, slots: DeviceArray, group: _Group) -> None:
        """Let the map of the cache know who is evicted and who comes in."""
        session, bound, count = self._session, len(positions), group.numbers.admitted
        if bound == 0:
            return
        self._cached.make_room(bound, self.capacity)
        session.launch(
            "fill_slots", bound, *self._cached.arguments, slots, positions, count, group.disk_rows, group.states,
            self._row_of, self._slots,
        )  # fmt: skip


class GroupNumbers(Generic[Numbers]):
    """What is counted while a group is planned, by name: parts of one int64 array, on the device or on the host.

    Parameters
    ----------
    array : int64[6 batches + 4]
        All of them.
    batches : int
        Batches of the group.
    """

    def __init__(self, array: Numbers, batches: int):
        self.array: Numbers = array
        self.misses: Numbers = array[0:1]
        self.unique: Numbers = array[1:2]
        self.admitted: Numbers = array[2:3]
        self.bad: Numbers = array[3:4]
        self.by_batch: Numbers = array[4 : 4 + batches]  # admissions made after each batch; of one batch not counted
        self.counters: Numbers = array[4 + batches : 4 + 6 * batches]  # five for each batch, see classify_rows


class _Group:
    """A group on its way through the passes: arrays with room for all its rows."""

    def __init__(self, session: Session, batches: list[DeviceArray]):
        self.batches = batches
        self.begins = np.concatenate([[0], np.cumsum([len(rows) for rows in batches])]).astype(np.int64)
        self.total = int(self.begins[-1])
        self.device_begins = session.upload(self.begins)
        self.numbers = GroupNumbers(session.upload(np.zeros(4 + 6 * len(batches), np.int64)), len(batches))
        self.location, self.disk_rows, self.keys, self.occurrences = (
            session.empty(self.total, np.int64) for _ in range(4)
        )
        self.states: DeviceArray | None = None  # SlotState of each row that is read


def plan_to_host(session: Session, plan: DeviceGroupPlan) -> dict[str, Any]:
    """Copy a plan to the host, for reports and tests. Waits."""
    positions, slots = session.download(plan.admit_positions), session.download(plan.admit_slots)
    return {
        "disk_rows": plan.disk_rows,
        "batches": [
            {
                "location": session.download(batch.location),
                "admit_positions": positions[batch.admit_begin : batch.admit_end],
                "admit_slots": slots[batch.admit_begin : batch.admit_end],
                "counters": batch.counters,
            }
            for batch in plan.batches
        ],
    }
