"""Policy ``random``: ranking in ``kernels/policy_random.cuh``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from gids._native import PolicyKind
from gids.tiers.policies.base import Policy


@dataclass(frozen=True)
class Random(Policy):
    """Every row read enters, over a slot drawn at random (BaM). A baseline."""

    name: ClassVar[str] = "random"
    kind: ClassVar[PolicyKind] = PolicyKind.RANDOM
