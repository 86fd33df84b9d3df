"""Carries out a division of the budget: writes it into the ledger and opens the stores of every table by it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gids.budget import Division
from gids.budget.parts import HELD_BY_CONSUMER
from gids.budget.spill import ANY_ACCESSES
from gids.runtime.backend import Backend, StoreSetup
from gids.runtime.divider import Divider
from gids.runtime.options import RuntimeOptions, SpillOptions, optional_bytes
from gids.runtime.peers import Peers
from gids.runtime.preparation import without_host
from gids.runtime.tiers import Tiers
from gids.tiers import AccessModel, Accumulator, HostBuffer, Store
from gids.tiers.spill import SpillSetup
from gids.types import TableKey


class TierOpener:
    """Opens the stores of a run, and others in their place while it goes on.

    Parameters
    ----------
    backend : Backend
        Where.
    options : RuntimeOptions
        What the user chose.
    divider : Divider
        Knows the tables, their drives, and the pace.
    peers : Peers, optional
        Who holds the rows that this machine does not.

    Attributes
    ----------
    division : Division or None
        The one that holds.
    """

    def __init__(self, backend: Backend, options: RuntimeOptions, divider: Divider, peers: Peers | None = None):
        self._backend, self._options, self._divider, self._peers = backend, options, divider, peers
        self.division: Division | None = None
        self._retired: dict[TableKey, dict[str, int]] = {}  # counts of stores that were replaced

    def allot(self, division: Division) -> None:
        """Write a division into the ledger: limits of every part, and what stands already."""
        self.division = division
        ledger = self._backend.ledger
        for part, size_bytes in division.allotment.parts.items():
            ledger.account(part, size_bytes)
        for part in ("topology", "labels", "staging", "embeddings"):
            account = ledger.account(part)
            account.take(division.allotment.parts[part] - account.used)

    def open(
        self,
        division: Division,
        hosts: Mapping[TableKey, HostBuffer],
        popularity: Mapping[TableKey, NDArray[np.uint8]],
    ) -> Tiers:
        """Open every table by a division, with host buffers and popularity where they are known."""
        group_bytes = max(1, sum(share.group_bytes for share in division.shares.values()))
        tables, pace = self._divider.tables, self._divider.pace
        held_groups = pace.held_batches(division.sweep_groups) if pace.sweeps else division.groups_in_flight
        limits: dict[TableKey, tuple[int, int | None]] = {
            key: (table.row_bytes, int(division.shares[key].group_bytes / held_groups)) for key, table in tables.items()
        }
        accumulator = Accumulator(
            AccessModel.from_curve(self._divider.curve, self._divider.drives),
            limits,
            accesses=self._options.pipeline.accesses if division.spill is None else ANY_ACCESSES,
            max_batches=max(1, division.group_batches),
        )
        stores: dict[TableKey, Store[Any, Any, Any]] = {}
        opened = Tiers(
            stores,
            accumulator,
            division.window,
            division.group_batches,
            division.sweep_groups,
            division.groups_in_flight,
            division.prefetch,
            self._divider.spill_directory if division.spill is None else self._divider.row_spill_directory,
            division.spill is not None,
            division.window_map_bytes,
        )
        try:
            for key, table in tables.items():
                setup = StoreSetup(
                    division.shares[key],
                    max(1, division.allotment.staging * division.shares[key].group_bytes // group_bytes),
                    division.window,
                    division.sweep_groups,
                    division.groups_in_flight,
                    division.prefetch + HELD_BY_CONSUMER,
                    self._options.memory.policy,
                    hosts.get(key),
                    popularity.get(key),
                    spill=self._spill(division, division.shares[key].group_bytes / group_bytes),
                )
                stores[key] = self._backend.open_store(table, replace(setup, peers=self._peers))
        except BaseException:
            opened.close()
            raise
        return opened

    def _spill(self, division: Division, share: float) -> SpillSetup | None:
        """Return how a table that gets so much of the memory for rows is spilled."""
        plan, asked = division.spill, self._options.spill
        if plan is None or not isinstance(asked, SpillOptions):
            return None
        most = optional_bytes(asked.most_written, "most_written")
        return SpillSetup(
            self._divider.row_spill_directory,
            int(plan.disk_bytes * share),
            plan.fewest_batches,
            plan.buffer_bytes,
            None if most is None else int(most * share),
            plan.block_bytes,
        )

    def replace(
        self,
        old: Tiers,
        division: Division,
        hosts: Mapping[TableKey, HostBuffer],
        popularity: Mapping[TableKey, NDArray[np.uint8]],
    ) -> Tiers:
        """Close stores and open others in their place, by another division; what they counted is kept."""
        for key, store in old.stores.items():
            total = self._retired.setdefault(key, {})
            for name, value in store.counts().items():
                total[name] = total.get(name, 0) + value
        old.close()
        self.allot(division)
        return self.open(division if hosts else without_host(division), hosts, popularity)

    @staticmethod
    def can_add_hosts(division: Division) -> bool:
        """Whether stores that were opened without their host buffers can be given them, as long as they are open."""
        # A cache would go on holding the same rows, and what is spilled would have them too.
        return division.spill is None and not any(share.cache_rows for share in division.shares.values())

    @staticmethod
    def add_hosts(tiers: Tiers, hosts: Mapping[TableKey, HostBuffer]) -> None:
        """Add the host buffers that were filled meanwhile to open stores."""
        for key, host in hosts.items():
            tiers.stores[key].add_host_buffer(host)

    def retired_counts(self, key: TableKey) -> Mapping[str, int]:
        """Return what stores of a table counted that were replaced."""
        return self._retired.get(key, {})
