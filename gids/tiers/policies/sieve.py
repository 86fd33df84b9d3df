"""Policy ``sieve``: ranking in ``kernels/policy_sieve.cuh``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from gids._native import PolicyKind
from gids.tiers.policies.base import Policy


@dataclass(frozen=True)
class Sieve(Policy):
    """A hand sweeps from the oldest row and takes those not used since its last pass (GraphBolt's default). A baseline."""

    name: ClassVar[str] = "sieve"
    kind: ClassVar[PolicyKind] = PolicyKind.SIEVE
