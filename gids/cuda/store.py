"""Executes device plans: rows from drive or staging into device memory, gathered there out of all three tiers."""

from __future__ import annotations

import queue
import threading
import weakref
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from gids.cuda.arena import SlotArena
from gids.cuda.array import DeviceArray
from gids.cuda.device_reader import DeviceRead, DeviceReader, Ints
from gids.cuda.nvme import NvmeDeviceReader, NvmeRead
from gids.cuda.pinned import HostArray, host_array
from gids.cuda.planner import CudaPlanner, DeviceBatchPlan, DeviceGroupPlan, PendingGroup
from gids.cuda.session import CudaSession
from gids.cuda.staged import StagedRead, StagedReader
from gids.cuda.transfer import Pinned
from gids.errors import ConfigError, DeviceError, GidsError
from gids.ledger import Account, Ledger
from gids.storage import RowReader
from gids.table import DTYPES, RowTable
from gids.tiers.host_buffer import HostBuffer
from gids.tiers.plan import Counters
from gids.tiers.policies import Policy
from gids.tiers.store import output_dtype

_NUMBERS = {dtype: number for number, dtype in enumerate(DTYPES.values())}  # DTypeNumber of kernels/entry_gather.cuh
_BFLOAT_CODE = 4  # kDLBfloat
#: Pinned staging of a store whose opener says nothing.
STAGING_BYTES = 32 << 20


def numpy_dtype(dtype: torch.dtype) -> tuple[np.dtype[Any], int | None]:
    """Return the NumPy dtype of a torch dtype's bytes, and its DLPack code where NumPy has no name for it."""
    if dtype == torch.bfloat16:
        return np.dtype(np.uint16), _BFLOAT_CODE
    return np.dtype(str(dtype).removeprefix("torch.")), None


class DeviceTicket:
    """A group of batches on its way to device memory; see :class:`gids.tiers.contract.Ticket`.

    What it reads, the device decides; a thread of the store asks for memory and begins the reads when the plan is there,
    and nobody else waits for it.

    Attributes
    ----------
    pending : PendingGroup
        The plan, or what will be it.
    buffer : DeviceArray or None
        Rows that are not in the arena, one behind the other; None before the group is read.
    places : int64[disk rows], optional
        Where each row of the group is: slots of the arena, and beyond them (and the host buffer's) rows of ``buffer``.
        Without an arena all rows are in ``buffer``, in order.
    """

    fits = True  # a group is read whole, with memory that is drawn when it is read
    counted_late = True

    def __init__(self, store: CudaTableStore, pending: PendingGroup):
        self.pending = pending
        self.buffer: DeviceArray | None = None
        self.places: Ints | None = None
        self.device_places: DeviceArray | None = None
        self.next_batch = 0
        self.underway = False  # whether the reads have begun, or will when the plan is there
        self._store = store
        self._read: StagedRead | DeviceRead | NvmeRead | None = None
        self._error: BaseException | None = None
        self._begun = False  # whether all reads were asked for
        self._drawn = 0  # bytes of the group account
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)  # guards all that begins with an underscore

    @property
    def plan(self) -> DeviceGroupPlan:
        """What is read and gathered. Waits until the device has decided it."""
        return self.pending.wait()

    @property
    def counters(self) -> Counters:
        """Rows of the whole group by source, as planned. Waits until they are known."""
        return self.plan.counters

    def batch_counters(self, batch: int) -> Counters:
        """Rows of one batch by source."""
        return self.plan.batches[batch].counters

    @property
    def has_begun(self) -> bool:
        """Whether the plan was there, and memory, and the reads were asked for; or it failed."""
        return self._begun

    def begin(self) -> None:
        """Let the group be read with the store's next step."""
        self._store.begin(self)

    def start(self) -> None:
        """Wait for the plan and for memory, and begin to read; called on the store's thread."""
        store = self._store
        try:
            size_bytes = self.plan.num_disk_rows * store.table.row_bytes
            store.group_account.draw(size_bytes)
            with self._lock:
                self._drawn = size_bytes
                if self._error is None:
                    self._read = self._submit()
        except BaseException as error:
            self._fail(error)
        with self._lock:
            self._begun = True
            failed = self._error is not None
            self._changed.notify_all()
        if failed:
            self.give_back()

    def _submit(self) -> StagedRead | DeviceRead | NvmeRead | None:
        store, plan = self._store, self.plan
        store.fetch.enter()
        if not plan.num_disk_rows:
            self.buffer = store.fetch.empty(0, np.uint8)
            return None
        if isinstance(store.reader, DeviceReader):
            return self._submit_to_slots(store.reader)
        self.buffer = store.buffers.empty(plan.num_disk_rows * store.table.row_bytes, np.uint8)
        if isinstance(store.reader, NvmeDeviceReader):
            return store.reader.submit(plan.device_rows, self.buffer)
        assert store.staged is not None
        assert plan.disk_rows is not None
        return store.staged.submit(plan.disk_rows, self.buffer)

    def _submit_to_slots(self, reader: DeviceReader) -> DeviceRead:
        store, arena = self._store, self._store.arena
        assert arena is not None
        assert self.plan.disk_rows is not None
        prepared = reader.prepare(self.plan.disk_rows)
        places = arena.take(prepared)
        outside = np.flatnonzero(places < 0)  # the group is larger than was expected
        self.buffer = store.fetch.empty(len(outside) * arena.row_bytes, np.uint8)
        to = places * arena.row_bytes
        to[outside] = self.buffer.pointer - arena.values.pointer + np.arange(len(outside)) * arena.row_bytes
        places[outside] = arena.rows + self.plan.host_rows + np.arange(len(outside))
        self.places, self.device_places = places, store.fetch.upload(places)
        # Whoever writes to the slots knows nothing of our stream, which may still read what was there.
        store.fetch.download_later([]).wait()
        return reader.submit(prepared, arena.values, to)

    def wait(self) -> None:
        """Return when the rows are in device memory, or the gather's stream waits for their copies."""
        with self._lock:
            while not self._begun and self._error is None:
                self._changed.wait()
            if self._error is not None:
                raise self._error
            read, self._read = self._read, None
        if read is None:
            return
        try:
            copied = read.wait()
        except BaseException as error:
            self._fail(error)
            raise
        if copied is not None:
            assert self.buffer is not None
            self.buffer.share_with(self._store.fetch)
            self._store.fetch.wait_event(copied)

    def cancel(self) -> None:
        """Read no more; gathering from the group fails from now on."""
        self._fail(GidsError(f"a group of {self._store.table.name} was cancelled before it was gathered"))
        with self._lock:
            begun = self._begun
        if begun:
            self.give_back()

    def _fail(self, error: BaseException) -> None:
        with self._lock:
            if self._error is None:
                self._error = error
            read, self._read = self._read, None
            self._changed.notify_all()
        if read is not None:
            read.cancel()

    def give_back(self) -> None:
        """Return the group's share of the account back, once."""
        with self._lock:
            drawn, self._drawn = self._drawn, 0
        self._store.group_account.give(drawn)


