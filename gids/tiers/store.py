"""Executes plans of one table: reads groups in sweeps, gathers batches out of cache, host buffer and arena, fills the cache."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import asdict

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gids._native import DType, Sweep, ThreadPool, admit_rows, gather_rows, place_rows
from gids.errors import ConfigError, GidsError
from gids.ledger import Account, Ledger
from gids.table import DTYPES, RowTable
from gids.tiers.arena import RowArena, Slots
from gids.tiers.buffers import BufferPool
from gids.tiers.host_buffer import HostBuffer, PendingRows, Reader
from gids.tiers.plan import Counters, GroupPlan, Planner
from gids.tiers.policies import Policy
from gids.tiers.spill import Chunk, RowSpill

_NATIVE_DTYPES = {torch_dtype: DType[name] for name, torch_dtype in DTYPES.items()}


def output_dtype(table: RowTable, wanted: torch.dtype | None) -> torch.dtype:
    """Return the dtype of a table's rows in a batch: floating point rows become what is wanted, others stay."""
    return wanted if wanted is not None and table.torch_dtype.is_floating_point else table.torch_dtype


class GroupTicket:
    """A group of batches on its way through a :class:`TableStore`; see :class:`gids.tiers.contract.Ticket`.

    Attributes
    ----------
    plan : GroupPlan
        What is read and gathered.
    chunks : list of Chunk or None
        Of the batches whose rows are spilled.
    last_step : int or None
        The store's step with which its last row is read; None where the group is larger than the arena and gets memory
        of its own.
    buffer : Tensor, optional
        That memory, with the rows in the order of ``plan.disk_rows``.
    slots : int32[u], optional
        Otherwise, once all were read: where in the store's arena each of ``plan.disk_rows`` is.
    """

    def __init__(self, store: TableStore, plan: GroupPlan, chunks: list[Chunk | None]):
        self.plan, self.chunks = plan, chunks
        self.last_step: int | None = None
        self.buffer: Tensor | None = None
        self.slots: Slots | None = None
        self.next_batch = 0
        self.shared_rows = 0  # that are read, or were, for a group before it
        self._store = store
        self._underway = False
        self._lock = threading.Lock()
        self._reads: list[PendingRows] = []  # guarded by _lock
        self._cancelled = False  # guarded by _lock

    @property
    def counters(self) -> Counters:
        """Rows of the whole group by source, as planned."""
        return self.plan.counters

    @property
    def counted_late(self) -> bool:
        """Whether a device counts the rows."""
        return False

    def batch_counters(self, batch: int) -> Counters:
        """Rows of one batch by source; with the last one, what the group shared with groups before it."""
        found = self.plan.batches[batch].counters
        if batch == len(self.plan.batches) - 1:
            found += Counters(disk=-self.shared_rows, duplicates=self.shared_rows)
        return found

    @property
    def fits(self) -> bool:
        """Whether the group may begin beside those before it."""
        return self._store.fits(self.plan)

    @property
    def underway(self) -> bool:
        """Whether every read of the group has begun."""
        return self._underway

    def begin(self) -> None:
        """Let the group take part in the next steps; takes no memory for rows yet."""
        self._store.begin(self)

    def read_begun(self, read: PendingRows) -> None:
        """Take note of a read under way, which other groups may wait for too."""
        with self._lock:
            self._reads.append(read)
            cancelled = self._cancelled
        if cancelled:
            read.cancel()

    def all_begun(self) -> None:
        """Take note that every read of the group has begun."""
        self._underway = True

    def wait(self) -> None:
        """Return when every row of the group has arrived; raise the error of the read."""
        if not self._underway:
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


