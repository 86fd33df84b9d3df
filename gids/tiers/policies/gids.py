"""Policy ``gids(W)``, the paper's: ranking in ``kernels/policy_gids.cuh``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from gids._native import PolicyKind
from gids.tiers.policies.base import WindowedPolicy


@dataclass(frozen=True)
class Gids(WindowedPolicy):
    """Rows that the next ``size`` batches reuse are in USE and stay; a random one of the others makes room."""

    size: int = 8
    name: ClassVar[str] = "gids"
    kind: ClassVar[PolicyKind] = PolicyKind.GIDS
