"""What the machine gives this process: memory, and the limits that cgroups set to it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

_ROOT = Path("/")


class _Version(NamedTuple):
    """Where a version of cgroups keeps what."""

    mount: str
    limit: str
    used: str  # a field of memory.stat: memory that cannot be dropped


_V1 = _Version("sys/fs/cgroup/memory", "memory.limit_in_bytes", "total_rss")
_V2 = _Version("sys/fs/cgroup", "memory.max", "anon")
_UNLIMITED = 1 << 60


def memory_limits(root: Path = _ROOT) -> Iterator[tuple[int, int]]:
    """Yield (limit, used) in bytes for every cgroup, of version 1 or 2, that holds this process and has a limit.

    A limit of a group is one of its descendants too. Inside a container the group's own path may not be visible: what is
    mounted is then looked at from the top.
    """
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, name = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        version = _V1 if controllers else _V2
        group = Path(name.lstrip("/"))
        for folder in (group, *group.parents) if str(group) != "." else (group,):
            place = root / version.mount / folder
            with suppress(OSError, ValueError):
                limit = int((place / version.limit).read_text())
                if limit < _UNLIMITED:
                    yield limit, _stat(place, version.used)


def _stat(group: Path, name: str) -> int:
    with suppress(OSError, ValueError):
        for line in (group / "memory.stat").read_text().splitlines():
            key, value = line.split()
            if key == name:
                return int(value)
    return 0


def memory_limit_bytes(root: Path = _ROOT) -> int | None:
    """Return the smallest limit that a cgroup sets to this process, or None where there is none."""
    return min((limit for limit, _ in memory_limits(root)), default=None)


def available_bytes(root: Path = _ROOT) -> int:
    """Return the memory that this process could still take: the machine's, or what a cgroup leaves where that is less."""
    try:
        fields = dict(line.split(":", 1) for line in (root / "proc/meminfo").read_text().splitlines())
        free = int(fields["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError, IndexError):  # a container may hide it
        free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min([free, *(max(limit - used, 0) for limit, used in memory_limits(root))])
