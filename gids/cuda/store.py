"""Executes device plans: rows from drive or staging into device memory, gathered there out of all three tiers."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from gids.cuda.arena import SlotArena
from gids.cuda.array import DeviceArray
from gids.cuda.pinned import StagingBuffer, host_array
from gids.cuda.planner import CudaPlanner, DeviceBatchPlan, DeviceGroupPlan
from gids.cuda.session import CudaSession
from gids.cuda.staged import Ints, StagedRead, StagedReader
from gids.errors import ConfigError, DeviceError, GidsError
from gids.storage import RowReader
from gids.table import DTYPES, RowTable
from gids.tiers.host_buffer import HostBuffer
from gids.tiers.plan import Counters
from gids.tiers.policies import Policy

_NUMBERS = {dtype: number for number, dtype in enumerate(DTYPES.values())}  # DTypeNumber of kernels/entry_gather.cuh
_BFLOAT_CODE = 4  # kDLBfloat


def numpy_dtype(dtype: torch.dtype) -> tuple[np.dtype[Any], int | None]:
    """Give the NumPy dtype of a torch dtype's bytes, and its DLPack code where NumPy has no name for it."""
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
        """Give a buffer of at least ``count`` bytes."""
        with self._lock:
            fitting = [buffer for buffer in self._free if buffer.count >= count]
            if fitting:
                best = min(fitting, key=lambda buffer: buffer.count)
                self._free.remove(best)
                return best
            while self._free:  # all too small: their memory is better spent on the larger one
                self._free.pop().close()
        return StagingBuffer(self._session, count)

    def give(self, buffer: StagingBuffer) -> None:
        """Take a buffer back; nothing may use it any more."""
        with self._lock:
            self._free.append(buffer)

    def close(self) -> None:
        """Unpin what is free."""
        with self._lock:
            while self._free:
                self._free.pop().close()


class DevicePending:
    """A group whose rows are on their way. Made by :meth:`CudaFeatureStore.start`.

    Attributes
    ----------
    buffer : DeviceArray
        Rows that are not in the arena, one behind the other.
    places : int64[disk rows], optional
        Where each row of the group is: slots of the arena, and beyond them (and the host buffer's) rows of ``buffer``.
        Without an arena all rows are in ``buffer``, in order.
    """

    def __init__(self, store: CudaFeatureStore, plan: DeviceGroupPlan):
        self.plan = plan
        self.places: Ints | None = None
        self.device_places: DeviceArray | None = None
        self.admissions: tuple[Ints, Ints] | None = None  # positions and cache slots, on the host
        self.next_batch = 0
        self._store = store
        self._read: Any = None
        self._staging: StagingBuffer | None = None
        self.buffer = store.fetch.empty(0 if store.arena else store.bytes_of(plan), np.uint8)

    def submit(self) -> None:
        """Begin to read: straight into device memory, or into pinned memory first."""
        rows, store = self.plan.disk_rows, self._store
        if not len(rows):
            return
        if isinstance(store.reader, StagedReader):
            self._submit_to_slots(store.reader)
            return
        table = store.table
        self._staging = store.staging.take(len(rows) * table.row_bytes)
        values = torch.from_numpy(self._staging.bytes[: len(rows) * table.row_bytes]).view(table.torch_dtype)
        self._read = store.reader.submit(torch.from_numpy(rows), values.view(len(rows), table.dim))

    def _submit_to_slots(self, reader: StagedReader) -> None:
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
        self._read = reader.submit(prepared, arena.values, to)

    def wait(self) -> None:
        """Return when the rows are in device memory, or their copy to it is queued before the gather."""
        if self._read is None:
            return
        read, self._read = self._read, None
        try:
            read.wait()
        except BaseException:
            self._give_back()
            raise
        if not isinstance(read, StagedRead):
            assert self._staging is not None
            count = len(self.plan.disk_rows) * self._store.table.row_bytes
            event = self._store.fetch.upload_async(self.buffer, self._staging.bytes[:count])
            self._store.retire(event, self._staging)
            self._staging = None

    def cancel(self) -> None:
        """Read no more; gathering from the group fails from now on."""
        if self._read is not None:
            read, self._read = self._read, None
            read.cancel()
            self._give_back()
        self.next_batch = -1

    def _give_back(self) -> None:
        if self._staging is not None:
            self._store.staging.give(self._staging)
            self._staging = None


