"""Executes device plans: rows from drive or staging into device memory, gathered there out of all three tiers."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from gids.cuda.arena import SlotArena
from gids.cuda.array import DeviceArray
from gids.cuda.blocks import block_bytes
from gids.cuda.device_reader import DeviceRead, DeviceReader, Ints
from gids.cuda.pinned import host_array
from gids.cuda.planner import CudaPlanner, DeviceBatchPlan, DeviceGroupPlan
from gids.cuda.session import CudaSession
from gids.cuda.transfer import StagingBuffer
from gids.errors import ConfigError, DeviceError, GidsError
from gids.ledger import Account, Ledger
from gids.storage import PendingRead, RowReader
from gids.table import DTYPES, RowTable
from gids.tiers.host_buffer import HostBuffer
from gids.tiers.plan import Counters
from gids.tiers.policies import Policy
from gids.tiers.store import output_dtype

_NUMBERS = {dtype: number for number, dtype in enumerate(DTYPES.values())}  # DTypeNumber of kernels/entry_gather.cuh
_BFLOAT_CODE = 4  # kDLBfloat


def numpy_dtype(dtype: torch.dtype) -> tuple[np.dtype[Any], int | None]:
    """Return the NumPy dtype of a torch dtype's bytes, and its DLPack code where NumPy has no name for it."""
    if dtype == torch.bfloat16:
        return np.dtype(np.uint16), _BFLOAT_CODE
    return np.dtype(str(dtype).removeprefix("torch.")), None


