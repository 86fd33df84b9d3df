"""The plan of a group of batches: where every row comes from, what is read once, what the cache takes in."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gids._native import CachePlanner, ThreadPool
from gids.errors import ConfigError
from gids.tiers.host_buffer import HostRows
from gids.tiers.policies import Policy, parse_policy


class Source(enum.Enum):
    """Where the bytes of a requested row come from."""

    CACHE = "cache"
    HOST = "host"
    DISK = "disk"


@dataclass(frozen=True)
class Counters:
    """Rows by source; ``requests == cache + host + disk + duplicates``.

    ``duplicates`` are rows that an earlier batch of the same group already reads from disk.
    """

    requests: int = 0
    cache: int = 0
    host: int = 0
    disk: int = 0
    duplicates: int = 0

    def __add__(self, other: Counters) -> Counters:
        return Counters(
            self.requests + other.requests,
            self.cache + other.cache,
            self.host + other.host,
            self.disk + other.disk,
            self.duplicates + other.duplicates,
        )

    @property
    def redirected_share(self) -> float:
        """Share of the requests that did not become disk reads."""
        return 1 - self.disk / self.requests if self.requests else 0.0

    @property
    def hit_ratio(self) -> float:
        """Share of the requests that the cache served."""
        return self.cache / self.requests if self.requests else 0.0


@dataclass(frozen=True)
class BatchPlan:
    """One batch of a group.

    Attributes
    ----------
    location : Tensor
        int64[n], one address per row: ``[0, C)`` cache slots, ``[C, C+H)`` host buffer slots, ``[C+H, ...)`` positions
        in the group's ``disk_rows``.
    admit_positions, admit_slots : Tensor
        int64[k]: after this batch is gathered, row ``admit_positions[j]`` of the group's buffer goes to cache slot
        ``admit_slots[j]``.
    counters : Counters
        Rows of this batch by source.
    """

    location: Tensor
    admit_positions: Tensor
    admit_slots: Tensor
    counters: Counters


@dataclass(frozen=True)
class GroupPlan:
    """A group of batches whose rows are read from disk once.

    Attributes
    ----------
    disk_rows : Tensor
        int64[u], sorted, unique.
    batches : tuple of BatchPlan
        In the order in which they must be gathered.
    number : int
        Groups of one planner are executed in this order.
    generation : int
        Resets that the planner had seen; a plan of an older generation is void.
    capacity, host_rows : int
        C and H of the address space.
    """

    disk_rows: Tensor
    batches: tuple[BatchPlan, ...]
    number: int
    generation: int
    capacity: int
    host_rows: int

    @property
    def counters(self) -> Counters:
        """Rows of the whole group by source."""
        return sum((batch.counters for batch in self.batches), Counters())

    def sources(self, batch: int) -> list[Source]:
        """Tell the source of every row of a batch (rows that repeat within the group count as DISK)."""
        edges = torch.tensor([self.capacity, self.capacity + self.host_rows])
        kinds = torch.bucketize(self.batches[batch].location, edges, right=True).tolist()
        return [(Source.CACHE, Source.HOST, Source.DISK)[kind] for kind in kinds]


class Planner:
    """Plans groups of batches for one table. Moves no bytes; the same calls give the same plans.

    Parameters
    ----------
    num_rows : int
        Rows of the table.
    capacity : int
        Cache slots; 0 is no cache.
    policy : str or Policy
        See :func:`gids.tiers.policies.parse_policy`.
    host : HostRows, optional
        Rows that the host buffer serves.
    popularity : uint8[num_rows], optional
        What :func:`gids.tiers.popularity_levels` makes of a ranking: ``window`` then keeps the popular ones of the rows
        that its window does not need, instead of those used most while they were cached.
    seed : int
        For the policies that draw.
    pool : ThreadPool, optional
        Threads to plan on.
    """

    def __init__(
        self,
        num_rows: int,
        capacity: int,
        policy: str | Policy = "window",
        *,
        window: int | None = None,
        host: HostRows | None = None,
        popularity: NDArray[np.uint8] | None = None,
        seed: int = 0,
        pool: ThreadPool | None = None,
    ):
        self.policy = parse_policy(policy, window)
        self.num_rows = num_rows
        self.capacity = min(capacity, num_rows)
        self.host_rows = 0
        self._pool = pool or ThreadPool(torch.get_num_threads(), "gids-plan")
        self._native = CachePlanner(self.capacity, num_rows, self.policy.kind, seed)
        if host is not None:
            self._set_host(host)
        if popularity is not None:
            self._native.set_popularity(popularity)
        self._popularity_bytes = 0 if popularity is None else popularity.nbytes
        self._observed: list[Tensor] = []  # batches in the window, not yet planned
        self._number = 0
        self._generation = 0

    def _set_host(self, host: HostRows) -> None:
        if len(host):
            self._native.set_host(host.entries.numpy(), len(host))
        self.host_rows = len(host)

    def add_host(self, host: HostRows) -> None:
        """Leave rows to a host buffer in the plans made from now on; of a planner that has none, and no cache."""
        check_host_can_be_added(self.capacity, self.host_rows)
        self._set_host(host)

    @property
    def generation(self) -> int:
        """Resets so far."""
        return self._generation

    @property
    def memory_bytes(self) -> int:
        """Bytes of the lookup structures and popularity (host buffer's map excluded)."""
        return self._native.memory_bytes + self._popularity_bytes

    def resident_rows(self) -> Tensor:
        """Return int64[C]: the row that each cache slot will hold once all planned groups are executed, -1 if free."""
        return torch.from_numpy(self._native.resident_rows())

    def reset(self) -> None:
        """Empty the cache and forget the window; plans made before are void."""
        self._native.reset()
        self._observed = []
        self._number = 0
        self._generation += 1

    def plan_group(self, batches: Sequence[Tensor], lookahead: Sequence[Tensor] = ()) -> GroupPlan:
        """Plan the next group.

        Parameters
        ----------
        batches : sequence of Tensor
            int64 rows of each batch, unique within it. Tensors must not change while they are in the window.
        lookahead : sequence of Tensor
            Batches that follow the group, nearest first; the policy takes as many as it looks ahead. Passing the same
            tensor objects again as they come nearer costs nothing: a batch is looked at once.
        """
        rows = [_checked(batch) for batch in batches]
        if self._native.looks_ahead:
            self._observe([*batches, *lookahead[: self.policy.ahead]])
        locations = [torch.empty_like(batch) for batch in rows]
        try:
            disk, position, slot, begins, counters = self._native.plan(
                self._pool, [batch.numpy() for batch in rows], [location.numpy() for location in locations]
            )
        except ConfigError:
            self._forget_window()
            raise
        self._observed = self._observed[len(batches) :]
        positions, slots = torch.from_numpy(position), torch.from_numpy(slot)
        planned = tuple(
            BatchPlan(
                location, positions[begins[b] : begins[b + 1]], slots[begins[b] : begins[b + 1]], Counters(*counts)
            )
            for b, (location, counts) in enumerate(zip(locations, counters, strict=True))
        )
        plan = GroupPlan(torch.from_numpy(disk), planned, self._number, self._generation, self.capacity, self.host_rows)
        self._number += 1 if planned else 0  # there is nothing to gather of an empty group
        return plan

    def _observe(self, future: list[Tensor]) -> None:
        known = len(self._observed)
        if known > len(future) or any(a is not b for a, b in zip(self._observed, future, strict=False)):
            self._forget_window()  # not the future that was announced
            known = 0
        try:
            for batch in future[known:]:
                self._native.observe(self._pool, _checked(batch).numpy())
                self._observed.append(batch)
        except ConfigError:
            self._forget_window()
            raise

    def _forget_window(self) -> None:
        self._native.forget_window()
        self._observed = []


def check_host_can_be_added(capacity: int, host_rows: int) -> None:
    """Refuse a host buffer that would not be the only one, or whose rows a cache may hold already."""
    if capacity or host_rows:
        raise ConfigError(
            "a host buffer can be added only where there is neither a cache nor another one "
            f"(got {capacity} cached rows, {host_rows} hosted rows)"
        )


def _checked(rows: Tensor) -> Tensor:
    if rows.dtype != torch.int64 or rows.dim() != 1 or rows.device.type != "cpu":
        raise ConfigError(
            f"rows of a batch must be a 1-dimensional int64 tensor on the CPU (got {rows.dtype}, {tuple(rows.shape)}, {rows.device})"
        )
    return rows.contiguous()