class TableStore:
    """Cache, host buffer and groups of one table in host memory; see :class:`gids.tiers.contract.Store`.

    Parameters
    ----------
    table : RowTable
        Whose rows.
    reader : RowReader, or any Reader
        Reads rows from disk; closed with this.
    cache_rows : int
        Cache slots, at most the table's rows; 0 is no cache.
    policy, window : str or Policy, int
        See :func:`gids.tiers.policies.parse_policy`.
    host_buffer : HostBuffer, optional
        Constant rows.
    popularity : uint8[rows], optional
        See :class:`gids.tiers.plan.Planner`.
    arena_rows : int
        Slots that groups share, see :class:`RowArena`; a group that is larger gets memory of its own.
    regions : int
        Parts of the table that are read one after the other, in turns, for all groups that lack rows there.
    dtype : torch.dtype, optional
        Of floating point rows in a batch; by default the table's.
    keep_outputs : int
        Delivered batches whose memory is kept for use again.
    ledger : Ledger, optional
        Whose accounts ``cache``, ``host_buffer``, ``groups <table>`` and ``outputs`` the memory is drawn from.
    seed : int
        For policies that draw.
    pool : ThreadPool, optional
        Threads for planning and copying.
    spill : callable, optional
        Makes, of the account for groups, what reads rows that were spilled; without a cache, whose planner then need not
        look ahead.
    """

    def __init__(
        self,
        table: RowTable,
        reader: Reader,
        *,
        cache_rows: int = 0,
        policy: str | Policy = "window",
        window: int | None = None,
        host_buffer: HostBuffer | None = None,
        popularity: NDArray[np.uint8] | None = None,
        arena_rows: int = 1,
        regions: int = 1,
        dtype: torch.dtype | None = None,
        keep_outputs: int = 2,
        ledger: Ledger | None = None,
        seed: int = 0,
        pool: ThreadPool | None = None,
        spill: Callable[[Account], RowSpill] | None = None,
    ):
        if cache_rows < 0:
            raise ConfigError(f"cache_rows must not be negative (got {cache_rows})")
        if dtype is not None and dtype not in _NATIVE_DTYPES:
            raise ConfigError(f"dtype must be one of {', '.join(DTYPES)} (got {dtype})")
        if host_buffer is not None:
            _check_rows_are_of(table, host_buffer)
        ledger = Ledger(0) if ledger is None else ledger
        self.table, self.reader, self.host_buffer = table, reader, host_buffer
        self.dtype = output_dtype(table, dtype)
        self.pool = pool or ThreadPool(torch.get_num_threads(), "gids-tiers")
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
        self.cache = torch.empty(self.planner.capacity, table.dim, dtype=table.torch_dtype)
        self.arena = RowArena(arena_rows, table.dim, table.torch_dtype)
        self.outputs = BufferPool(keep_outputs, ledger.account("outputs"))
        self.group_account = ledger.account(f"groups {table.name}", self.arena.rows * table.row_bytes)
        self._fixed: list[tuple[Account, int]] = [
            (ledger.account("cache"), self.cache.nbytes + self.planner.memory_bytes)
        ]
        self._host_account = ledger.account("host_buffer")
        if host_buffer is not None:
            self._fixed.append((self._host_account, host_buffer.nbytes))
        for account, size_bytes in self._fixed:
            account.take(size_bytes)
        self.spill = None if spill is None else spill(self.group_account)
        self._sweep = Sweep(table.num_rows, regions)
        self._steps = 0
        self._unread: list[GroupTicket] = []  # begun, and some of their reads are not
        self._begun: deque[GroupTicket] = deque()  # begun and not gathered to the end, in the order of planning
        self._counters = Counters()  # of the batches gathered
        self._cache_bytes = _as_bytes(self.cache)
        self._host_bytes = _as_bytes(torch.empty(0) if host_buffer is None else host_buffer.values)
        self._expected = (0, 0)  # (group number, batch) that must be gathered next

    def add_host_buffer(self, host: HostBuffer) -> None:
        """Let constant rows serve the groups planned from now on; see :class:`gids.tiers.contract.Store`."""
        _check_rows_are_of(self.table, host)
        self.planner.add_host(host.index)
        self._host_account.take(host.nbytes)
        self._fixed.append((self._host_account, host.nbytes))
        self.host_buffer, self._host_bytes = host, _as_bytes(host.values)

    def plan(self, batches: list[Tensor], lookahead: list[Tensor]) -> GroupTicket:
        """Plan the next group; see :meth:`gids.tiers.plan.Planner.plan_group`."""
        if self.spill is None:
            return GroupTicket(self, self.planner.plan_group(batches, lookahead), [])
        return GroupTicket(self, self.planner.plan_group(batches), self.spill.foresee(batches, lookahead))

    def fits(self, plan: GroupPlan) -> bool:
        """Whether the arena has room for a group as it comes in, beside the groups that are not read to their end."""
        return self._sweep.peak(plan.disk_rows.numpy()) <= self.arena.rows

    def begin(self, ticket: GroupTicket) -> None:
        """Let a group take part in the next steps; called by :meth:`GroupTicket.begin`."""
        plan = ticket.plan
        self._check_generation(plan)
        if not plan.batches:  # nothing will be gathered of it
            ticket.last_step = self._steps
            ticket.all_begun()
            return
        self._begun.append(ticket)
        if len(plan.disk_rows) <= self.arena.rows:
            steps, new_rows = self._sweep.admit(plan.disk_rows.numpy())
            ticket.last_step = self._steps + steps
            ticket.shared_rows = len(plan.disk_rows) - new_rows
        if ticket.last_step == self._steps:
            ticket.all_begun()
        else:
            self._unread.append(ticket)

    @property
    def has_room(self) -> bool:
        """Whether there is memory for what the next step reads."""
        return self.group_account.has_room(self._rows_due * self.table.row_bytes)

    @property
    def _rows_due(self) -> int:
        whole = (len(ticket.plan.disk_rows) for ticket in self._unread if ticket.last_step is None)
        return self._sweep.due() + sum(whole)

    def advance(self) -> None:
        """Begin to read what the groups that have begun need of the next region of the table, each row once."""
        whole = [ticket for ticket in self._unread if ticket.last_step is None]
        self.group_account.draw(self._rows_due * self.table.row_bytes)
        slots = self.arena.take(self._sweep.due())
        rows = self._sweep.step(slots)
        self._steps += 1
        if len(rows):
            for read in self._read(rows, self.arena.values, slots, self._unread):
                for ticket in self._unread:
                    ticket.read_begun(read)
        for ticket in whole:
            wanted = ticket.plan.disk_rows
            ticket.buffer = torch.empty(len(wanted), self.table.dim, dtype=self.table.torch_dtype)
            for read in self._read(wanted.numpy(), ticket.buffer, None, [ticket]):
                ticket.read_begun(read)
        taking_part, self._unread = self._unread, []
        for ticket in taking_part:
            if ticket.last_step is None or ticket.last_step <= self._steps:
                ticket.all_begun()
            else:
                self._unread.append(ticket)

    def _read(
        self, rows: NDArray[np.int64], out: Tensor, places: Slots | None, tickets: list[GroupTicket]
    ) -> list[PendingRows]:
        if self.spill is None:
            return [self.reader.submit(torch.from_numpy(rows), out, places=places)]
        places = np.arange(len(rows), dtype=np.int32) if places is None else places
        return self.spill.submit(rows, out, places, [chunk for ticket in tickets for chunk in ticket.chunks])

    def gather(self, ticket: GroupTicket, batch: int) -> Tensor:
        """Return the rows of a batch, in the batch's order, and let the cache take in what the plan says."""
        plan = ticket.plan
        self._check_generation(plan)
        if (plan.number, batch) != self._expected:
            raise ConfigError(
                f"batches must be gathered in order: expected group {self._expected[0]}, batch {self._expected[1]} "
                f"(got group {plan.number}, batch {batch})"
            )
        ticket.wait()
        if ticket.last_step is not None and ticket.slots is None:
            ticket.slots = np.empty(len(plan.disk_rows), np.int32)
            self._sweep.find(plan.disk_rows.numpy(), ticket.slots)
        planned = plan.batches[batch]
        location, admitted = planned.location.numpy(), planned.admit_positions.numpy()
        group = _as_bytes(torch.empty(0) if ticket.buffer is None else ticket.buffer)
        if ticket.slots is not None:
            group = _as_bytes(self.arena.values)
            location, admitted = location.copy(), ticket.slots[admitted].astype(np.int64)
            place_rows(location, plan.capacity + plan.host_rows, ticket.slots)
        out = self.outputs.empty(len(planned.location), self.table.dim, self.dtype)
        gather_rows(
            self.pool,
            self._cache_bytes,
            self._host_bytes[: plan.host_rows * self.table.row_bytes],  # none, of a plan that was made before
            group,
            location,
            _as_bytes(out),
            _NATIVE_DTYPES[self.dtype],
            _NATIVE_DTYPES[self.table.torch_dtype],
            self.table.dim,
            self.table.row_bytes,
        )
        if len(planned.admit_slots):
            admit_rows(
                self.pool,
                self._cache_bytes,
                planned.admit_slots.numpy(),
                group,
                admitted,
                self.table.row_bytes,
            )
        self._counters += ticket.batch_counters(batch)
        ticket.next_batch = batch + 1
        self._expected = (plan.number, batch + 1)
        if ticket.finished:
            self._expected = (plan.number + 1, 0)
            self._free(ticket)
        return out

    def _free(self, ticket: GroupTicket) -> None:
        self._begun.popleft()
        if ticket.last_step is None:
            ticket.buffer = None
            freed = len(ticket.plan.disk_rows)
        else:
            slots = self._sweep.release()
            self.arena.give(slots)
            freed = len(slots)
        self.group_account.give(freed * self.table.row_bytes)

    def reset(self) -> None:
        """Empty the cache. Needed after a failed or abandoned group: plans made before are void.

        Returns when no read of theirs writes any more: their slots are given to the next group.
        """
        while self._begun:
            self._begun.popleft().cancel()
        self.planner.reset()
        self.arena.reset()
        self._sweep.clear()
        self._unread.clear()
        if self.spill is not None:
            self.spill.forget()
        self._expected = (0, 0)
        self.group_account.give(self.group_account.used)  # it is this store's alone

    def counts(self) -> Mapping[str, int]:
        """Return rows by source, reads, and bytes read, spilled and delivered so far."""
        io, spilled = self.reader.stats(), {} if self.spill is None else self.spill.stats()
        return asdict(self._counters) | {
            "reads": io["reads"] + spilled.get("reads", 0),
            "bytes_read": io["bytes_read"] + spilled.get("bytes_read", 0),
            "bytes_written": spilled.get("bytes_written", 0),
            "bytes_delivered": self._counters.requests * self.table.row_bytes,
        }

    @property
    def nbytes(self) -> int:
        """Bytes of cache, lookup structures and groups in flight; the host buffer counts for itself."""
        return self.cache.nbytes + self.planner.memory_bytes + max(self.arena.nbytes, self.group_account.used)

    def close(self) -> None:
        """Close the reader and give the memory back."""
        if self.spill is not None:
            self.spill.close()
        self.reader.close()
        self.outputs.clear()
        self.group_account.give(self.group_account.used)  # it is this store's alone
        while self._fixed:
            account, size_bytes = self._fixed.pop()
            account.give(size_bytes)

    def _check_generation(self, plan: GroupPlan) -> None:
        if plan.generation != self.planner.generation:
            raise GidsError(f"plan of {self.table.name} is void: the store was reset after it was made")


def _check_rows_are_of(table: RowTable, host: HostBuffer) -> None:
    if host.values.dtype != table.torch_dtype or host.values.shape[1:] != (table.dim,):
        raise ConfigError(
            f"host_buffer must hold rows of {table.dim} {table.dtype} as {table.name} does "
            f"(got {tuple(host.values.shape[1:])} {host.values.dtype})"
        )


def _as_bytes(tensor: Tensor) -> NDArray[np.uint8]:
    flat = tensor.view(-1).view(torch.uint8) if tensor.numel() else torch.empty(0, dtype=torch.uint8)
    return flat.numpy()
