"""Policy ``belady``: ``window`` that sees the whole superbatch, so no cache of this size hits more (Ginex)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from gids._native import PolicyKind
from gids.tiers.policies.base import Policy


@dataclass(frozen=True)
class Belady(Policy):
    """Farthest next use goes first, over everything that the caller knows of the future."""

    name: ClassVar[str] = "belady"
    kind: ClassVar[PolicyKind] = PolicyKind.WINDOW

    @property
    def ahead(self) -> int | None:
        """All of the batches that are known."""
        return None
