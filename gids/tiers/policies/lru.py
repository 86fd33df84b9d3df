"""Policy ``lru``: ranking in ``kernels/policy_lru.cuh``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from gids._native import PolicyKind
from gids.tiers.policies.base import Policy


@dataclass(frozen=True)
class Lru(Policy):
    """The row unused for the most batches goes first (GNNDrive's standby list). A baseline."""

    name: ClassVar[str] = "lru"
    kind: ClassVar[PolicyKind] = PolicyKind.LRU