class CudaTableStore:
    """Cache in device memory, host buffer pinned, groups read by ``gds``, by ``nvme``, or through pinned staging.

    See :class:`gids.tiers.contract.Store`. ``gds`` reads rows to where they stay: cache and groups share the slots of an
    arena, and the cache takes rows over without a copy. What comes through pinned memory goes to a buffer, and what the
    cache takes in of it is copied to its slots.

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
    staging_bytes : int
        Pinned memory that a :class:`RowReader` reads into.
    pin : callable, optional
        Where that comes from; see :class:`StagedReader`.
    """

    def __init__(
        self,
        table: RowTable,
        reader: RowReader | DeviceReader | NvmeDeviceReader,
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
        staging_bytes: int = STAGING_BYTES,
        pin: Callable[[int], Pinned] | None = None,
    ):
        ledger = Ledger(0) if ledger is None else ledger
        self.table, self.reader, self.fetch = table, reader, fetch_session
        self.dtype = output_dtype(table, dtype)
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
            rows_to_host=not isinstance(reader, NvmeDeviceReader),
            admissions_to_host=isinstance(reader, DeviceReader),
        )
        self.host_buffer: HostBuffer | None = None
        self._host: HostArray | None = None
        if host_buffer is not None:
            self._hold(host_buffer)
        self.arena: SlotArena | None = None
        self.staged: StagedReader | None = None
        if isinstance(reader, DeviceReader):
            fetch_session.enter()
            group_rows = min(group_bytes // table.row_bytes, 2 * table.num_rows)
            self.arena = SlotArena(fetch_session, self.planner.capacity, group_rows, table.row_bytes)
            reader.attach(self.arena.values)
            self._cache = self.arena.values
        else:
            self._cache = fetch_session.empty(self.planner.capacity * table.row_bytes, np.uint8)
            if isinstance(reader, NvmeDeviceReader):
                self.buffers = reader.unpacking
            else:
                self.buffers = CudaSession(fetch_session.device, fetch_session.budget)
                self.staged = StagedReader(table, reader, self.buffers, staging_bytes, pin)
        self._bad = fetch_session.empty(1, np.uint32)
        fetch_session.fill(self._bad, 0)
        self._lanes = 32 if table.row_bytes >= 64 else 8
        self.group_account = ledger.account(f"groups {table.name}", max(group_bytes, 1))
        self._fixed: list[tuple[Account, int]] = [(ledger.account("cache"), self.planner.capacity * table.row_bytes)]
        for account, size_bytes in self._fixed:
            account.take(size_bytes)
        self._shared: weakref.WeakSet[DeviceArray] = weakref.WeakSet()  # rows that the planner's stream has waited for
        self._begun: list[DeviceTicket] = []  # not read yet; of the planning thread alone
        self._starting: queue.Queue[DeviceTicket | None] = queue.Queue()  # whose plan or memory is waited for
        self._starter: threading.Thread | None = None
        self._ungathered: deque[DeviceTicket] = deque()  # begun and not gathered to the end, in the order of planning
        self._counters = Counters()  # of the batches gathered
        self.rows_taken_over = 0  # that the cache admitted where they had been read to
        self.rows_copied = 0  # that the cache admitted by a copy
        self._expected = (0, 0)

    def _hold(self, host: HostBuffer) -> None:
        if len(host):
            self._host = host_array(self.fetch, _bytes_of(host.values), f"host buffer of {self.table.name}")
        self.host_buffer = host

    def add_host_buffer(self, host: HostBuffer) -> None:
        """Let constant rows serve the groups planned from now on; see :class:`gids.tiers.contract.Store`."""
        self._plans.enter()
        self.planner.add_host(host.index)
        self._hold(host)

    def plan(self, batches: list[DeviceArray], lookahead: list[DeviceArray]) -> DeviceTicket:
        """Plan the next group; see :meth:`gids.cuda.planner.CudaPlanner.plan_group`."""
        self._plans.enter()
        for rows in (*batches, *lookahead):
            if rows not in self._shared:
                self._shared.add(rows)
                rows.share_with(self._plans)
                if rows.ready is not None:
                    self._plans.wait_event(rows.ready)
        return DeviceTicket(self, self.planner.begin_group(batches, lookahead))

    def begin(self, ticket: DeviceTicket) -> None:
        """Let a group be read with the next step; called by :meth:`DeviceTicket.begin`."""
        self._check_generation(ticket.pending)
        self._begun.append(ticket)
        if ticket.pending.batch_rows:
            self._ungathered.append(ticket)

    @property
    def has_room(self) -> bool:
        """Return True: a thread of its own waits for memory, and :meth:`advance` for nothing."""
        return True

    def advance(self) -> None:
        """Let the groups that have begun be read, each as soon as its plan is known and there is memory for its rows."""
        if self._begun and self._starter is None:
            self._starter = threading.Thread(target=self._start_reads, name=f"gids-read-{self.table.name}", daemon=True)
            self._starter.start()
        while self._begun:
            ticket = self._begun.pop(0)
            ticket.underway = True
            self._starting.put(ticket)

    def _start_reads(self) -> None:
        while (ticket := self._starting.get()) is not None:
            ticket.start()
            del ticket  # while it waits for the next one, the thread must not keep this one alive
            self._starting.task_done()

    def gather(self, ticket: DeviceTicket, batch: int) -> DeviceArray:
        """Queue the gather of a batch and then its admissions; returns ``[n, dim]`` with the event that ends it."""
        number, table, session = ticket.pending.number, self.table, self.fetch
        self._check_generation(ticket.pending)
        if (number, batch) != self._expected or ticket.next_batch != batch:
            raise ConfigError(
                f"batches must be gathered in order: expected group {self._expected[0]}, batch {self._expected[1]} "
                f"(got group {number}, batch {batch})"
            )
        if not ticket.underway:
            raise GidsError(f"a group of {table.name} must be read before it is gathered (it has not begun to be)")
        session.enter()
        ticket.wait()
        plan = ticket.plan
        planned = plan.batches[batch]
        kind, code = numpy_dtype(self.dtype)
        count = len(planned.location)
        out = session.empty((count, table.dim), kind)
        out = out.view(out.shape, kind, code)
        if count:
            self._queue_gather(ticket, planned, out)
        out.ready = session.record()
        out.export()
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
        self._expected = (number + 1, 0) if done else (number, batch + 1)
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
                np.int64(plan.host_rows), np.int64(plan.num_disk_rows), self.arena.place, ticket.device_places,
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
        """Hand rows that the cache admits to it where they are; only those outside the arena are copied."""
        plan, arena, session = ticket.plan, self.arena, self.fetch
        assert arena is not None
        assert plan.admissions is not None
        assert ticket.places is not None
        assert ticket.buffer is not None
        begin, end = batch.admit_begin, batch.admit_end
        positions, slots = (part[begin:end] for part in plan.admissions)
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
        ticket.give_back()
        self._ungathered.popleft()

    def reset(self) -> None:
        """Empty the cache; plans made before are void, and none of their reads writes any more."""
        for ticket in self._ungathered:
            ticket.cancel()
        self._starting.join()  # what was to be read is not begun any more
        self._ungathered.clear()
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
        for ticket in self._ungathered:
            ticket.cancel()
        self._starting.put(None)
        if self._starter is not None:
            self._starter.join()
        try:
            if self.staged is not None:
                self.staged.close()
                self.buffers.close()
            self.fetch.enter()
            wrong = bool(self.fetch.download(self._bad)[0])
        finally:
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

    def _check_generation(self, plan: PendingGroup) -> None:
        if plan.generation != self.planner.generation:
            raise GidsError(f"plan of {self.table.name} is void: the store was reset after it was made")


def _bytes_of(values: torch.Tensor) -> npt.NDArray[np.uint8]:
    return values.contiguous().view(-1).view(torch.uint8).numpy()
