"""Puts a FeatureStore of gids.tiers behind the pipeline's Store: conversion, output buffers and what it learned."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

import torch
from torch import Tensor

from gids.loader.buffers import BufferPool
from gids.loader.grouping import BudgetGroups
from gids.storage import RowReader
from gids.tiers import FeatureStore, GroupPlan, PendingGroup


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
    groups : BudgetGroups, optional
        Learns from every plan.
    recorded : list of Tensor, optional
        Takes the rows of every batch planned, for the comparison with the best possible cache.
    """

    key: Hashable
    store: FeatureStore
    reader: RowReader
    dtype: torch.dtype
    group_bytes: int
    outputs: BufferPool
    groups: BudgetGroups | None = None
    recorded: list[Tensor] | None = None

    def plan(self, batches: list[Tensor], lookahead: list[Tensor]) -> GroupPlan:
        """Plan a group; moves no bytes."""
        plan = self.store.plan_group(batches, lookahead)
        if self.groups is not None:
            counters = plan.counters
            self.groups.learn(self.key, counters.requests, counters.disk)
        if self.recorded is not None:
            self.recorded.extend(batches)
        return plan

    def bytes_of(self, plan: GroupPlan) -> int:
        """Memory that the group's rows take."""
        return self.store.bytes_of(plan)

    def start(self, plan: GroupPlan) -> PendingGroup:
        """Begin to read a group."""
        return self.store.start(plan)

    def gather(self, pending: PendingGroup, batch: int) -> Tensor:
        """Give the rows of one batch; waits for the disk."""
        rows = len(pending.plan.batches[batch].location)
        return self.store.gather(pending, batch, self.outputs.empty(rows, self.store.table.dim, self.dtype))

    def reset(self) -> None:
        """Forget plans that were not gathered."""
        self.store.reset()

    def close(self) -> None:
        """Give files and memory back."""
        self.reader.close()
        self.outputs.clear()
