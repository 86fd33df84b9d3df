"""Policy ``window(W)``: ranking in ``kernels/policy_window.cuh``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from gids._native import PolicyKind
from gids.tiers.policies.base import WindowedPolicy


@dataclass(frozen=True)
class Window(WindowedPolicy):
    """Rows needed soonest within the next ``size`` batches stay; rows that the window does not need may stay out."""

    name: ClassVar[str] = "window"
    kind: ClassVar[PolicyKind] = PolicyKind.WINDOW
