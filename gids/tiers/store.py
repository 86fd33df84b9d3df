"""Executes plans: reads a group's rows, gathers batches out of cache, host buffer and group, fills the cache."""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gids._native import DType, Sweep, ThreadPool, admit_rows, gather_rows, place_rows
from gids.errors import ConfigError, GidsError
from gids.table import DTYPES, RowTable
from gids.tiers.arena import RowArena, Slots
from gids.tiers.host_buffer import HostBuffer, PendingRows, RowSource
from gids.tiers.plan import Counters, GroupPlan, Planner
from gids.tiers.policies import Policy

_NATIVE_DTYPES = {torch_dtype: DType[name] for name, torch_dtype in DTYPES.items()}


class PendingGroup:
    """A group whose rows are on their way. Made by :meth:`FeatureStore.begin`.

    Attributes
    ----------
    plan : GroupPlan
        What is read and gathered.
    last_step : int or None
        The store's step with which its last row is read; None where the group has memory of its own.
    buffer : Tensor, optional
        That memory, with the rows in the order of ``plan.disk_rows``.
    slots : int32[u], optional
        Otherwise, once all were read: where in the store's arena each of ``plan.disk_rows`` is.
    underway : bool
        Whether every read of the group has begun.
    """

    def __init__(self, plan: GroupPlan, last_step: int | None):
        self.plan = plan
        self.last_step = last_step
        self.buffer: Tensor | None = None
        self.slots: Slots | None = None
        self.underway = False
        self.next_batch = 0
        self.shared_rows = 0  # that are read, or were, for a group before it
        self.freed_rows = 0  # by the last gather
        self._lock = threading.Lock()
        self._reads: list[PendingRows] = []  # guarded by _lock
        self._cancelled = False  # guarded by _lock

    def started(self, read: PendingRows) -> None:
        """Take note of a read under way, which other groups may wait for too."""
        with self._lock:
            self._reads.append(read)
            cancelled = self._cancelled
        if cancelled:
            read.cancel()

    def wait(self) -> None:
        """Return when every row of the group has arrived; raise the error of the read."""
        if not self.underway:
            raise GidsError("a group must be read to its end before it is gathered (some of its reads have not begun)")
        for read in self._reads:
            read.wait()
        with self._lock:
            self._reads.clear()

    def cancel(self) -> None:
        """Read no more: :meth:`wait` raises unless all rows had arrived. From any thread; returns when it has ended."""
        with self._lock:
            self._cancelled = True
            reads = list(self._reads)
        for read in reads:
            read.cancel()

    @property
    def finished(self) -> bool:
        """Whether every batch was gathered."""
        return self.next_batch == len(self.plan.batches)


