"""How much memory this process may take: the machine's, its cgroup's, and its share beside the other ranks."""

from __future__ import annotations

import os
from pathlib import Path


def memory_limit_bytes() -> int | None:
    """Return the smallest cgroup limit (v1 or v2) of this process, or None where there is none."""
    limits = []
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        _, controllers, group = line.split(":", 2)
        if controllers == "memory":
            path = Path("/sys/fs/cgroup/memory") / group.lstrip("/") / "memory.limit_in_bytes"
        elif controllers == "":
            path = Path("/sys/fs/cgroup") / group.lstrip("/") / "memory.max"
        else:
            continue
        text = path.read_text().strip() if path.exists() else "max"
        if text != "max" and int(text) < 1 << 60:
            limits.append(int(text))
    return min(limits, default=None)


def available_bytes() -> int:
    """Return the memory that this process could still take: the machine's, or its cgroup's where that is less."""
    try:
        fields = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
        free = int(fields["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):  # a container may hide it
        free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    limit = memory_limit_bytes()
    return free if limit is None else min(free, limit)


def default_budget() -> int:
    """Return half of what is available, shared by the ranks on this machine; rounded, so that they agree on it."""
    return max(available_bytes() // (2 * local_processes()) >> 26 << 26, 1 << 26)


def local_processes() -> int:
    """Return the number of ranks that torchrun started on this machine."""
    return max(1, int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