class StagingPool:
    """Pinned buffers that are used again: pinning costs far more than a read."""

    def __init__(self, session: CudaSession):
        self._session = session
        self._free: list[StagingBuffer] = []  # guarded by _lock
        self._lock = threading.Lock()

    def take(self, count: int) -> StagingBuffer:
        """Return a buffer of at least ``count`` bytes."""
        with self._lock:
            fitting = [buffer for buffer in self._free if buffer.count >= count]
            if fitting:
                best = min(fitting, key=lambda buffer: buffer.count)
                self._free.remove(best)
                return best
            while self._free:  # all too small: their memory is better spent on the larger one
                self._free.pop().close()
        # Groups differ by a few rows: a little more room saves pinning again for the next one.
        return StagingBuffer(self._session.device, block_bytes(count + count // 4))

    def give(self, buffer: StagingBuffer) -> None:
        """Take a buffer back; nothing may use it any more."""
        with self._lock:
            self._free.append(buffer)

    def close(self) -> None:
        """Unpin what is free."""
        with self._lock:
            while self._free:
                self._free.pop().close()


class DeviceTicket:
    """A group of batches on its way to device memory; see :class:`gids.tiers.contract.Ticket`.

    Attributes
    ----------
    plan : DeviceGroupPlan
        What is read and gathered.
    buffer : DeviceArray or None
        Rows that are not in the arena, one behind the other; None before the group is read.
    places : int64[disk rows], optional
        Where each row of the group is: slots of the arena, and beyond them (and the host buffer's) rows of ``buffer``.
        Without an arena all rows are in ``buffer``, in order.
    admissions : tuple of int64 arrays, optional
        Positions and cache slots of what the group admits, on the host.
    """

    fits = True  # a group is read whole, with memory that is drawn when it is read

    def __init__(self, store: CudaTableStore, plan: DeviceGroupPlan):
        self.plan = plan
        self.buffer: DeviceArray | None = None
        self.places: Ints | None = None
        self.device_places: DeviceArray | None = None
        self.admissions: tuple[Ints, Ints] | None = None
        self.next_batch = 0
        self._store = store
        self._read: PendingRead | DeviceRead | None = None  # guarded by _lock
        self._staging: StagingBuffer | None = None
        self._underway = False
        self._cancelled = False  # guarded by _lock
        self._lock = threading.Lock()

    @property
    def counters(self) -> Counters:
        """Rows of the whole group by source, as planned."""
        return self.plan.counters

    def batch_counters(self, batch: int) -> Counters:
        """Rows of one batch by source."""
        return self.plan.batches[batch].counters

    @property
    def underway(self) -> bool:
        """Whether the group's reads have begun."""
        return self._underway

    @property
    def size_bytes(self) -> int:
        """Device memory that the group's rows take."""
        return len(self.plan.disk_rows) * self._store.table.row_bytes

    def begin(self) -> None:
        """Let the group be read with the store's next step."""
        self._store.begin(self)

    def submit(self) -> None:
        """Begin to read: straight into device memory, or into pinned memory first."""
        store, rows = self._store, self.plan.disk_rows
        with self._lock:
            if self._cancelled:
                raise GidsError(f"a group of {store.table.name} was cancelled before it was read")
            self.buffer = store.fetch.empty(0 if store.arena else self.size_bytes, np.uint8)
            if len(rows):
                self._read = (
                    self._submit_to_slots(store.reader)
                    if isinstance(store.reader, DeviceReader)
                    else self._submit_to_staging(store.reader)
                )
            self._underway = True

    def _submit_to_staging(self, reader: RowReader) -> PendingRead:
        table, rows = self._store.table, self.plan.disk_rows
        self._staging = self._store.staging.take(len(rows) * table.row_bytes)
        values = torch.from_numpy(self._staging.bytes[: len(rows) * table.row_bytes]).view(table.torch_dtype)
        return reader.submit(torch.from_numpy(rows), values.view(len(rows), table.dim))

    def _submit_to_slots(self, reader: DeviceReader) -> DeviceRead:
        store, arena = self._store, self._store.arena
        assert arena is not None
        prepared = reader.prepare(self.plan.disk_rows)
        places = arena.take(prepared)
        outside = np.flatnonzero(places < 0)  # the group is larger than was expected
        self.buffer = store.fetch.empty(len(outside) * arena.row_bytes, np.uint8)
        to = places * arena.row_bytes
        to[outside] = self.buffer.pointer - arena.values.pointer + np.arange(len(outside)) * arena.row_bytes
        places[outside] = arena.rows + self.plan.host_rows + np.arange(len(outside))
        self.places, self.device_places = places, store.fetch.upload(places)
        self.admissions = store.admissions_of(self.plan)
        # Whoever writes to the slots knows nothing of our stream, which may still read what was there.
        store.fetch.synchronize()
        return reader.submit(prepared, arena.values, to)

    def wait(self) -> None:
        """Return when the rows are in device memory, or their copy to it is queued before the gather."""
        with self._lock:
            read, self._read = self._read, None
            if self._cancelled:
                raise GidsError(f"a group of {self._store.table.name} was cancelled before it was gathered")
        if read is None:
            return
        try:
            read.wait()
        except BaseException:
            self._give_back()
            raise
        if self._staging is not None:
            assert self.buffer is not None
            count = len(self.plan.disk_rows) * self._store.table.row_bytes
            event = self._store.fetch.upload_async(self.buffer, self._staging.bytes[:count])
            self._store.retire(event, self._staging)
            self._staging = None

    def cancel(self) -> None:
        """Read no more; gathering from the group fails from now on."""
        with self._lock:
            self._cancelled = True
            read, self._read = self._read, None
        if read is not None:
            read.cancel()
            self._give_back()

    def _give_back(self) -> None:
        if self._staging is not None:
            self._store.staging.give(self._staging)
            self._staging = None


class CudaTableStore:
    """Cache in device memory, host buffer pinned, groups read by ``gds``, by ``nvme``, or through pinned staging.

    See :class:`gids.tiers.contract.Store`. Readers that write to device memory read rows to where they stay: cache and
    groups share the slots of an arena, and the cache takes rows over without a copy. What comes through pinned staging
    is copied to a buffer in one piece, and what the cache takes in of it is copied to its slots.

    Parameters
    ----------
    table : RowTable
        Whose rows.
    reader : RowReader or DeviceReader
        Reads rows to the host, or to the device; closed with this.
    plan_session, fetch_session : CudaSession
        One thread plans while another gathers; each has its stream.
    cache_rows, policy, window, host_buffer, popularity, seed
        As for :class:`gids.tiers.TableStore`.
    group_bytes : int
        Memory for the rows of all groups in flight, as far as expected.
    dtype : torch.dtype, optional
        Of floating point rows in a batch; by default the table's.
    ledger : Ledger, optional
        Of device memory.
    """

    def __init__(
        self,
        table: RowTable,
        reader: RowReader | DeviceReader,
        plan_session: CudaSession,
        fetch_session: CudaSession,
        *,
        cache_rows: int = 0,
        policy: str | Policy = "window",
        window: int | None = None,
        host_buffer: HostBuffer | None = None,
        popularity: npt.NDArray[np.uint8] | None = None,
        group_bytes: int = 0,
        dtype: torch.dtype | None = None,
        ledger: Ledger | None = None,
        seed: int = 0,
    ):
        ledger = Ledger(0) if ledger is None else ledger
        self.table, self.reader, self.fetch = table, reader, fetch_session
        self.dtype = output_dtype(table, dtype)
        self.staging = StagingPool(fetch_session)
        self._plans = plan_session
        self.planner = CudaPlanner(
            plan_session,
            table.num_rows,
            cache_rows,
            policy,
            window=window,
            host=None if host_buffer is None else host_buffer.index,
            popularity=popularity,
            seed=seed,
        )
        self.host_buffer = host_buffer
        self._host = (
            None
            if host_buffer is None or not len(host_buffer)
            else host_array(fetch_session, _bytes_of(host_buffer.values), f"host buffer of {table.name}")
        )
        self.arena: SlotArena | None = None
        if isinstance(reader, DeviceReader):
            fetch_session.enter()
            group_rows = min(group_bytes // table.row_bytes, 2 * table.num_rows)
            self.arena = SlotArena(fetch_session, self.planner.capacity, group_rows, table.row_bytes)
            reader.attach(self.arena.values)
            self._cache = self.arena.values
        else:
            self._cache = fetch_session.empty(self.planner.capacity * table.row_bytes, np.uint8)
        self._bad = fetch_session.empty(1, np.uint32)
        fetch_session.fill(self._bad, 0)
        self._lanes = 32 if table.row_bytes >= 64 else 8
        self.group_account = ledger.account(f"groups {table.name}", max(group_bytes, 1))
        self._fixed: list[tuple[Account, int]] = [(ledger.account("cache"), self.planner.capacity * table.row_bytes)]
        for account, size_bytes in self._fixed:
            account.take(size_bytes)
        self._shared: weakref.WeakSet[DeviceArray] = weakref.WeakSet()  # rows that the planner's stream has waited for
        self._begun: list[DeviceTicket] = []  # not read yet; of the planning thread alone
        self._ungathered: deque[DeviceTicket] = deque()  # begun and not gathered to the end, in the order of planning
        self._counters = Counters()  # of the batches gathered
        self.rows_taken_over = 0  # that the cache admitted where they had been read to
        self.rows_copied = 0  # that the cache admitted by a copy
        self._expected = (0, 0)
        self._retired: list[tuple[Any, StagingBuffer]] = []  # (event after which it is free, buffer)

    def plan(self, batches: list[DeviceArray], lookahead: list[DeviceArray]) -> DeviceTicket:
        """Plan the next group; see :meth:`gids.cuda.planner.CudaPlanner.plan_group`."""
        self._plans.enter()
        for rows in (*batches, *lookahead):
            if rows not in self._shared:
                self._shared.add(rows)
                rows.share_with(self._plans)
                if rows.ready is not None:
                    self._plans.wait_event(rows.ready)
        return DeviceTicket(self, self.planner.plan_group(batches, lookahead))

    def begin(self, ticket: DeviceTicket) -> None:
        """Let a group be read with the next step; called by :meth:`DeviceTicket.begin`."""
        self._check_generation(ticket.plan)
        self._begun.append(ticket)
        if ticket.plan.batches:
            self._ungathered.append(ticket)

    def advance(self) -> None:
        """Begin to read the groups that have begun, when there is memory for their rows."""
        while self._begun:
            ticket = self._begun[0]
            self.group_account.draw(ticket.size_bytes)
            self.fetch.enter()
            ticket.submit()
            self._begun.pop(0)

    def gather(self, ticket: DeviceTicket, batch: int) -> DeviceArray:
        """Queue the gather of a batch and then its admissions; returns ``[n, dim]`` with the event that ends it."""
        plan, table, session = ticket.plan, self.table, self.fetch
        self._check_generation(plan)
        if (plan.number, batch) != self._expected or ticket.next_batch != batch:
            raise ConfigError(
                f"batches must be gathered in order: expected group {self._expected[0]}, batch {self._expected[1]} "
                f"(got group {plan.number}, batch {batch})"
            )
        if not ticket.underway:
            raise GidsError(f"a group of {table.name} must be read before it is gathered (it has not begun to be)")
        session.enter()
        ticket.wait()
        planned = plan.batches[batch]
        kind, code = numpy_dtype(self.dtype)
        count = len(planned.location)
        out = session.empty((count, table.dim), kind)
        out = out.view(out.shape, kind, code)
        if count:
            self._queue_gather(ticket, planned, out)
        out.ready = session.record()
        if planned.admit_end > planned.admit_begin:
            assert ticket.buffer is not None
            if self.arena is None:
                self._copy_in(
                    plan.admit_slots, ticket.buffer, plan.admit_positions, planned.admit_begin, planned.admit_end
                )
            else:
                self._take_over(ticket, planned)
        self._counters += planned.counters
        ticket.next_batch = batch + 1
        done = ticket.next_batch == len(plan.batches)
        self._expected = (plan.number + 1, 0) if done else (plan.number, batch + 1)
        if done:
            self._end(ticket)
        return out

    def _queue_gather(self, ticket: DeviceTicket, batch: DeviceBatchPlan, out: DeviceArray) -> None:
        plan, table, session, location = ticket.plan, self.table, self.fetch, batch.location
        assert ticket.buffer is not None
        batch.location.share_with(session)
        count, cache_rows = len(location), plan.capacity
        if self.arena is not None:
            cache_rows, location = self.arena.rows, session.empty(count, np.int64)
            session.launch(
                "resolve_places", count, batch.location, np.int64(count), np.int64(plan.capacity),
                np.int64(plan.host_rows), np.int64(len(plan.disk_rows)), self.arena.place, ticket.device_places,
                np.int64(self.arena.rows), location,
            )  # fmt: skip
        session.launch(
            f"gather_rows_{self._lanes}", count, self._cache, None if self._host is None else self._host.array,
            ticket.buffer, np.int64(cache_rows), np.int64(plan.host_rows),
            np.int64(ticket.buffer.nbytes // table.row_bytes), np.int64(table.row_bytes), location, np.int64(count),
            np.int64(table.dim), np.int32(_NUMBERS[self.dtype]), np.int32(_NUMBERS[table.torch_dtype]), out, self._bad,
            lanes=self._lanes,
        )  # fmt: skip

    def _take_over(self, ticket: DeviceTicket, batch: DeviceBatchPlan) -> None:
        """Give rows that the cache admits to it where they are; only those outside the arena are copied."""
        plan, arena, session = ticket.plan, self.arena, self.fetch
        assert arena is not None
        assert ticket.admissions is not None
        assert ticket.places is not None
        assert ticket.buffer is not None
        begin, end = batch.admit_begin, batch.admit_end
        positions, slots = (part[begin:end] for part in ticket.admissions)
        places = ticket.places[positions]
        outside = np.flatnonzero(places >= arena.rows)
        if len(outside):
            rows = places[outside] - arena.rows - plan.host_rows
            into = session.upload(arena.place_of(slots[outside]))
            self._copy_in(into, ticket.buffer, session.upload(rows), 0, len(outside))
        plan.admit_slots.share_with(session)
        plan.admit_positions.share_with(session)
        session.launch(
            "admit_places", end - begin, plan.admit_slots, plan.admit_positions, np.int64(begin), np.int64(end),
            ticket.device_places, np.int64(arena.rows), arena.place,
        )  # fmt: skip
        arena.take_over(slots, places)
        ticket.places[positions] = arena.rows  # no longer the group's to give back
        self.rows_taken_over += len(positions) - len(outside)

    def _copy_in(self, slots: DeviceArray, rows: DeviceArray, positions: DeviceArray, begin: int, end: int) -> None:
        slots.share_with(self.fetch)
        positions.share_with(self.fetch)
        self.fetch.launch(
            f"admit_rows_{self._lanes}", end - begin, self._cache, slots, rows, positions, np.int64(begin),
            np.int64(end), np.int64(self.table.row_bytes), lanes=self._lanes,
        )  # fmt: skip
        self.rows_copied += end - begin

    def _end(self, ticket: DeviceTicket) -> None:
        """Free the memory of a group; kernels that were queued may still read it."""
        if self.arena is not None and ticket.places is not None:
            self.arena.give(ticket.places)
        ticket.buffer = None
        self.group_account.give(ticket.size_bytes)
        self._ungathered.popleft()

    def admissions_of(self, plan: DeviceGroupPlan) -> tuple[Ints, Ints]:
        """Return positions and cache slots of what a group admits, on the host. Waits."""
        return self._plans.download(plan.admit_positions), self._plans.download(plan.admit_slots)

    def retire(self, event: Any, buffer: StagingBuffer) -> None:
        """Take a staging buffer back once ``event`` has passed."""
        self._retired.append((event, buffer))
        while self._retired and self._retired[0][0].is_done:
            self.staging.give(self._retired.pop(0)[1])

    def reset(self) -> None:
        """Empty the cache; plans made before are void, and none of their reads writes any more."""
        while self._ungathered:
            self._ungathered.popleft().cancel()
        self._plans.enter()
        self.planner.reset()
        if self.arena is not None:
            self.fetch.enter()
            self.arena.reset()
        self._begun.clear()
        self._expected = (0, 0)
        self.group_account.give(self.group_account.used)

    def counts(self) -> Mapping[str, int]:
        """Return rows by source, reads, and bytes read and delivered so far."""
        io = self.reader.stats()
        return asdict(self._counters) | {
            "reads": io["reads"],
            "bytes_read": io["bytes_read"],
            "bytes_delivered": self._counters.requests * self.table.row_bytes,
        }

    def close(self) -> None:
        """Wait for the device, close the reader, and give memory and pinning back."""
        try:
            self.fetch.enter()
            wrong = bool(self.fetch.download(self._bad)[0])
        finally:
            for _, buffer in self._retired:
                self.staging.give(buffer)
            self._retired = []
            self.staging.close()
            self.planner.close()
            if self._host is not None:
                self._host.close()
            self.reader.close()
            self.group_account.give(self.group_account.used)
            while self._fixed:
                account, size_bytes = self._fixed.pop()
                account.give(size_bytes)
        if wrong:
            raise DeviceError(f"a plan of {self.table.name} named a place that does not exist")

    def _check_generation(self, plan: DeviceGroupPlan) -> None:
        if plan.generation != self.planner.generation:
            raise GidsError(f"plan of {self.table.name} is void: the store was reset after it was made")


def _bytes_of(values: torch.Tensor) -> npt.NDArray[np.uint8]:
    return values.contiguous().view(-1).view(torch.uint8).numpy()