class FeatureStore:
    """Cache, host buffer and group buffers of one table.

    Parameters
    ----------
    table : RowTable
        Whose rows.
    reader : RowSource
        Reads rows from disk (``gids.storage.RowReader``).
    cache_rows : int
        Cache slots, at most the table's rows; 0 is no cache.
    policy, window : str or Policy, int
        See :func:`gids.tiers.policies.parse_policy`.
    host_buffer : HostBuffer, optional
        Constant rows.
    popularity : uint8[rows], optional
        See :class:`gids.tiers.plan.Planner`.
    seed : int
        For policies that draw.
    pool : ThreadPool, optional
        Threads for planning and copying.
    allocate : callable, optional
        ``allocate(rows, dim, dtype)`` gives memory for a group's rows; by default fresh pages.
    arena_rows : int
        Slots of an arena that groups share, see :class:`RowArena`. 0: every group has memory of its own.
    regions : int
        Parts of the table that are read one after the other, in turns, for all groups in the arena that lack rows there.

    Notes
    -----
    :meth:`plan_group` may run in one thread while another calls :meth:`start` and :meth:`gather`.
    """

    def __init__(
        self,
        table: RowTable,
        reader: RowSource,
        *,
        cache_rows: int = 0,
        policy: str | Policy = "window",
        window: int | None = None,
        host_buffer: HostBuffer | None = None,
        popularity: NDArray[np.uint8] | None = None,
        seed: int = 0,
        pool: ThreadPool | None = None,
        allocate: Callable[[int, int, torch.dtype], Tensor] | None = None,
        arena_rows: int = 0,
        regions: int = 1,
    ):
        if cache_rows < 0:
            raise ConfigError(f"cache_rows must not be negative (got {cache_rows})")
        if host_buffer is not None and (
            host_buffer.values.dtype != table.torch_dtype or host_buffer.values.shape[1:] != (table.dim,)
        ):
            raise ConfigError(
                f"host_buffer must hold rows of {table.dim} {table.dtype} as {table.name} does "
                f"(got {tuple(host_buffer.values.shape[1:])} {host_buffer.values.dtype})"
            )
        self.table = table
        self.pool = pool or ThreadPool(torch.get_num_threads(), "gids-tiers")
        self._reader = reader
        self._allocate = allocate or (lambda rows, dim, dtype: torch.empty(rows, dim, dtype=dtype))
        self.planner = Planner(
            table.num_rows,
            cache_rows,
            policy,
            window=window,
            host=None if host_buffer is None else host_buffer.index,
            popularity=popularity,
            seed=seed,
            pool=self.pool,
        )
        self.host_buffer = host_buffer
        self.cache = torch.empty(self.planner.capacity, table.dim, dtype=table.torch_dtype)
        self.arena = RowArena(arena_rows, table.dim, table.torch_dtype) if arena_rows else None
        self._sweep = Sweep(table.num_rows, regions)
        self._steps = 0
        self._unread: list[PendingGroup] = []  # begun, and some of their reads are not
        self.counters = Counters()  # of the batches gathered
        self._cache_bytes = _as_bytes(self.cache)
        self._host_bytes = _as_bytes(torch.empty(0) if host_buffer is None else host_buffer.values)
        self._lock = threading.Lock()
        self._whole_rows = 0  # of groups with memory of their own; guarded by _lock
        self._expected = (0, 0)  # (group number, batch) that must be gathered next

    def plan_group(self, batches: list[Tensor], lookahead: list[Tensor] | tuple[Tensor, ...] = ()) -> GroupPlan:
        """Plan the next group; see :meth:`gids.tiers.plan.Planner.plan_group`."""
        return self.planner.plan_group(batches, lookahead)

    def start(self, plan: GroupPlan) -> PendingGroup:
        """Read the group's rows; an arena must have room for all of them."""
        pending = self.begin(plan)
        while not pending.underway:
            self.step()
        return pending

    def fits(self, plan: GroupPlan) -> bool:
        """Whether the arena has room for the group as it comes in, beside the groups that are not read to their end."""
        return self.arena is not None and self._sweep.peak(plan.disk_rows.numpy()) <= self.arena.rows

    def begin(self, plan: GroupPlan) -> PendingGroup:
        """Let a group take part in the next steps; takes no memory for rows yet.

        A group that is larger than the arena gets memory of its own, and is read whole with the next step.
        """
        self._check_generation(plan)
        if not plan.batches:  # nothing will be gathered of it
            pending = PendingGroup(plan, self._steps)
        elif self.arena is None or len(plan.disk_rows) > self.arena.rows:
            pending = PendingGroup(plan, None)
        else:
            steps, new_rows = self._sweep.admit(plan.disk_rows.numpy())
            pending = PendingGroup(plan, self._steps + steps)
            pending.shared_rows = len(plan.disk_rows) - new_rows
        pending.underway = pending.last_step == self._steps
        if not pending.underway:
            self._unread.append(pending)
        return pending

    def step_bytes(self) -> int:
        """Memory that the next :meth:`step` takes; :attr:`PendingGroup.freed_rows` of gathered groups give it back."""
        whole = sum(len(pending.plan.disk_rows) for pending in self._unread if pending.last_step is None)
        return (self._sweep.due() + whole) * self.table.row_bytes

    def step(self) -> None:
        """Begin to read what the groups under way need of the next region of the table, each row once."""
        if self.arena is not None:
            slots = self.arena.take(self._sweep.due())
            rows = self._sweep.step(slots)
            self._steps += 1
            if len(rows):
                read = self._reader.submit(torch.from_numpy(rows), self.arena.values, places=slots)
                for pending in self._unread:
                    pending.started(read)
        taking_part, self._unread = self._unread, []
        for pending in taking_part:
            if pending.last_step is None:
                self._read_whole(pending)
            pending.underway = pending.last_step is None or pending.last_step <= self._steps
            if not pending.underway:
                self._unread.append(pending)

    def _read_whole(self, pending: PendingGroup) -> None:
        rows = pending.plan.disk_rows
        pending.buffer = self._allocate(len(rows), self.table.dim, self.table.torch_dtype)
        pending.started(self._reader.submit(rows, pending.buffer))
        with self._lock:
            self._whole_rows += len(rows)

    def gather(
        self, pending: PendingGroup, i: int, out: Tensor | None = None, dtype: torch.dtype | None = None
    ) -> Tensor:
        """Give the rows of batch ``i``, in the batch's order, and let the cache take in what the plan says.

        Parameters
        ----------
        pending : PendingGroup
            A started group. Groups, and batches within a group, are gathered in order.
        i : int
            Batch of the group.
        out : Tensor, optional
            [n, dim] to fill; contiguous, of the wanted dtype.
        dtype : torch.dtype, optional
            The table's own (default) or a floating point type.
        """
        plan = pending.plan
        self._check_generation(plan)
        if (plan.number, i) != self._expected:
            raise ConfigError(
                f"batches must be gathered in order: expected group {self._expected[0]}, batch {self._expected[1]} "
                f"(got group {plan.number}, batch {i})"
            )
        pending.wait()
        if pending.last_step is not None and pending.slots is None:
            pending.slots = np.empty(len(plan.disk_rows), np.int32)
            self._sweep.find(plan.disk_rows.numpy(), pending.slots)
        batch = plan.batches[i]
        location, admitted = batch.location.numpy(), batch.admit_positions.numpy()
        group = _as_bytes(torch.empty(0) if pending.buffer is None else pending.buffer)
        if pending.slots is not None:
            assert self.arena is not None
            group = _as_bytes(self.arena.values)
            location, admitted = location.copy(), pending.slots[admitted].astype(np.int64)
            place_rows(location, plan.capacity + plan.host_rows, pending.slots)
        out = self._checked_out(out, len(batch.location), dtype)
        gather_rows(
            self.pool,
            self._cache_bytes,
            self._host_bytes,
            group,
            location,
            _as_bytes(out),
            _NATIVE_DTYPES[out.dtype],
            _NATIVE_DTYPES[self.table.torch_dtype],
            self.table.dim,
            self.table.row_bytes,
        )
        if len(batch.admit_slots):
            admit_rows(
                self.pool,
                self._cache_bytes,
                batch.admit_slots.numpy(),
                group,
                admitted,
                self.table.row_bytes,
            )
        self.counters += batch.counters
        pending.next_batch = i + 1
        self._expected = (plan.number, i + 1)
        if pending.finished:
            self._expected = (plan.number + 1, 0)
            self.counters += Counters(disk=-pending.shared_rows, duplicates=pending.shared_rows)
            self._free(pending)
        return out

    def _free(self, pending: PendingGroup) -> None:
        if pending.last_step is None:
            pending.buffer = None
            pending.freed_rows = len(pending.plan.disk_rows)
            with self._lock:
                self._whole_rows -= pending.freed_rows
        else:
            assert self.arena is not None
            slots = self._sweep.release()
            pending.freed_rows = len(slots)
            self.arena.give(slots)

    def reset(self) -> None:
        """Empty the cache. Needed after a failed or abandoned group: plans made before are void.

        Reads still under way must be waited for or cancelled by whoever holds their :class:`PendingGroup`.
        """
        self.planner.reset()
        if self.arena is not None:
            self.arena.reset()
        self._sweep.clear()
        self._unread.clear()
        self._expected = (0, 0)
        with self._lock:
            self._whole_rows = 0

    @property
    def nbytes(self) -> int:
        """Bytes of cache, lookup structures and groups in flight; the host buffer counts for itself."""
        arena = 0 if self.arena is None else self.arena.nbytes
        return self.cache.nbytes + self.planner.memory_bytes + self._whole_rows * self.table.row_bytes + arena

    def _check_generation(self, plan: GroupPlan) -> None:
        if plan.generation != self.planner.generation:
            raise GidsError(f"plan of {self.table.name} is void: the store was reset after it was made")

    def _checked_out(self, out: Tensor | None, rows: int, dtype: torch.dtype | None) -> Tensor:
        if dtype is not None and dtype not in _NATIVE_DTYPES:
            raise ConfigError(f"dtype must be one of {', '.join(DTYPES)} (got {dtype})")
        if out is None:
            return torch.empty(rows, self.table.dim, dtype=dtype or self.table.torch_dtype)
        if out.shape != (rows, self.table.dim) or not out.is_contiguous() or (dtype or out.dtype) != out.dtype:
            raise ConfigError(
                f"out must be a contiguous [{rows}, {self.table.dim}] tensor of {dtype or out.dtype} "
                f"(got {tuple(out.shape)} {out.dtype})"
            )
        return out


def _as_bytes(tensor: Tensor) -> NDArray[np.uint8]:
    flat = tensor.view(-1).view(torch.uint8) if tensor.numel() else torch.empty(0, dtype=torch.uint8)
    return flat.numpy()
