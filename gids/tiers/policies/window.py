"""Policy ``window(W)``: ranking in ``kernels/policy_window.cuh``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from gids._native import PolicyKind
from gids.errors import ConfigError
from gids.tiers.policies.base import Policy


@dataclass(frozen=True)
class Window(Policy):
    """Rows needed soonest within the next ``size`` batches stay; rows that the window does not need may stay out."""

    size: int = 16
    name: ClassVar[str] = "window"
    kind: ClassVar[PolicyKind] = PolicyKind.WINDOW

    def __post_init__(self) -> None:
        if self.size < 0:
            raise ConfigError(f"window must not be negative (got {self.size})")

    @property
    def ahead(self) -> int | None:
        """The window."""
        return self.size

    def __str__(self) -> str:
        return f"window({self.size})"
