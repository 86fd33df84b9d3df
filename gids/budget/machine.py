"""How much memory a loader takes where nobody says: its share of what the machine gives, beside the other ranks."""

from __future__ import annotations

import os

from gids.machine import available_bytes


def default_budget() -> int:
    """Return half of what is available, shared by the ranks on this machine; rounded, so that they agree on it."""
    return max(available_bytes() // (2 * local_processes()) >> 26 << 26, 1 << 26)


def local_processes() -> int:
    """Return the number of ranks that torchrun started on this machine."""
    return max(1, int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
