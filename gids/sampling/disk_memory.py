"""How the memory of an on-disk topology is divided: what moves bytes first, lists with the rest."""

from __future__ import annotations

from dataclasses import dataclass

from gids.errors import ConfigError
from gids.machine import available_bytes
from gids.units import format_bytes

#: Staging and reading of one table work with this little.
LEAST_STAGING_BYTES = 256 << 10
LEAST_GROUP_BYTES = 1 << 20
#: Beyond these, more brings nothing: the device is busy, and sweeps serve several batches.
MOST_STAGING_BYTES = 16 << 20
MOST_GROUP_BYTES = 96 << 20
#: Of free memory, what is left to samples and what makes them, at least.
SAMPLES_BYTES = 160 << 20
#: Shares of what is left for lists. Hot lists know the whole graph, so they get most; the cache learns what this run
#: asks for beside it.
CACHE_SHARE = 8
#: Of a figure, what threads, rings and plans take of the process beside the parts: at most so much, and this share.
UNSEEN_BYTES, UNSEEN_SHARE = 2 << 20, 32


@dataclass(frozen=True)
class DiskMemory:
    """Memory of an on-disk topology, in bytes, over all its tables; offsets are needed beside it.

    Attributes
    ----------
    hot_bytes : int
        Neighbour lists chosen at the opening, by reads saved per byte.
    cache_bytes : int
        Pieces of lists that were read lately.
    group_bytes : int
        Pieces that are being read, for batches that share the reads.
    staging_bytes : int
        What the device writes to.
    """

    hot_bytes: int = 0
    cache_bytes: int = 0
    group_bytes: int = LEAST_GROUP_BYTES
    staging_bytes: int = LEAST_STAGING_BYTES

    @property
    def total(self) -> int:
        """Sum of the parts."""
        return self.hot_bytes + self.cache_bytes + self.group_bytes + self.staging_bytes


def divide(budget_bytes: int, offsets_bytes: int, readers: int, lists_bytes: int) -> DiskMemory:
    """Divide what a topology may add to the process.

    Parameters
    ----------
    budget_bytes : int
        All of it; 0 stands for the least that works.
    offsets_bytes : int
        Packed offsets, which are in memory in any case.
    readers : int
        Tables that are read.
    lists_bytes : int
        Memory of all lists, were they all hot; more would be of no use.
    """
    least = DiskMemory(group_bytes=readers * LEAST_GROUP_BYTES, staging_bytes=readers * LEAST_STAGING_BYTES)
    if budget_bytes == 0:
        return least
    free = budget_bytes - offsets_bytes
    if free < least.total:
        needed = offsets_bytes + least.total
        raise ConfigError(
            f"budget of a topology on disk must be 0 or at least {needed} bytes ({format_bytes(needed)}): offsets "
            f"{format_bytes(offsets_bytes)}, reading {format_bytes(least.total)} (got {budget_bytes})"
        )
    staging = min(max(free // 8, least.staging_bytes), readers * MOST_STAGING_BYTES)
    groups = min(max(free // 3, least.group_bytes), max(readers * LEAST_GROUP_BYTES, MOST_GROUP_BYTES))
    lists = max(free - staging - groups - min(free // UNSEEN_SHARE, UNSEEN_BYTES), 0)
    if lists >= lists_bytes:
        return DiskMemory(lists_bytes, 0, groups, staging)
    return DiskMemory(lists - lists // CACHE_SHARE, lists // CACHE_SHARE, groups, staging)


def reading_memory(budget_bytes: int) -> DiskMemory:
    """Divide what is for reading alone: lists come later, when somebody has found out what they are worth."""
    least = DiskMemory()
    staging = min(max(budget_bytes // 4, least.staging_bytes), MOST_STAGING_BYTES)
    groups = min(max(budget_bytes // 2, least.group_bytes), MOST_GROUP_BYTES)
    return DiskMemory(0, max(budget_bytes - staging - groups, 0), groups, staging)


def default_topology_bytes() -> int:
    """Return the memory of a graph that nobody gave a figure for: what is free, less what samples are made in."""
    free = available_bytes()
    return max(free - max(free // 4, SAMPLES_BYTES), 0)
