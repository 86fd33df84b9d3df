"""Executes plans: reads a group's rows, gathers batches out of cache, host buffer and group, fills the cache."""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gids._native import DType, ThreadPool, admit_rows, gather_rows
from gids.errors import ConfigError, GidsError
from gids.table import DTYPES, RowTable
from gids.tiers.host_buffer import HostBuffer, PendingRows, RowSource
from gids.tiers.plan import Counters, GroupPlan, Planner
from gids.tiers.policies import Policy
from gids.units import format_bytes

_NATIVE_DTYPES = {torch_dtype: DType[name] for name, torch_dtype in DTYPES.items()}


class PendingGroup:
    """A group whose rows are on their way. Made by :meth:`FeatureStore.start`."""

    def __init__(self, plan: GroupPlan, buffer: Tensor, read: PendingRows | None):
        self.plan = plan
        self.buffer = buffer  # [u, dim], row i is plan.disk_rows[i]
        self.next_batch = 0
        self._read = read

    def wait(self) -> None:
        """Return when every row of the group has arrived; raise the error of the read."""
        if self._read is not None:
            self._read.wait()
            self._read = None

    def cancel(self) -> None:
        """Read no more: :meth:`wait` raises unless all rows had arrived. From any thread; returns when it has ended."""
        read = self._read
        if read is not None:
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
    group_bytes : int, optional
        Limit for the rows of all groups between :meth:`start` and their last :meth:`gather`. None is no limit.
    seed : int
        For policies that draw.
    pool : ThreadPool, optional
        Threads for planning and copying.
    allocate : callable, optional
        ``allocate(rows, dim, dtype)`` gives memory for a group's rows; by default fresh pages.

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
        group_bytes: int | None = None,
        seed: int = 0,
        pool: ThreadPool | None = None,
        allocate: Callable[[int, int, torch.dtype], Tensor] | None = None,
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
            seed=seed,
            pool=self.pool,
        )
        self.host_buffer = host_buffer
        self.cache = torch.empty(self.planner.capacity, table.dim, dtype=table.torch_dtype)
        self.group_bytes = group_bytes
        self.counters = Counters()  # of the batches gathered
        self._cache_bytes = _as_bytes(self.cache)
        self._host_bytes = _as_bytes(torch.empty(0) if host_buffer is None else host_buffer.values)
        self._room = threading.Condition()
        self._in_flight_bytes = 0  # guarded by _room
        self._expected = (0, 0)  # (group number, batch) that must be gathered next

    def plan_group(self, batches: list[Tensor], lookahead: list[Tensor] | tuple[Tensor, ...] = ()) -> GroupPlan:
        """Plan the next group; see :meth:`gids.tiers.plan.Planner.plan_group`."""
        return self.planner.plan_group(batches, lookahead)

    def bytes_of(self, plan: GroupPlan) -> int:
        """Bytes that the group's rows take between :meth:`start` and the last :meth:`gather`."""
        return len(plan.disk_rows) * self.table.row_bytes

    def wait_for_room(self, plan: GroupPlan, timeout_s: float) -> bool:
        """Wait until :meth:`start` has room for the group; False if ``timeout_s`` passed first."""
        with self._room:
            return self._room.wait_for(lambda: self._fits(plan), timeout_s)

    def start(self, plan: GroupPlan) -> PendingGroup:
        """Begin to read the group's rows into a buffer of their own."""
        self._check_generation(plan)
        with self._room:
            if not self._fits(plan):
                raise ConfigError(
                    f"group_bytes of {self.table.name} must be at least "
                    f"{format_bytes(self._in_flight_bytes + self.bytes_of(plan))} for the groups in flight "
                    f"(got {format_bytes(self.group_bytes or 0)})"
                )
            self._in_flight_bytes += self.bytes_of(plan)
        try:
            buffer = self._allocate(len(plan.disk_rows), self.table.dim, self.table.torch_dtype)
            read = self._reader.submit(plan.disk_rows, buffer) if len(plan.disk_rows) else None
        except BaseException:
            self._release(plan)
            raise
        return PendingGroup(plan, buffer, read)

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
        batch = plan.batches[i]
        out = self._checked_out(out, len(batch.location), dtype)
        gather_rows(
            self.pool,
            self._cache_bytes,
            self._host_bytes,
            _as_bytes(pending.buffer),
            batch.location.numpy(),
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
                _as_bytes(pending.buffer),
                batch.admit_positions.numpy(),
                self.table.row_bytes,
            )
        self.counters += batch.counters
        pending.next_batch = i + 1
        if pending.finished:
            self._expected = (plan.number + 1, 0)
            pending.buffer = torch.empty(0, self.table.dim, dtype=self.table.torch_dtype)
            self._release(plan)
        else:
            self._expected = (plan.number, i + 1)
        return out

    def reset(self) -> None:
        """Empty the cache. Needed after a failed or abandoned group: plans made before are void.

        Reads still under way must be waited for or cancelled by whoever holds their :class:`PendingGroup`.
        """
        self.planner.reset()
        self._expected = (0, 0)
        with self._room:
            self._in_flight_bytes = 0
            self._room.notify_all()

    @property
    def nbytes(self) -> int:
        """Bytes of cache, lookup structures and groups in flight; the host buffer counts for itself."""
        return self.cache.nbytes + self.planner.memory_bytes + self._in_flight_bytes

    def _fits(self, plan: GroupPlan) -> bool:
        return self.group_bytes is None or self._in_flight_bytes + self.bytes_of(plan) <= self.group_bytes

    def _release(self, plan: GroupPlan) -> None:
        with self._room:
            self._in_flight_bytes -= self.bytes_of(plan)
            self._room.notify_all()

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
