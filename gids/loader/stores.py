"""Puts the stores of gids.tiers behind the pipeline: one per table, sharing one budget, one pool, one way to close."""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gids._native import ThreadPool
from gids.loader.buffers import BufferPool
from gids.loader.grouping import AccumulatedGroups
from gids.loader.memory import TableDemand, held_batches
from gids.loader.shared import SharedTensor
from gids.storage import RowReader, StorageOptions, load_curve
from gids.storage.curve import DEFAULT_CURVE
from gids.table import RowTable
from gids.tiers import (
    AccessModel,
    Accumulator,
    FeatureStore,
    GroupPlan,
    HostBuffer,
    HostRows,
    PendingGroup,
    Policy,
    TableShare,
)


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
    groups : AccumulatedGroups
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
    groups: AccumulatedGroups
    recorded: list[Tensor] | None = None
    shared: SharedTensor | None = None

    def plan(self, batches: list[Tensor], lookahead: list[Tensor]) -> GroupPlan:
        """Plan a group; moves no bytes."""
        plan = self.store.plan_group(batches, lookahead)
        self.groups.learn(self.key, plan.counters)
        if self.recorded is not None:
            self.recorded.extend(batches)
        return plan

    def fits(self, plan: GroupPlan) -> bool:
        """Whether a group may begin beside those that are not read to their end."""
        return self.store.fits(plan)

    def begin(self, plan: GroupPlan) -> PendingGroup:
        """Let a group take part in the next steps."""
        return self.store.begin(plan)

    def step_bytes(self) -> int:
        """Memory that the next step takes."""
        return self.store.step_bytes()

    def step(self) -> None:
        """Begin to read the next part of the table for all groups."""
        self.store.step()

    def underway(self, pending: PendingGroup) -> bool:
        """Whether every read of a group has begun."""
        return pending.underway

    def gather(self, pending: PendingGroup, batch: int) -> Tensor:
        """Give the rows of one batch; waits for the disk."""
        rows = len(pending.plan.batches[batch].location)
        return self.store.gather(pending, batch, self.outputs.empty(rows, self.store.table.dim, self.dtype))

    def freed(self, pending: PendingGroup) -> int:
        """Memory that the last batch of a group gave back."""
        return pending.freed_rows * self.store.table.row_bytes

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
    grouping : AccumulatedGroups
        Likewise.
    """

    stores: dict[Hashable, TableStore]
    grouping: AccumulatedGroups

    def close(self) -> None:
        """Close every reader and give the memory back."""
        with ExitStack() as stack:  # all are closed, whichever fails
            for store in self.stores.values():
                stack.callback(store.close)


def open_tables(
    tables: Mapping[Hashable, RowTable],
    demand: Mapping[Hashable, TableDemand],
    shares: Mapping[Hashable, TableShare],
    *,
    storage: StorageOptions,
    policy: str | Policy,
    window: int,
    max_group: int,
    rotation: int,
    keep_outputs: int,
    seed: int,
    pool: ThreadPool,
    dtype: torch.dtype | None = None,
    host_rows: Mapping[Hashable, Tensor] | None = None,
    popularity: Mapping[Hashable, NDArray[np.uint8]] | None = None,
    profiled: Mapping[Hashable, list[Tensor]] | None = None,
    record: bool = False,
) -> TableSet:
    """Open tables under one budget.

    Parameters
    ----------
    tables, demand : mapping of table key to RowTable, TableDemand
        What to open and how much a batch wants of it.
    shares : mapping of table key to TableShare
        From :mod:`gids.loader.dividing`.
    storage, policy, window, max_group, seed, pool
        As in :class:`gids.Loader`. ``storage.staging_bytes`` is for all tables together.
    rotation : int
        Groups that share each read.
    keep_outputs : int
        Delivered batches whose memory is kept for use again.
    dtype : torch.dtype, optional
        Of floating point rows in a batch.
    host_rows : mapping of table key to Tensor[int64], optional
        Rows for a constant host buffer, in memory that all processes of this machine share.
    popularity : mapping of table key to uint8[rows], optional
        See :class:`gids.tiers.Planner`; of the tables whose cache is to know it.
    profiled : mapping of table key to list of Tensor, optional
        Rows of some batches, to know how much of a batch the host buffer serves before the first one is planned.
    record : bool
        Keep the rows of every batch, for the comparison with the best possible cache.
    """
    hosted = host_rows or {}
    expected = {key: 1 - served_share(hosted.get(key), (profiled or {}).get(key, [])) for key in tables}
    limits: dict[Hashable, tuple[int, int | None]] = {
        key: (table.row_bytes, shares[key].group_bytes // held_batches(rotation)) for key, table in tables.items()
    }
    model = AccessModel.from_curve(load_curve(next(iter(tables.values())).stripes[0].path) if tables else DEFAULT_CURVE)
    grouping = AccumulatedGroups(Accumulator(model, limits, expected=expected, max_batches=max_group))
    weight = {key: max(1, need.rows * need.row_bytes) for key, need in demand.items()}
    total = sum(weight.values())
    stores: dict[Hashable, TableStore] = {}
    opened = TableSet(stores, grouping)
    try:
        for key, table in tables.items():
            reader = RowReader(table, split_staging(storage, weight[key] / total), pool)
            host, shared = share_rows(table, reader, hosted.get(key))
            store = FeatureStore(
                table,
                reader,
                cache_rows=shares[key].cache_rows,
                policy=policy,
                window=window,
                host_buffer=host,
                popularity=(popularity or {}).get(key),
                seed=seed,
                pool=pool,
                arena_rows=max(1, shares[key].group_bytes // table.row_bytes),
                regions=rotation,
            )
            out_dtype = dtype if dtype is not None and table.torch_dtype.is_floating_point else table.torch_dtype
            stores[key] = TableStore(
                key,
                store,
                reader,
                out_dtype,
                shares[key].group_bytes,
                BufferPool(keep_outputs),
                grouping,
                [] if record else None,
                shared,
            )
    except BaseException:
        opened.close()
        raise
    return opened


def served_share(hosted: Tensor | None, batches: list[Tensor]) -> float:
    """Share of the rows of some batches that are among ``hosted``."""
    if hosted is None or not len(hosted) or not batches:
        return 0.0
    rows = torch.cat(batches[:3])
    return float(torch.isin(rows, hosted).double().mean())


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