class CudaFeatureStore:
    """Cache in device memory, host buffer pinned, groups read by ``gds``, by ``nvme``, or through pinned staging.

    Readers that write to device memory read rows to where they stay: cache and groups share the slots of an arena, and
    the cache takes rows over without a copy. What comes through pinned staging is copied to a buffer in one piece, and
    what the cache takes in of it is copied to its slots.

    Parameters
    ----------
    table : RowTable
        Whose rows.
    reader : RowReader or StagedReader
        Reads rows to the host, or to the device.
    plan_session, fetch_session : CudaSession
        One thread plans while another gathers; each has its stream.
    cache_rows, policy, window, host_buffer, popularity, seed
        As for :class:`gids.tiers.FeatureStore`.
    group_rows : int
        Rows of all groups in flight, as far as expected; more of them take more memory.
    """

    def __init__(
        self,
        table: RowTable,
        reader: RowReader | StagedReader,
        plan_session: CudaSession,
        fetch_session: CudaSession,
        *,
        cache_rows: int = 0,
        policy: str | Policy = "window",
        window: int | None = None,
        host_buffer: HostBuffer | None = None,
        popularity: npt.NDArray[np.uint8] | None = None,
        group_rows: int = 0,
        seed: int = 0,
    ):
        self.table = table
        self.reader = reader
        self.fetch = fetch_session
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
        if isinstance(reader, StagedReader):
            fetch_session.enter()
            self.arena = SlotArena(fetch_session, self.planner.capacity, group_rows, table.row_bytes)
            reader.attach(self.arena.values)
            self._cache = self.arena.values
        else:
            self._cache = fetch_session.empty(self.planner.capacity * table.row_bytes, np.uint8)
        self._bad = fetch_session.empty(1, np.uint32)
        fetch_session.fill(self._bad, 0)
        self._lanes = 32 if table.row_bytes >= 64 else 8
        self.counters = Counters()  # of the batches gathered
        self.rows_taken_over = 0  # that the cache admitted where they had been read to
        self.rows_copied = 0  # that the cache admitted by a copy
        self._expected = (0, 0)
        self._retired: list[tuple[Any, StagingBuffer]] = []  # (event after which it is free, buffer)

    def plan_group(self, batches: list[DeviceArray], lookahead: list[DeviceArray]) -> DeviceGroupPlan:
        """Plan the next group; see :meth:`gids.cuda.planner.CudaPlanner.plan_group`."""
        self._plans.enter()
        for rows in (*batches, *lookahead):
            rows.share_with(self._plans)
        return self.planner.plan_group(batches, lookahead)

    def bytes_of(self, plan: DeviceGroupPlan) -> int:
        """Bytes of device memory that the group's rows take."""
        return len(plan.disk_rows) * self.table.row_bytes

    def start(self, plan: DeviceGroupPlan) -> DevicePending:
        """Begin to read the group's rows."""
        self._check_generation(plan)
        self.fetch.enter()
        pending = DevicePending(self, plan)
        pending.submit()
        return pending

    def gather(self, pending: DevicePending, i: int, dtype: torch.dtype | None = None) -> DeviceArray:
        """Queue the gather of batch ``i`` and then its admissions; give ``[n, dim]`` with the event that ends it."""
        plan, table, session = pending.plan, self.table, self.fetch
        self._check_generation(plan)
        if (plan.number, i) != self._expected or pending.next_batch != i:
            raise ConfigError(
                f"batches must be gathered in order: expected group {self._expected[0]}, batch {self._expected[1]} "
                f"(got group {plan.number}, batch {i})"
            )
        session.enter()
        pending.wait()
        batch = plan.batches[i]
        target = dtype or table.torch_dtype
        if target != table.torch_dtype and not target.is_floating_point:
            raise ConfigError(f"dtype must be {table.torch_dtype} or a floating point type (got {target})")
        kind, code = numpy_dtype(target)
        count = len(batch.location)
        out = session.empty((count, table.dim), kind)
        out = out.view(out.shape, kind, code)
        if count:
            self._queue_gather(pending, batch, out, target)
        out.ready = session.record()
        if batch.admit_end > batch.admit_begin:
            if self.arena is None:
                self._copy_in(
                    plan.admit_slots, pending.buffer, plan.admit_positions, batch.admit_begin, batch.admit_end
                )
            else:
                self._take_over(pending, batch)
        self.counters += batch.counters
        pending.next_batch = i + 1
        done = pending.next_batch == len(plan.batches)
        self._expected = (plan.number + 1, 0) if done else (plan.number, i + 1)
        if done:
            self._end(pending)
        return out

    def _queue_gather(
        self, pending: DevicePending, batch: DeviceBatchPlan, out: DeviceArray, target: torch.dtype
    ) -> None:
        plan, table, session, location = pending.plan, self.table, self.fetch, batch.location
        batch.location.share_with(session)
        count, cache_rows = len(location), plan.capacity
        if self.arena is not None:
            cache_rows, location = self.arena.rows, session.empty(count, np.int64)
            session.launch(
                "resolve_places", count, batch.location, np.int64(count), np.int64(plan.capacity),
                np.int64(plan.host_rows), np.int64(len(plan.disk_rows)), self.arena.place, pending.device_places,
                np.int64(self.arena.rows), location,
            )  # fmt: skip
        session.launch(
            f"gather_rows_{self._lanes}", count, self._cache, None if self._host is None else self._host.array,
            pending.buffer, np.int64(cache_rows), np.int64(plan.host_rows),
            np.int64(pending.buffer.nbytes // table.row_bytes), np.int64(table.row_bytes), location, np.int64(count),
            np.int64(table.dim), np.int32(_NUMBERS[target]), np.int32(_NUMBERS[table.torch_dtype]), out, self._bad,
            lanes=self._lanes,
        )  # fmt: skip

    def _take_over(self, pending: DevicePending, batch: DeviceBatchPlan) -> None:
        """Give rows that the cache admits to it where they are; only those outside the arena are copied."""
        plan, arena, session = pending.plan, self.arena, self.fetch
        assert arena is not None
        assert pending.admissions is not None
        assert pending.places is not None
        begin, end = batch.admit_begin, batch.admit_end
        positions, slots = (part[begin:end] for part in pending.admissions)
        places = pending.places[positions]
        outside = np.flatnonzero(places >= arena.rows)
        if len(outside):
            rows = places[outside] - arena.rows - plan.host_rows
            into = session.upload(arena.place_of(slots[outside]))
            self._copy_in(into, pending.buffer, session.upload(rows), 0, len(outside))
        plan.admit_slots.share_with(session)
        plan.admit_positions.share_with(session)
        session.launch(
            "admit_places", end - begin, plan.admit_slots, plan.admit_positions, np.int64(begin), np.int64(end),
            pending.device_places, np.int64(arena.rows), arena.place,
        )  # fmt: skip
        arena.take_over(slots, places)
        pending.places[positions] = arena.rows  # no longer the group's to give back
        self.rows_taken_over += len(positions) - len(outside)

    def _copy_in(self, slots: DeviceArray, rows: DeviceArray, positions: DeviceArray, begin: int, end: int) -> None:
        slots.share_with(self.fetch)
        positions.share_with(self.fetch)
        self.fetch.launch(
            f"admit_rows_{self._lanes}", end - begin, self._cache, slots, rows, positions, np.int64(begin),
            np.int64(end), np.int64(self.table.row_bytes), lanes=self._lanes,
        )  # fmt: skip
        self.rows_copied += end - begin

    def _end(self, pending: DevicePending) -> None:
        """Free the memory of a group; kernels that were queued may still read it."""
        if self.arena is not None and pending.places is not None:
            self.arena.give(pending.places)
        pending.buffer = self.fetch.empty(0, np.uint8)

    def admissions_of(self, plan: DeviceGroupPlan) -> tuple[Ints, Ints]:
        """Give positions and cache slots of what a group admits, on the host. Waits."""
        return self._plans.download(plan.admit_positions), self._plans.download(plan.admit_slots)

    def retire(self, event: Any, buffer: StagingBuffer) -> None:
        """Take a staging buffer back once ``event`` has passed."""
        self._retired.append((event, buffer))
        while self._retired and self._retired[0][0].is_done:
            self.staging.give(self._retired.pop(0)[1])

    def reset(self) -> None:
        """Empty the cache; plans made before are void."""
        self._plans.enter()
        self.planner.reset()
        if self.arena is not None:
            self.fetch.enter()
            self.arena.reset()
        self._expected = (0, 0)

    def close(self) -> None:
        """Wait for the device and give memory and pinning back."""
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
        if wrong:
            raise DeviceError(f"a plan of {self.table.name} named a place that does not exist")

    def _check_generation(self, plan: DeviceGroupPlan) -> None:
        if plan.generation != self.planner.generation:
            raise GidsError(f"plan of {self.table.name} is void: the store was reset after it was made")


def _bytes_of(values: torch.Tensor) -> Any:
    return values.contiguous().view(-1).view(torch.uint8).numpy()
