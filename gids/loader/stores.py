"""Puts the stores of gids.tiers behind the pipeline: one per table, sharing one budget, one pool, one way to close."""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from gids._native import ThreadPool
from gids.loader.buffers import BufferPool
from gids.loader.grouping import BudgetGroups
from gids.loader.memory import Allotment, TableDemand
from gids.loader.shared import SharedTensor
from gids.storage import RowReader, StorageOptions
from gids.table import RowTable
from gids.tiers import FeatureStore, GroupPlan, HostBuffer, HostRows, PendingGroup, Policy


@dataclass
class TableStore:
    """Rows of one table for the pipeline.

    Attributes
    ----------
    key : hashable
        Name of the table in the pipeline.
    store : FeatureStore
        Cache, host buffer and groups.
    reader : RowReader
        What ``store`` reads from; closed with this.
    dtype : torch.dtype
        Of the rows in a batch.
    group_bytes : int
        Memory for the rows of all groups in flight.
    outputs : BufferPool
        Where batches are delivered.
    groups : BudgetGroups
        Learns from every plan.
    recorded : list of Tensor, optional
        Takes the rows of every batch planned, for the comparison with the best possible cache.
    shared : SharedTensor, optional
        Memory of the host buffer's rows.
    """

    key: Hashable
    store: FeatureStore
    reader: RowReader
    dtype: torch.dtype
    group_bytes: int
    outputs: BufferPool
    groups: BudgetGroups
    recorded: list[Tensor] | None = None
    shared: SharedTensor | None = None

    def plan(self, batches: list[Tensor], lookahead: list[Tensor]) -> GroupPlan:
        """Plan a group; moves no bytes."""
        plan = self.store.plan_group(batches, lookahead)
        counters = plan.counters
        self.groups.learn(self.key, counters.requests, counters.disk)
        if self.recorded is not None:
            self.recorded.extend(batches)
        return plan

    def begin(self, plan: GroupPlan) -> PendingGroup:
        """Prepare to read a group."""
        return self.store.begin(plan)

    def pieces(self, pending: PendingGroup) -> list[int]:
        """Memory that each piece of the group takes."""
        return [(last - first) * self.store.table.row_bytes for first, last in pending.pieces]

    def read(self, pending: PendingGroup) -> None:
        """Begin to read the next piece of a group."""
        self.store.read(pending)

    def gather(self, pending: PendingGroup, batch: int) -> Tensor:
        """Give the rows of one batch; waits for the disk."""
        rows = len(pending.plan.batches[batch].location)
        return self.store.gather(pending, batch, self.outputs.empty(rows, self.store.table.dim, self.dtype))

    def freed(self, pending: PendingGroup, batch: int) -> int:
        """Memory that is free now that a batch was gathered."""
        return pending.freed_rows(batch) * self.store.table.row_bytes

    def reset(self) -> None:
        """Forget plans that were not gathered."""
        self.store.reset()
        self.groups.forget(self.key)

    def close(self) -> None:
        """Give files and memory back."""
        self.reader.close()
        self.outputs.clear()
        if self.shared is not None:
            self.shared.close()


@dataclass
class TableSet:
    """The stores of several tables.

    Attributes
    ----------
    stores : dict of table key to TableStore
        For :class:`gids.loader.Pipeline`.
    grouping : BudgetGroups
        Likewise.
    """

    stores: dict[Hashable, TableStore]
    grouping: BudgetGroups

    def close(self) -> None:
        """Close every reader and give the memory back."""
        with ExitStack() as stack:  # all are closed, whichever fails
            for store in self.stores.values():
                stack.callback(store.close)


def open_tables(
    tables: Mapping[Hashable, RowTable],
    demand: Mapping[Hashable, TableDemand],
    allotment: Allotment,
    *,
    storage: StorageOptions,
    policy: str | Policy,
    window: int,
    groups_in_flight: int,
    keep_outputs: int,
    seed: int,
    pool: ThreadPool,
    dtype: torch.dtype | None = None,
    host_rows: Mapping[Hashable, Tensor] | None = None,
    record: bool = False,
) -> TableSet:
    """Open tables under one budget, each with a share by the bytes that a batch asks of it.

    Parameters
    ----------
    tables, demand : mapping of table key to RowTable, TableDemand
        What to open and how much a batch wants of it.
    allotment : Allotment
        From :func:`gids.loader.memory.allot`.
    storage, policy, window, groups_in_flight, seed, pool
        As in :class:`gids.Loader`. ``storage.staging_bytes`` is for all tables together.
    keep_outputs : int
        Delivered batches whose memory is kept for use again.
    dtype : torch.dtype, optional
        Of floating point rows in a batch.
    host_rows : mapping of table key to Tensor[int64], optional
        Rows for a constant host buffer, in memory that all processes of this machine share.
    record : bool
        Keep the rows of every batch, for the comparison with the best possible cache.
    """
    weight = {key: max(1, need.rows * need.row_bytes) for key, need in demand.items()}
    total = sum(weight.values())
    limits = {key: allotment.groups * weight[key] // total for key in tables}
    grouping = BudgetGroups({key: (tables[key].row_bytes, limits[key]) for key in tables})
    stores: dict[Hashable, TableStore] = {}
    opened = TableSet(stores, grouping)
    try:
        for key, table in tables.items():
            share = weight[key] / total
            options = split_staging(storage, share)
            reader = RowReader(table, options, pool)
            slot_bytes = table.row_bytes + demand[key].slot_overhead_bytes
            cache_rows = min(int(allotment.cache * share) // slot_bytes, table.num_rows)
            host, shared = share_rows(table, reader, (host_rows or {}).get(key))
            store = FeatureStore(
                table,
                reader,
                cache_rows=cache_rows,
                policy=policy,
                window=window,
                host_buffer=host,
                seed=seed,
                pool=pool,
                arena_rows=max(1, limits[key] // table.row_bytes),
            )
            out_dtype = dtype if dtype is not None and table.torch_dtype.is_floating_point else table.torch_dtype
            stores[key] = TableStore(
                key,
                store,
                reader,
                out_dtype,
                limits[key],
                BufferPool(keep_outputs),
                grouping,
                [] if record else None,
                shared,
            )
    except BaseException:
        opened.close()
        raise
    return opened


def split_staging(storage: StorageOptions, share: float) -> StorageOptions:
    """Give a table its share of the staging memory, enough for a few requests in any case."""
    least = 4 * storage.max_io_bytes * (storage.threads or 1)
    return replace(storage, staging_bytes=max(least, int(storage.staging_bytes * share)))


def share_rows(
    table: RowTable, reader: RowReader, rows: Tensor | None
) -> tuple[HostBuffer | None, SharedTensor | None]:
    """Put rows of a table in memory that every process of this machine that asks for the same rows maps."""
    if rows is None or not len(rows):
        return None, None
    rows = rows.sort().values
    which = hashlib.sha256(rows.numpy().tobytes())
    for stripe in table.stripes:
        status = stripe.path.stat()
        which.update(f"{stripe} {status.st_ino} {status.st_size} {status.st_mtime_ns}".encode())

    def fill(values: Tensor) -> None:
        reader.submit(rows, values).wait()

    shared = SharedTensor(which.hexdigest(), (len(rows), table.dim), table.torch_dtype, fill)
    return HostBuffer(HostRows(rows), shared.tensor), shared
