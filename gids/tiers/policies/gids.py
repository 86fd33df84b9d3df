"""Policy ``gids(W)``, the paper's: ranking in ``kernels/policy_gids.cuh``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from gids._native import PolicyKind
from gids.errors import ConfigError
from gids.tiers.policies.base import Policy


@dataclass(frozen=True)
class Gids(Policy):
    """Rows that the next ``size`` batches reuse are in USE and stay; a random one of the others makes room."""

    size: int = 8
    name: ClassVar[str] = "gids"
    kind: ClassVar[PolicyKind] = PolicyKind.GIDS

    def __post_init__(self) -> None:
        if self.size < 0:
            raise ConfigError(f"window must not be negative (got {self.size})")

    @property
    def ahead(self) -> int | None:
        """The window."""
        return self.size

    def __str__(self) -> str:
        return f"gids({self.size})"
