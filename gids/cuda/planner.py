"""Plans groups of batches on a device: the passes of the CPU planner as kernels, with the same plans to the bit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gids._native import PolicyKind
from gids.cuda.array import DeviceArray
from gids.cuda.passes import compact, exclusive_scan, full, sort_pairs
from gids.cuda.pinned import host_array
from gids.cuda.session import Session
from gids.cuda.sieve import SieveQueue
from gids.errors import ConfigError
from gids.tiers.host_buffer import HostRows
from gids.tiers.plan import Counters
from gids.tiers.policies import Policy, parse_policy

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

    ``disk_rows`` is on the host, because storage is asked from there; the rest is on the device.
    """

    disk_rows: npt.NDArray[np.int64]
    admit_positions: DeviceArray
    admit_slots: DeviceArray
    batches: tuple[DeviceBatchPlan, ...]
    number: int
    generation: int
    capacity: int
    host_rows: int

    @property
    def counters(self) -> Counters:
        """Rows of the whole group by source."""
        return sum((batch.counters for batch in self.batches), Counters())


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
        self._clear((live + more) * 3 // 2)
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
    ):
        self._session = session
        self.policy = parse_policy(policy, window)
        self.num_rows = num_rows
        self.capacity = min(capacity, num_rows)
        self.host_rows = 0 if host is None else len(host)
        self._kind = self.policy.kind
        self._key = (np.uint32(seed & 0xFFFFFFFF), np.uint32(seed >> 32))
        self._host_map = (
            None
            if host is None or not len(host)
            else host_array(session, host.entries.numpy(), "the host buffer's lookup map")
        )
        self._popularity = None if popularity is None else session.upload(popularity)
        self._number = 0
        self.generation = 0
        self._first = 0  # sequence number of the next batch to plan
        state_bytes, self._classes = self._shape(0)
        self._classes_per_batch = self._shape(1)[1] - self._classes
        self._state_words = state_bytes // 4
        self._slots = session.empty((self.capacity, self._state_words), np.uint32)  # SlotState of kernels/next_use.cuh
        self._row_of = session.empty(self.capacity, np.int64)
        self._clear()

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
        self._clear()
        self._number = 0
        self.generation += 1

    def resident_rows(self) -> npt.NDArray[np.int64]:
        """Give int64[C]: the row that each slot will hold once all planned groups are executed, -1 if free. Waits."""
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
        """Plan the next group; see :meth:`gids.tiers.plan.Planner.plan_group`. Waits for the numbers it returns."""
        future = [*batches, *lookahead[: self.policy.ahead]] if self.looks_ahead else list(batches)
        known = self._known(future)
        self._check(future[known:])
        if self.looks_ahead:
            for batch in future[known:]:
                self._observe(batch)
        return self._plan(list(batches))

    def _known(self, future: list[DeviceArray]) -> int:
        known = len(self._observed)
        if known > len(future) or any(a is not b for a, b in zip(self._observed, future, strict=False)):
            self._forget_window()  # not the future that was announced
            known = 0
        return known

    def _check(self, batches: list[DeviceArray]) -> None:
        session = self._session
        bad = session.empty(1, np.uint32)
        session.fill(bad, 0)
        for rows in batches:
            if rows.dtype != np.int64 or len(rows.shape) != 1:
                raise ConfigError(f"rows of a batch must be a 1-dimensional int64 array (got {rows.dtype})")
            if len(rows):
                session.launch("check_ids", len(rows), rows, np.int64(len(rows)), np.int64(self.num_rows), bad)
        if session.download(bad)[0]:
            self._forget_window()
            raise ConfigError(f"rows of a batch must be in [0, {self.num_rows})")

    def _observe(self, rows: DeviceArray) -> None:
        session, count = self._session, len(rows)
        self._latest.make_room(count, sum(len(batch) for batch in self._observed), self._first)
        batch = self._first + len(self._uses)
        self._uses.append(session.empty(count, np.uint32))
        self._observed.append(rows)
        if count:
            session.launch(
                "observe_rows", count, *self._latest.arguments, *self._cached.arguments, self._slots,
                self._use_pointers(), np.uint32(self._first), np.uint32(batch), rows, np.int64(count),
            )  # fmt: skip
            self._latest.used += count

    def _use_pointers(self) -> DeviceArray:
        return self._session.upload(np.array([uses.pointer for uses in self._uses], np.uint64))

    def _plan(self, batches: list[DeviceArray]) -> DeviceGroupPlan:
        session = self._session
        begins = np.concatenate([[0], np.cumsum([len(rows) for rows in batches])]).astype(np.int64)
        total = int(begins[-1])
        counters = full(session, 5 * max(len(batches), 1), 0)
        location, missed = session.empty(total, np.int64), session.empty(total, np.int64)
        rows = session.empty(total, np.int64)
        bad = session.empty(1, np.uint32)  # rows were checked
        group_begin, group_end = self._first, self._first + len(batches)
        hosted: tuple[DeviceArray | None, np.uint64] = (
            (None, np.uint64(0))
            if self._host_map is None
            else (self._host_map.array, np.uint64(self._host_map.array.size // 2 - 1))
        )
        unknown = np.uint32(_VISITED if self._kind == PolicyKind.SIEVE else _NEVER)
        for b, batch in enumerate(batches):
            if not len(batch):
                continue
            part = slice(int(begins[b]), int(begins[b + 1]))
            session.copy(rows[part], batch)
            session.launch(
                "classify_rows", len(batch), *self._cached.arguments, *hosted, np.int64(self.capacity),
                np.int64(self.host_rows), np.int64(self.num_rows), self._popularity, self._slots, batch,
                np.int64(len(batch)), np.uint32(group_begin + b), self._uses[b] if self.looks_ahead else None, unknown,
                np.uint32(group_end), location[part], missed[part], counters[5 * b : 5 * b + 5], bad,
            )  # fmt: skip
        disk_rows, states, unique = self._find_duplicates(rows, location, missed, begins, counters, group_begin)
        self._first = group_end
        if self.looks_ahead:
            self._uses, self._observed = self._uses[len(batches) :], self._observed[len(batches) :]
        positions, slots, admitted = self._select(states, unique, total)
        positions, slots, by_batch = self._spread(positions, slots, admitted, len(batches), group_begin)
        num_disk, num_admitted = (int(session.download(value)[0]) for value in (unique, admitted))
        self._apply(positions, slots, num_admitted, admitted, disk_rows, states)
        edges = np.concatenate([[0], np.cumsum(session.download(by_batch))]).astype(int)
        counted = session.download(counters).reshape(-1, 5)
        plan = DeviceGroupPlan(
            session.download(disk_rows[:num_disk]),
            positions[:num_admitted],
            slots[:num_admitted],
            tuple(
                DeviceBatchPlan(
                    location[int(begins[b]) : int(begins[b + 1])],
                    int(edges[b]),
                    int(edges[b + 1]),
                    Counters(len(batches[b]), *(int(value) for value in counted[b, 1:])),
                )
                for b in range(len(batches))
            ),
            self._number,
            self.generation,
            self.capacity,
            self.host_rows,
        )
        self._number += 1 if batches else 0  # there is nothing to gather of an empty group
        return plan

    def _find_duplicates(
        self,
        rows: DeviceArray,
        location: DeviceArray,
        missed: DeviceArray,
        begins: npt.NDArray[np.int64],
        counters: DeviceArray,
        group_begin: int,
    ) -> tuple[DeviceArray, DeviceArray, DeviceArray]:
        """Sort the misses by row; the first of equal rows is read. Gives disk rows, their states, and how many."""
        session, total = self._session, len(rows)
        everything = full(session, 1, total)
        before = exclusive_scan(session, missed, everything, total)
        count = before[total : total + 1]
        miss_rows, miss_at = session.empty(total, np.int64), session.empty(total, np.int64)
        flags, disk_rows = session.empty(total, np.int64), session.empty(total, np.int64)
        states = session.empty((total, self._state_words), np.uint32)
        if total:
            session.launch("collect_misses", total, rows, missed, before, np.int64(total), miss_rows, miss_at)
        miss_rows, miss_at = sort_pairs(session, miss_rows, miss_at, count, total, self.num_rows)
        session.launch("flag_new_rows", total, miss_rows, count, flags)
        positions = exclusive_scan(session, flags, count, total)
        session.launch(
            "place_misses", total, miss_rows, miss_at, count, flags, positions, session.upload(begins),
            np.int32(len(begins) - 1), np.uint32(group_begin), self._use_pointers() if self.looks_ahead else None,
            np.int64(self.capacity + self.host_rows), self._popularity, location, disk_rows, states, counters,
        )  # fmt: skip
        unique = session.empty(1, np.int64)
        session.launch("take_values", 1, positions, count, np.int64(1), unique)
        return disk_rows, states, unique

    def _select(
        self, states: DeviceArray, unique: DeviceArray, bound: int
    ) -> tuple[DeviceArray, DeviceArray, DeviceArray]:
        """Choose what enters the cache and the slots it goes to. Gives positions, slots, and how many."""
        session, capacity = self._session, self.capacity
        if capacity == 0 or bound == 0:
            return session.empty(0, np.int64), session.empty(0, np.int64), full(session, 1, 0)
        if self._kind == PolicyKind.SIEVE:
            return self._sieve.select(self._slots, int(session.download(unique)[0]))
        ahead = len(self._uses)
        classes = self._classes + ahead * self._classes_per_batch
        ranking = (np.int32(_POLICY_NUMBERS[self._kind]), *self._key, np.uint32(self._first), np.uint32(ahead))
        common = (*ranking, self._slots, np.int64(capacity), states, unique)
        residents, misses, cut = full(session, classes, 0), full(session, classes, 0), session.empty(3, np.int64)
        items = max(capacity, bound)
        session.launch("count_classes", items, *common, residents, misses)
        session.launch("choose_class_cut", 1, residents, misses, np.uint32(classes), np.int64(capacity), cut, blocks=1)
        slot_flags, miss_flags = session.empty(capacity, np.int64), session.empty(bound, np.int64)
        session.launch("flag_edge", items, *common, cut, slot_flags, miss_flags)
        every_slot = full(session, 1, capacity)
        slot_ranks = exclusive_scan(session, slot_flags, every_slot, capacity)
        miss_ranks = exclusive_scan(session, miss_flags, unique, bound)
        session.launch("flag_moves", items, *common, cut, slot_ranks, miss_ranks, slot_flags, miss_flags)
        limit = min(bound, capacity)
        positions, admitted = compact(session, miss_flags, unique, bound, limit)
        slots, _ = compact(session, slot_flags, every_slot, capacity, limit)
        return positions, slots, admitted

    def _spread(
        self, positions: DeviceArray, slots: DeviceArray, count: DeviceArray, batches: int, group_begin: int
    ) -> tuple[DeviceArray, DeviceArray, DeviceArray]:
        """Order admissions by the batch after which they are made."""
        session, bound = self._session, len(positions)
        by_batch = full(session, max(batches, 1), 0)
        if bound == 0:
            return positions, slots, by_batch
        turn, order = session.empty(bound, np.int64), session.empty(bound, np.int64)
        session.launch("count_up", bound, np.int64(0), np.int64(bound), order)
        session.launch(
            "choose_turns", bound, self._slots, slots, count, np.int32(batches), np.uint32(group_begin), turn, by_batch
        )
        _, order = sort_pairs(session, turn, order, count, bound, batches)
        out_slots, out_positions = session.empty(bound, np.int64), session.empty(bound, np.int64)
        session.launch("order_admissions", bound, order, count, slots, positions, out_slots, out_positions)
        return out_positions, out_slots, by_batch

    def _apply(
        self,
        positions: DeviceArray,
        slots: DeviceArray,
        num_admitted: int,
        count: DeviceArray,
        disk_rows: DeviceArray,
        states: DeviceArray,
    ) -> None:
        if num_admitted == 0:
            return
        session = self._session
        self._cached.make_room(num_admitted, self.capacity)
        session.launch("evict_slots", num_admitted, *self._cached.arguments, slots, count, self._row_of)
        session.launch(
            "fill_slots", num_admitted, *self._cached.arguments, slots, positions, count, disk_rows, states,
            self._row_of, self._slots,
        )  # fmt: skip
        self._cached.used += num_admitted


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
